"""A one-sentence summary of a comparison: which kernels are fastest."""

from collections.abc import Sequence
from itertools import groupby

from tuner.bench.comparison import Comparison
from tuner.bench.forecast import Forecast
from tuner.bench.tables import Found, varying


def leaders(results: Found) -> str:
    """Return the kernels whose interval overlaps that of the fastest, and over which sizes; empty if nothing
    was timed.
    """
    size = varying([result.problem for result in results])
    if not size:
        groups = [
            (f"{names} at {result.title}" if len(results) > 1 else names, [result])
            for result in results
            if (names := _least(result))
        ]
    else:
        ordered = sorted(results, key=lambda result: result.problem[size])
        runs = [(names, list(run)) for names, run in groupby(ordered, key=_least) if names]
        groups = [(f"{names} at {size} {_span([result.problem[size] for result in run])}", run) for names, run in runs]
    parts = [f"{names}{_lead(run)}" for names, run in groups]
    return f"Ahead ({results[0].evidence}): {'; '.join(parts)}." if parts else ""


def _least(result: Comparison | Forecast) -> str:
    """Return the fastest kernel's name, or the names of all that are indistinguishable from it, joined by " and "."""
    kernels = _kernels(result)
    bound = min((high for _, _, high in kernels), default=0.0)
    return " and ".join(name for name, low, _ in kernels if low <= bound)


def _lead(run: Sequence[Comparison | Forecast]) -> str:
    """Return by how much one kernel leads; empty if several lead or there is only one."""
    shares = []
    for entry in run:
        first, *others = sorted((low + high) / 2 for _, low, high in _kernels(entry))
        if not others or " and " in _least(entry):
            return ""
        shares.append(round(100 * (1 - first / others[0])))
    least, most = min(shares), max(shares)
    return f", {least} %" * (least == most) + f", {least} to {most} %" * (least < most) + " below the next"


def _kernels(result: Comparison | Forecast) -> list[tuple[str, float, float]]:
    """Return (name, low, high) of each kernel with our launch mode, without the plain copy."""
    if isinstance(result, Forecast):
        return [(row.name, row.cost, row.cost) for row in result.rows]
    alike = [row for row in result.rows if row.state == "ok" and row.launch == result.rows[0].launch]
    return [(row.label, row.time_us.low, row.time_us.high) for row in alike if row.time_us]


def _span(sizes: Sequence[object]) -> str:
    return str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
