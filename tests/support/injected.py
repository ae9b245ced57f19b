"""An operator with an error put into its kernels, which tests of these have to see."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tuner.spec.operator import Operator


def injected(operator: Operator[Any], folder: Path, file: str, old: str, new: str) -> Operator[Any]:
    """The operator with `old` changed to `new` in a file of its own, as a copy of its folder in `folder`."""
    result = replace(operator, folder=folder / operator.name)
    shutil.copytree(operator.folder, result.folder)
    text = (result.folder / file).read_text()
    assert old in text
    (result.folder / file).write_text(text.replace(old, new))
    return result


@dataclass(frozen=True)
class Bug:
    """`old` becomes `new` in a file; `seen` is the finding's kind, or the output that comes out wrong.

    `config` is the one that shows it, where not every config does.
    """

    name: str
    file: str
    old: str
    new: str
    seen: str
    config: Any = None

    def put_into(self, operator: Operator[Any], folder: Path) -> Operator[Any]:
        """A copy of the operator that has it."""
        return injected(operator, folder, self.file, self.old, self.new)
