"""Which kernels are ahead, in one sentence: the answer that a comparison is made for."""

from collections.abc import Sequence
from itertools import groupby

from tuner.bench.comparison import Comparison
from tuner.bench.forecast import Forecast
from tuner.bench.tables import Found, varying


def leaders(found: Found) -> str:
    """The kernels whose interval meets that of the least, and over which sizes; empty where nothing was timed."""
    size = varying([each.problem for each in found])
    if not size:
        told = [
            (f"{names} at {each.title}" if len(found) > 1 else names, [each])
            for each in found
            if (names := _least(each))
        ]
    else:
        ordered = sorted(found, key=lambda each: each.problem[size])
        runs = [(names, list(run)) for names, run in groupby(ordered, key=_least) if names]
        told = [(f"{names} at {size} {_span([each.problem[size] for each in run])}", run) for names, run in runs]
    parts = [f"{names}{_lead(run)}" for names, run in told]
    return f"Ahead ({found[0].evidence}): {'; '.join(parts)}." if parts else ""


def _least(found: Comparison | Forecast) -> str:
    """`a`, or `a and b` where these cannot be told apart."""
    kernels = _kernels(found)
    bound = min((high for _, _, high in kernels), default=0.0)
    return " and ".join(name for name, low, _ in kernels if low <= bound)


def _lead(run: Sequence[Comparison | Forecast]) -> str:
    """By how much one kernel is ahead of the next one; nothing where several are, or there is no next."""
    shares = []
    for each in run:
        first, *others = sorted((low + high) / 2 for _, low, high in _kernels(each))
        if not others or " and " in _least(each):
            return ""
        shares.append(round(100 * (1 - first / others[0])))
    least, most = min(shares), max(shares)
    return f", {least} %" * (least == most) + f", {least} to {most} %" * (least < most) + " below the next"


def _kernels(found: Comparison | Forecast) -> list[tuple[str, float, float]]:
    """(name, low, high) of each that computes the result, launched as ours is: a plain copy is a roof."""
    if isinstance(found, Forecast):
        return [(row.name, row.cost, row.cost) for row in found.rows]
    alike = [row for row in found.rows if row.state == "ok" and row.launch == found.rows[0].launch]
    return [(row.label, row.time_us.low, row.time_us.high) for row in alike if row.time_us]


def _span(sizes: Sequence[object]) -> str:
    return str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
