"""The parallel-coordinates figure: one axis per varying parameter and one for the value, one line per config."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from tuner.base.fields import Scalar
from tuner.report import notation, vega
from tuner.report.effects import own_entries, value_order
from tuner.report.section import Section
from tuner.report.standing import parameters
from tuner.report.value_axis import Axis, axis, named
from tuner.report.vega import category, layer, linked, mark, quantity

LINES, FEWEST = 300, 30  # besides the best tenth: for all problems of a page, and for one
_WIDTH, _HEIGHT = 1050, 300
_TICKS = 16  # maximum number of labels per axis


@dataclass(frozen=True, slots=True)
class Parallel:
    svg: Markup
    names: tuple[str, ...]  # names of the parameters
    n_drawn: int
    n_total: int
    n_best: int  # size of the best tenth


def parallel(section: Section) -> Parallel | None:
    """Return the figure of the winner's implementation; None if none of its parameters varies."""
    entries = own_entries(section)
    configs = [entry.attempt.config for entry in entries]
    names = [name for name in parameters(configs) if len({config.get(name) for config in configs}) > 1]
    if not names:
        return None
    columns = [[config.get(name) for config in configs] for name in names]
    n_best = math.ceil(len(entries) / 10)
    most = max(FEWEST, LINES // section.of)
    rest = range(n_best, len(entries), max(1, math.ceil((len(entries) - n_best) / most)))
    drawn = [*rest, *range(n_best - 1, -1, -1)]  # the winner is drawn last, on top
    value = axis(section, entries)
    ends = [
        {**named(section, entries[row]), "axis": value.title, "value": value.at(entries[row].value)} for row in drawn
    ]
    heights = [*map(_heights, columns), [value.share(entry.value) for entry in entries]]
    lines = [
        {"row": end["row"], "axis": name, "height": height[row], "kind": _kind(row, n_best)}
        for end, row in zip(ends, drawn, strict=True)
        for name, height in zip([*names, value.title], heights, strict=True)
    ]
    ticks = [tick for name, column in zip(names, columns, strict=True) for tick in _ticks(name, column)]
    spec = _spec([*names, value.title], lines, ticks, ends, value)
    return Parallel(vega.draw(spec), tuple(names), len(drawn), len(entries), n_best)


def _kind(row: int, n_best: int) -> str:
    return "winner" if row == 0 else "best" if row < n_best else "rest"


def _spec(
    names: Sequence[str], lines: Sequence[vega.Spec], ticks: Sequence[vega.Spec], ends: Sequence[vega.Spec], value: Axis
) -> vega.Spec:
    top = {"orient": "top", "title": None, "labelAngle": -28, "labelAlign": "left", "labelPadding": 6, "labelLimit": 0}
    bare = {"ticks": False, "domain": False, "grid": True, "gridColor": "var(--soft)", "labelColor": "var(--ink)"}
    x = category("axis", scale={"domain": list(names), "padding": 0}, axis=top | bare)
    y = quantity("height", scale={"domain": [0, 1]}, axis=None)
    line = {"type": "line", "aria": False}  # the dots at the ends carry the same labels
    look = {
        "color": _by_kind("var(--thin)", "var(--accent)", "var(--ink)"),
        "strokeWidth": _by_kind(0.5, 1.3, 2.6),
        "detail": {"field": "row"},
    }
    text = {"type": "text", "align": "left", "dx": 5}
    right = value.channel(reverse=True, orient="right", title=None, grid=False)
    return {
        "padding": {"left": 5, "right": 40, "top": 8, "bottom": 5},  # slanted text extends further than computed
        "width": _WIDTH,
        "height": _HEIGHT,
        "resolve": {"scale": {"y": "independent"}},
        "encoding": {"x": x},
        "layer": [
            layer(line, lines, y=y, **look, href={"field": "row"}),
            layer(text, ticks, y=y, text={"field": "text"}),
            layer(mark("circle", "var(--dot)"), ends, y=right, **linked()),
        ],
    }


def _by_kind(rest: object, best: object, winner: object) -> dict[str, Any]:
    values = {"type": "ordinal", "domain": ["rest", "best", "winner"], "range": [rest, best, winner]}
    return {"field": "kind", "type": "nominal", "scale": values, "legend": None}


def _heights(column: Sequence[Scalar | None]) -> list[float]:
    """Return equally spaced heights for the values; rows of one value are spread by rank, the best on top, as bands."""
    kinds, heights = _kinds(column), [0.0] * len(column)
    for nth, kind in enumerate(kinds):
        members = [row for row, value in enumerate(column) if value == kind]
        for rank, row in enumerate(members):
            heights[row] = (nth + 0.5 - 0.6 * ((rank + 0.5) / len(members) - 0.5)) / len(kinds)
    return heights


def _ticks(name: str, column: Sequence[Scalar | None]) -> list[dict[str, Any]]:
    kinds = _kinds(column)
    ticks = [
        {"axis": name, "height": (n + 0.5) / len(kinds), "text": notation.value(kind)} for n, kind in enumerate(kinds)
    ]
    return ticks[:: math.ceil(len(ticks) / _TICKS)]


def _kinds(column: Sequence[Scalar | None]) -> list[Scalar | None]:
    return sorted(set(column), key=value_order)
