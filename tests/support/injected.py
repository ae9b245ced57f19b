"""An operator with an error inserted into its kernels, which its tests must detect."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tuner.spec.operator import Operator


def injected(operator: Operator[Any], folder: Path, file: str, old: str, new: str) -> Operator[Any]:
    """Return the operator with `old` replaced by `new` in one of its files, as a copy of its folder in `folder`."""
    result = replace(operator, folder=folder / operator.name)
    shutil.copytree(operator.folder, result.folder)
    text = (result.folder / file).read_text()
    assert old in text
    (result.folder / file).write_text(text.replace(old, new))
    return result


@dataclass(frozen=True)
class Bug:
    """`old` is replaced by `new` in a file. `seen` is the kind of the finding, or the output that becomes wrong.

    `config` is one that shows the error, if not every config does.
    """

    name: str
    file: str
    old: str
    new: str
    seen: str
    config: Any = None

    def put_into(self, operator: Operator[Any], folder: Path) -> Operator[Any]:
        """Return a copy of the operator with the error."""
        return injected(operator, folder, self.file, self.old, self.new)
