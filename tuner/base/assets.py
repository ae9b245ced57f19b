"""Where the data folders are: inside this package in a wheel, beside it in a checkout."""

from collections.abc import Iterator
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
ROOT = _PACKAGE if (_PACKAGE / "templates").is_dir() else _PACKAGE.parent

TEMPLATES = ROOT / "templates"
PRIMITIVES = TEMPLATES / "primitives"
EXAMPLE = TEMPLATES / "examples" / "row_softmax"  # an operator to start from
PLAIN_EXAMPLE = TEMPLATES / "examples" / "rms_norm"  # the same for a kernel that exists, checked on PTX
TEMPLATE = "kernel.cu.jinja"  # of an implementation, in its folder
PEERS = "peers.py"  # of an operator, in its folder: whom it is raced against
DB = ROOT / "db"
REPORTS = ROOT / "reports"


def python_of(operators: Path) -> Iterator[Path]:
    """The modules that plan and judge, of all operators in a folder: those in an operator's own folder, and one below.

    Not peers.py: whom an operator is raced against decides nothing about its configs.
    """
    yield from (path for path in operators.glob("*/*.py") if path.name != PEERS)
    yield from operators.glob("*/*/*.py")
