"""Comparisons or forecasts → one HTML file: a plot over what varies, or bars, and every number in tables."""

import json
from dataclasses import dataclass
from typing import Any

from tuner.base import result
from tuner.bench.ahead import ahead
from tuner.bench.comparison import Comparison
from tuner.bench.forecast import Forecast
from tuner.bench.tables import Found, shared, tables, varying
from tuner.report.page import document
from tuner.report.series import Series, bars, lines


@dataclass(frozen=True, slots=True)
class _Value:
    """What is drawn of one kernel on one problem; low and high are its interval."""

    name: str
    mid: float
    low: float
    high: float


def page(found: Found) -> str:
    """One page for comparisons, or for forecasts, of one operator; never of both."""
    measured = isinstance(found[0], Comparison)
    size = varying([each.problem for each in found])
    listed = tables(found)
    values = [_values(each) for each in found]
    least = 1.0 if measured else min(value.mid for each in values for value in each)
    unit = "µs" if measured else "×"
    drawn = [[(each.name, each.mid / least, each.low / least, each.high / least) for each in few] for few in values]
    return document(
        "bench.html.jinja",
        title=found[0].operator,
        evidence=found[0].evidence,
        gpu=_gpu(found[0]),
        ahead=ahead(found),
        about=_about(found),
        value_name=f"time, µs ({found[0].evidence})" if measured else "predicted cost, × the least",
        size_name=size,
        lines=lines(_series(found, drawn, size)) if size else None,
        tables=[(each, None if size else bars(few, unit)) for each, few in zip(listed, drawn, strict=False)],
        json=json.dumps([each.data() for each in found], ensure_ascii=False, default=str).replace("<", "\\u003c"),
    )


def _series(found: Found, drawn: list[list[tuple[str, float, float, float]]], size: str) -> list[Series]:
    points: dict[str, list[tuple[float, float]]] = {}
    for each, few in zip(found, drawn, strict=True):
        for name, mid, _, _ in few:
            points.setdefault(name, []).append((float(each.problem[size]), mid))
    return [Series(name, tuple(sorted(pairs))) for name, pairs in points.items()]


def _values(found: Comparison | Forecast) -> list[_Value]:
    if isinstance(found, Forecast):
        return [_Value(row.name, row.cost, row.cost, row.cost) for row in found.rows]
    timed = [(row, row.time_us) for row in found.rows if row.time_us]
    return [_Value(row.label, time.mid, time.low, time.high) for row, time in timed]


def _gpu(found: Comparison | Forecast) -> str:
    return found.gpu if isinstance(found, Forecast) else str(found.device["gpu"])


def _about(found: Found) -> str:
    first, problem = found[0], shared(found)
    if isinstance(first, Forecast):
        return f"{problem}. On the GPU, these peers would be timed: {', '.join(first.peers) or 'none'}."
    facts: dict[str, Any] = {name: first.device[name] for name in ("model", "driver") if name in first.device}
    ours = "" if len(found) > 1 else f" Ours is {first.implementation} {result.spelled(first.config)}."
    return f"{problem}. {first.policy}.{ours} {result.spelled(facts)}"
