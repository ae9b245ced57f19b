"""`tuner new`: create a new operator that works without edits."""

import keyword
import os
import re
import shutil
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from tuner import dispatcher, operators
from tuner.base.assets import EXAMPLE, PLAIN_EXAMPLE
from tuner.errors import UsageError

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_EMULATED = "on the emulator, over the edges, with the race detector"


def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="of the operator: its folder, its commands and dispatcher.<name>")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="the folder that is to hold it")] = Path(),
    plain: Annotated[
        bool, typer.Option("--plain", help="plain CUDA with NVIDIA's headers and inline PTX, checked on the PTX")
    ] = False,
) -> None:
    """Write a small operator of your own to start from: softmax of rows, under another name, or a norm with --plain."""
    check_name(name)
    folder = out / name
    if os.pathsep in str(out.resolve()):
        raise UsageError(f"--out {out}: {operators.VARIABLE} cannot name a folder with {os.pathsep!r} in it")
    if folder.exists():
        raise UsageError(f"{folder} is there already, and nothing is overwritten: choose another name, or --out DIR")
    write(name, folder, PLAIN_EXAMPLE if plain else EXAMPLE)
    for path in sorted(filter(Path.is_file, folder.rglob("*"))):
        typer.echo(f"wrote {path}")
    typer.echo(next_steps(name, out, "on its PTX, over the edges" if plain else _EMULATED))


def write(name: str, folder: Path, example: Path = EXAMPLE) -> None:
    """Write the example's files under another name to `folder`, which appears atomically."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as temporary:
        draft = Path(temporary) / name
        shutil.copytree(example, draft, ignore=shutil.ignore_patterns("__pycache__"))
        for path in filter(Path.is_file, draft.rglob("*")):
            path.write_text(path.read_text(encoding="utf-8").replace(example.name, name), encoding="utf-8")
        draft.rename(folder)


def check_name(name: str) -> None:
    """Raise UsageError for a name that an operator cannot have."""
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise UsageError(
            f"{name!r} cannot name an operator, its folder and its kernels: give small letters, digits and _, "
            "with a letter first, such as rms_norm"
        )
    if name in operators.names():
        raise UsageError(f"there is an operator {name} already: choose another name")
    if hasattr(dispatcher, name):
        raise UsageError(f"dispatcher.{name} is something else: choose another name")


def next_steps(name: str, out: Path, where: str) -> str:
    """Return the next commands for a new operator."""
    folders = {Path(folder).resolve() for folder in operators.__path__}
    export = f"  export {operators.VARIABLE}={quote(_with(out))}  # so that it is found"
    exports = [] if out.resolve() in folders else [export]
    lines = [
        "now:",
        *exports,
        f"  tuner verify {name}  # {where}",
        f"  tuner search {name} --gpu sm_90a  # or the GPU that you have",
        f'  python -c "from tuner import dispatcher; help(dispatcher.{name})"',
    ]
    return "\n".join(lines)


def _with(out: Path) -> str:
    """Return the variable's value with another folder added."""
    folders = [*filter(None, os.environ.get(operators.VARIABLE, "").split(os.pathsep)), str(out.resolve())]
    return os.pathsep.join(folders)
