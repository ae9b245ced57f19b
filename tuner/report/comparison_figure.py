"""The figures of a comparison: lines over a size, and bars."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from tuner.report import vega
from tuner.report.vega import category, layer, linked, mark, quantity

_WIDTH, _HEIGHT, _BAR = 860, 360, 26
_COLOURS = tuple(f"var(--{name})" for name in ("accent", "soft", "bad", "good", "warn", "key"))
_DASHES = ([1, 0], [2, 4], [8, 3], [12, 3, 2, 3], [5, 2])  # five, so that each is combined with all six colours


@dataclass(frozen=True, slots=True)
class Value:
    """A kernel's value on one problem with its interval; `row` is the id of its row on the page."""

    name: str
    mid: float
    low: float
    high: float
    row: str


def lines(values: Sequence[tuple[float, Value]], size_name: str, value_name: str) -> Markup | None:
    """Draw a line per kernel over (size, value) on logarithmic axes; None if fewer than two sizes have a value."""
    sizes = sorted({size for size, _ in values})
    if len(sizes) < 2:
        return None
    rows = [_row(value) | {"size": size} for size, value in sorted(values, key=lambda pair: pair[0])]
    ends = {value.name: (-size, -value.mid) for size, value in sorted(values, key=lambda pair: pair[0])}
    own = {"field": "name", "type": "nominal", "legend": {"title": None, "values": sorted(ends, key=ends.__getitem__)}}
    # The legend lists them from the top, in the order of the lines' ends.
    names = list(dict.fromkeys(value.name for _, value in values))
    colour = {"color": own | {"scale": {"domain": names, "range": list(_COLOURS)}}}
    dashes = {"strokeDash": own | {"scale": {"domain": names, "range": list(_DASHES)}}}
    x = quantity("size", title=size_name, scale=vega.scale(sizes[0], sizes[-1]))
    low, high = min(value.low for _, value in values), max(value.high for _, value in values)
    decades = vega.ABOVE | {"format": "~g", "tickCount": 4}
    y = quantity("mid", title=value_name, scale=vega.scale(low / 1.1, high * 1.1), axis=decades)
    line = {"type": "line", "strokeWidth": 2, "aria": False}
    spec = {
        "width": _WIDTH,
        "height": _HEIGHT,
        "encoding": {"x": x | {"axis": {"values": sizes, "format": "~f", "labelOverlap": "greedy"}}},
        "layer": [
            layer(line, rows, y=y, **colour, **dashes),
            layer("rule", rows, y=y | {"field": "low"}, y2={"field": "high"}),
            layer(mark("circle"), rows, y=y, **colour, **linked()),
        ],
    }
    return vega.draw(spec)


def bars(values: Sequence[Value], value_name: str, unit: str) -> Markup | None:
    """Draw horizontal bars from zero with the intervals of their values; None if there is no value.

    Values that differ by more than a factor of ten become dots on a logarithmic axis.
    """
    if not values:
        return None
    rows = [_row(value) | {"at": n, "text": f"{value.mid:.4g} {unit}"} for n, value in enumerate(values)]
    texts = {"domain": False, "ticks": False, "labelLimit": 0, "labelColor": "var(--ink)"}
    y = category("at", title=None, axis=texts | {"labelExpr": f"{json.dumps([v.name for v in values])}[datum.value]"})
    low, high = min(value.low for value in values), max(value.high for value in values)
    logarithmic = low > 0 and high / low > vega.LOG
    scale = vega.scale(low / 1.2, high * 1.2) if logarithmic else {"domainMin": 0}
    x = quantity("mid", title=value_name, scale=scale, axis={"format": "~g", "tickCount": 6})
    interval = {"x": x | {"field": "low"}, "x2": {"field": "high"}}
    colour = {"condition": {"test": "datum.at == 0", "value": "var(--accent)"}, "value": "var(--dot)"}
    rule = layer({"type": "rule", "color": "var(--ink)", "strokeWidth": 1.5, "aria": False}, rows, **interval)
    if logarithmic:  # a bar has no length on a logarithmic axis
        start = {"x2": {"datum": low / 1.2}}
        shape = {"type": "point", "shape": "circle", "filled": True, "size": 90, "opacity": 1}
        marks = [
            layer({"type": "rule", "color": "var(--rule)", "aria": False}, rows, x=x, **start),
            rule,
            layer(shape, rows, x=x, color=colour, **linked()),
        ]
    else:
        marks = [layer({"type": "bar", "height": 14}, rows, x=x, color=colour, **linked()), rule]
    text = {"type": "text", "align": "left", "dx": 8, "aria": False}
    spec = {
        "width": _WIDTH,
        "height": {"step": _BAR},
        "encoding": {"y": y},
        "layer": [*marks, layer(text, rows, x=x | {"field": "high"}, text={"field": "text"})],
    }
    return vega.draw(spec)


def _row(value: Value) -> dict[str, object]:
    row = {"name": value.name, "mid": value.mid, "low": value.low, "high": value.high}
    return row | {"row": f"#{value.row}", "label": f"{value.name}: {value.mid:.4g}"}
