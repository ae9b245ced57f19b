"""Which code searches here: processes that share one search must have the same."""

from functools import cache
from pathlib import Path

from tuner import __version__, operators
from tuner.base.assets import PEERS, ROOT
from tuner.base.cache import digest_of, key_of
from tuner.compiler.nvrtc import toolkit

_SOURCES = (".py", ".jinja", ".cuh", ".h", ".hpp")
_PACKAGE = ROOT / "tuner"


def code_here() -> str:
    """Version, digest of operators and of this program's Python, and compiler, as text to compare and to show; as they
    were when this process first asked. Raises MachineError where there is no compiler.
    """
    return f"tuner {__version__}, operators {_digest(tuple(operators.__path__))}, {toolkit()}"


@cache
def _digest(folders: tuple[str, ...]) -> str:
    roots = [_PACKAGE, *map(Path, folders)]
    return key_of(*(digest_of(root, _sources(root)) for root in roots if root.is_dir()))[:12]


def _sources(root: Path) -> list[Path]:
    """What decides configs and verdicts; whom an operator is raced against decides nothing."""
    return [path for path in root.rglob("*") if path.suffix in _SOURCES and path.name != PEERS and path.is_file()]
