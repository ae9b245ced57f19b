"""Comparisons or forecasts → one HTML file: a plot over the varying size, or bars, and tables with every number."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

from tuner.base import fields as plain_fields
from tuner.bench.comparison import Comparison, Row
from tuner.bench.forecast import Forecast, Outlook
from tuner.bench.leaders import leaders
from tuner.bench.tables import COLUMN_MEANINGS, Found, shared, tables, unit_cost, varying
from tuner.report.comparison_figure import Value, bars, lines
from tuner.report.page import document


def page(results: Found) -> str:
    """Return one page for the comparisons, or for the forecasts, of one operator, but not for a mixture."""
    measured = isinstance(results[0], Comparison)
    size = varying([result.problem for result in results])
    ours = results[0].rows[0].name if isinstance(results[0], Forecast) else ""
    at = f" at {size}={results[0].problem[size]}" if size else ""
    value = f"time, µs ({results[0].evidence})" if measured else f"predicted cost, × that of {ours}{at}"
    unit, value_name = "µs" if measured else "×", value
    drawn = _values(results)
    plots = [] if size else [bars(few, value_name, unit) for few in drawn]
    over = [
        (float(result.problem[size]), value)
        for result, few in zip(results, drawn, strict=True)
        for value in few
        if size
    ]
    return document(
        "bench.html.jinja",
        title=results[0].operator,
        evidence=results[0].evidence,
        gpu=_gpu(results[0]),
        leaders=leaders(results),
        about=_about(results),
        value_name=value_name,
        size_name=size,
        meanings={name: meaning for name, meaning in COLUMN_MEANINGS.items() if name in tables(results)[0].columns},
        lines=lines(over, size, value_name),
        tables=[(tables(results)[0], None)] if size else [*zip(tables(results), plots, strict=True)],
        json=json.dumps([result.data() for result in results], ensure_ascii=False, default=str).replace("<", "\\u003c"),
    )


def _values(results: Found) -> list[list[Value]]:
    """Return the plotted values in the unit of the tables: times, or predicted costs relative to ours, in a sweep to
    ours at the first size; row numbers continue across tables.
    """
    numbers = count(1)
    drawn = [[value for row in result.rows for value in _value(row, f"row-{next(numbers)}")] for result in results]
    if isinstance(results[0], Comparison):
        return drawn
    sweep = varying([result.problem for result in results])
    units = [unit_cost(results if sweep else [result]) for result in results]
    return [
        [replace(v, mid=v.mid / unit, low=v.low / unit, high=v.high / unit) for v in few]
        for few, unit in zip(drawn, units, strict=True)
    ]


def _value(row: Row | Outlook, id: str) -> Iterator[Value]:
    """Yield the value of a contender that was timed."""
    if isinstance(row, Outlook):
        yield Value(row.name, row.cost, row.cost, row.cost, id)
    elif row.time_us:
        yield Value(row.label, row.time_us.mid, row.time_us.low, row.time_us.high, id)


def _gpu(result: Comparison | Forecast) -> str:
    return result.gpu if isinstance(result, Forecast) else str(result.device["gpu"])


def _about(results: Found) -> str:
    first, problem = results[0], shared(results)
    if isinstance(first, Forecast):
        peers = f"On the GPU, these peers would be timed: {', '.join(first.peers) or 'none'}."
        return f"{problem}. {peers} Predicted time: {first.times}."
    facts: dict[str, Any] = {name: first.device[name] for name in ("model", "driver") if name in first.device}
    subject = "" if len(results) > 1 else f" Ours is {first.implementation} {plain_fields.formatted(first.config)}."
    return f"{problem}. {first.policy}.{subject} {plain_fields.formatted(facts)}"
