"""Which kernels are ahead, in one sentence: the answer that a comparison is made for."""

from collections.abc import Sequence
from itertools import groupby

from tuner.bench.comparison import Comparison
from tuner.bench.forecast import Forecast
from tuner.bench.tables import Found, varying


def leaders(results: Found) -> str:
    """The kernels whose interval meets that of the least, and over which sizes; empty where nothing was timed."""
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
    """`a`, or `a and b` where these cannot be told apart."""
    kernels = _kernels(result)
    bound = min((high for _, _, high in kernels), default=0.0)
    return " and ".join(name for name, low, _ in kernels if low <= bound)


def _lead(run: Sequence[Comparison | Forecast]) -> str:
    """By how much one kernel is ahead of the next one; nothing where several are, or there is no next."""
    shares = []
    for entry in run:
        first, *others = sorted((low + high) / 2 for _, low, high in _kernels(entry))
        if not others or " and " in _least(entry):
            return ""
        shares.append(round(100 * (1 - first / others[0])))
    least, most = min(shares), max(shares)
    return f", {least} %" * (least == most) + f", {least} to {most} %" * (least < most) + " below the next"


def _kernels(result: Comparison | Forecast) -> list[tuple[str, float, float]]:
    """(name, low, high) of each that computes the result, launched as ours is: a plain copy is a roof."""
    if isinstance(result, Forecast):
        return [(row.name, row.cost, row.cost) for row in result.rows]
    alike = [row for row in result.rows if row.state == "ok" and row.launch == result.rows[0].launch]
    return [(row.label, row.time_us.low, row.time_us.high) for row in alike if row.time_us]


def _span(sizes: Sequence[object]) -> str:
    return str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
