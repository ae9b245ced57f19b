"""Which kernels are ahead, in one sentence: the answer that a comparison is made for."""

from collections.abc import Sequence
from itertools import groupby

from tuner.bench.comparison import Comparison
from tuner.bench.forecast import Forecast
from tuner.bench.tables import Found, varying


def ahead(found: Found) -> str:
    """The kernels whose interval meets that of the least, and over which sizes; empty where nothing was timed."""
    size = varying([each.problem for each in found])
    if not size:
        parts = [f"{names} at {each.title}" if len(found) > 1 else names for each in found if (names := _least(each))]
    else:
        ordered = sorted(found, key=lambda each: each.problem[size])
        runs = [(names, [each.problem[size] for each in run]) for names, run in groupby(ordered, key=_least) if names]
        parts = [f"{names} at {size} {_span(sizes)}" for names, sizes in runs]
    return f"Ahead ({found[0].evidence}): {'; '.join(parts)}." if parts else ""


def _least(found: Comparison | Forecast) -> str:
    """`a`, or `a and b` where these cannot be told apart."""
    kernels = _kernels(found)
    bound = min((high for _, _, high in kernels), default=0.0)
    return " and ".join(name for name, low, _ in kernels if low <= bound)


def _kernels(found: Comparison | Forecast) -> list[tuple[str, float, float]]:
    """(name, low, high) of each that computes the result: a plain copy is a roof, and no contender."""
    if isinstance(found, Forecast):
        return [(row.name, row.cost, row.cost) for row in found.rows]
    return [(row.label, row.time_us.low, row.time_us.high) for row in found.rows if row.time_us and row.state == "ok"]


def _span(sizes: Sequence[object]) -> str:
    return str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
