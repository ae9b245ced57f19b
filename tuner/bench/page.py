"""Comparisons or forecasts → one HTML file: a plot over what varies, or bars, and every number in tables."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

from tuner.base import fields as plain_fields
from tuner.bench.comparison import Comparison, Row
from tuner.bench.forecast import Forecast, Outlook
from tuner.bench.leaders import leaders
from tuner.bench.tables import Found, shared, tables, varying
from tuner.report.page import document
from tuner.report.series import Value, bars, lines


def page(found: Found) -> str:
    """One page for comparisons, or for forecasts, of one operator; never of both."""
    measured = isinstance(found[0], Comparison)
    size = varying([each.problem for each in found])
    unit, value_name = ("µs", f"time, µs ({found[0].evidence})") if measured else ("×", "predicted cost, × the least")
    drawn = _values(found)
    plots = [] if size else [bars(few, value_name, unit) for few in drawn]
    over = [(float(each.problem[size]), value) for each, few in zip(found, drawn, strict=True) for value in few if size]
    return document(
        "bench.html.jinja",
        title=found[0].operator,
        evidence=found[0].evidence,
        gpu=_gpu(found[0]),
        leaders=leaders(found),
        about=_about(found),
        value_name=value_name,
        size_name=size,
        lines=lines(over, size, value_name),
        tables=[(tables(found)[0], None)] if size else [*zip(tables(found), plots, strict=True)],
        json=json.dumps([each.data() for each in found], ensure_ascii=False, default=str).replace("<", "\\u003c"),
    )


def _values(found: Found) -> list[list[Value]]:
    """What is drawn of each: times, or predicted costs over the least of all; rows are counted over all tables."""
    numbers = count(1)
    drawn = [[value for row in each.rows for value in _value(row, f"row-{next(numbers)}")] for each in found]
    if isinstance(found[0], Comparison):
        return drawn
    least = min(value.mid for few in drawn for value in few)
    return [[replace(v, mid=v.mid / least, low=v.low / least, high=v.high / least) for v in few] for few in drawn]


def _value(row: Row | Outlook, id: str) -> Iterator[Value]:
    """None of a contender that was not timed."""
    if isinstance(row, Outlook):
        yield Value(row.name, row.cost, row.cost, row.cost, id)
    elif row.time_us:
        yield Value(row.label, row.time_us.mid, row.time_us.low, row.time_us.high, id)


def _gpu(found: Comparison | Forecast) -> str:
    return found.gpu if isinstance(found, Forecast) else str(found.device["gpu"])


def _about(found: Found) -> str:
    first, problem = found[0], shared(found)
    if isinstance(first, Forecast):
        return f"{problem}. On the GPU, these peers would be timed: {', '.join(first.peers) or 'none'}."
    facts: dict[str, Any] = {name: first.device[name] for name in ("model", "driver") if name in first.device}
    ours = "" if len(found) > 1 else f" Ours is {first.implementation} {plain_fields.formatted(first.config)}."
    return f"{problem}. {first.policy}.{ours} {plain_fields.formatted(facts)}"
