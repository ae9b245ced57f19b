"""User operators for tests: the example under other names, with parts of its text replaced."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from tuner import operators
from tuner.base.assets import EXAMPLE
from tuner.cli.commands.new import write

_NUMBERS = count()
Edit = tuple[str, str, str]  # a file, its old text, its new text


@contextmanager
def own_operator(place: Path, *edits: Edit, example: Path = EXAMPLE) -> Iterator[str]:
    """Provide the name of a new operator in `place`, which can be found until the block ends."""
    name = f"own_{next(_NUMBERS)}"
    write(name, place / name, example)
    for file, old, new in edits:
        before, after = (folder.replace(example.name, name) for folder in (old, new))
        text = (place / name / file).read_text()
        assert before in text, before
        (place / name / file).write_text(text.replace(before, after))
    folders = operators.__path__  # a test may set other values for its duration
    folders.append(str(place))
    try:
        yield name
    finally:
        folders.remove(str(place))
        for module in [module for module in sys.modules if module.startswith(f"tuner.operators.{name}")]:
            del sys.modules[module]
