"""Locations of the data folders: inside this package in a wheel, beside it in a checkout."""

from collections.abc import Iterator
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
ROOT = _PACKAGE if (_PACKAGE / "templates").is_dir() else _PACKAGE.parent

TEMPLATES = ROOT / "templates"
PRIMITIVES = TEMPLATES / "primitives"
EXAMPLE = TEMPLATES / "examples" / "row_softmax"  # template of a new operator
PLAIN_EXAMPLE = TEMPLATES / "examples" / "rms_norm"  # the same for an existing kernel (checked on PTX)
TEMPLATE = "kernel.cu.jinja"  # file name of an implementation's template
PEERS = "peers.py"  # file name of an operator's peers
DB = ROOT / "db"
REPORTS = ROOT / "reports"


def python_of(operators: Path) -> Iterator[Path]:
    """Yield the Python modules that affect plans and checks: those in each operator's folder and one level below.

    peers.py is excluded, because peers do not affect an operator's configs.
    """
    yield from (path for path in operators.glob("*/*.py") if path.name != PEERS)
    yield from operators.glob("*/*/*.py")
