"""The version of the code that searches in this process. All processes of one search must have the same."""

from functools import cache
from pathlib import Path

from tuner import __version__, operators
from tuner.base.assets import PEERS, ROOT
from tuner.base.cache import digest_of, key_of
from tuner.compiler.nvrtc import toolkit

_SOURCES = (".py", ".jinja", ".cuh", ".h", ".hpp")
_PACKAGE = ROOT / "tuner"


def code_here() -> str:
    """Return the version, a digest of the operators and of this program's Python, and the compiler, as text. It is
    computed once per process.

    Raises MachineError without a compiler.
    """
    return f"tuner {__version__}, operators {_digest(tuple(operators.__path__))}, {toolkit()}"


@cache
def _digest(folders: tuple[str, ...]) -> str:
    roots = [_PACKAGE, *map(Path, folders)]
    return key_of(*(digest_of(root, _sources(root)) for root in roots if root.is_dir()))[:12]


def _sources(root: Path) -> list[Path]:
    """Yield the files that affect configs and verdicts. An operator's peers affect neither."""
    return [path for path in root.rglob("*") if path.suffix in _SOURCES and path.name != PEERS and path.is_file()]
