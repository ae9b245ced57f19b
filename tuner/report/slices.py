"""Figures of the parameters one at a time (slices), and of the most important ones in pairs (contours)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from markupsafe import Markup

from tuner.report import notation, vega
from tuner.report.effects import Effect, effects, own_entries
from tuner.report.section import Section
from tuner.report.standing import Entry
from tuner.report.value_axis import Axis, axis, named
from tuner.report.vega import category, layer, linked, mark, quantity

_COLUMNS, _WIDTH, _HEIGHT = 4, 240, 110  # of slices
_GRID, _CELL, _PAIRED, _LONGEST = 320, 24, 3, 16  # contours: width, height per value, parameters, values of one
_DARKEST = 0.5  # opacity of the worst cell, on which text stays readable


@dataclass(frozen=True, slots=True)
class Slices:
    svg: Markup
    contours: Markup | None
    effects: tuple[Effect, ...]  # the most important first
    pairs: tuple[tuple[str, str], ...]


def slices(section: Section) -> Slices | None:
    """Return the figures of the winner's implementation; None if none of its parameters varies."""
    drawn = by_importance(section)
    if not drawn:
        return None
    value = axis(section, own_entries(section))
    plots = [_slice(section, effect, value) for effect in drawn]
    svg = vega.draw({"concat": plots, "columns": _COLUMNS, "spacing": {"row": 22, "column": 20}})
    short = [effect for effect in drawn if len(effect.values) <= _LONGEST][:_PAIRED]
    pairs = list(combinations(short, 2))
    grids = [_contour(section, a, b, value) for a, b in pairs]
    contours = vega.draw({"hconcat": grids, "spacing": 40}) if grids else None
    return Slices(svg, contours, drawn, tuple((a.parameter, b.parameter) for a, b in pairs))


def by_importance(section: Section) -> tuple[Effect, ...]:
    """Return the effects, the most important first; where no importance is known, in the order of the config."""
    varying = effects(section)
    if not varying:
        return ()
    shares = section.data.importance.get(section.entries[0].attempt.identity.implementation, {})
    return tuple(sorted(varying, key=lambda effect: -shares.get(effect.parameter, 0.0)))


def _slice(section: Section, effect: Effect, value: Axis) -> vega.Spec:
    rows = [
        named(section, of.best)
        | {"at": notation.value(of.value), "value": value.at(of.best.value), "winner": of.best.rank == 1}
        | {
            "median": value.at(of.median * section.entries[0].value),
            "high": value.at(of.worst * section.entries[0].value),
        }
        for of in effect.values
    ]
    texts = {"labelAngle": 0, "labelOverlap": "greedy", "labelColor": "var(--ink)", "grid": False, "title": None}
    x = category("at", scale={"domain": [row["at"] for row in rows]}, axis=texts)
    y = value.channel(1.04, title=None, tickCount=3)
    ring = mark("circle", "transparent", size=150, stroke="var(--ink)", strokeWidth=2)
    quiet = {"aria": False, "color": "var(--dot)"}
    return {
        "title": {"text": effect.parameter, "anchor": "start", "color": "var(--ink)", "fontSize": 12},
        "width": _WIDTH,
        "height": _HEIGHT,
        "encoding": {"x": x},
        "layer": [
            layer({"type": "rule", **quiet}, rows, y=y, y2={"field": "high"}),
            layer({"type": "tick", "width": 14, "thickness": 2, **quiet}, rows, y=y | {"field": "median"}),
            layer(mark("circle", "var(--dot)", size=40), rows, y=y, **linked()),
            layer(ring, [row for row in rows if row["winner"]], y=y, **linked()),
        ],
    }


def _contour(section: Section, first: Effect, second: Effect, value: Axis) -> vega.Spec:
    cells = [
        named(section, entry)
        | {
            "a": notation.value(a),
            "b": notation.value(b),
            "cost": value.share(entry.value),
            "text": f"{entry.relative:.2f}",
        }
        for (a, b), entry in _best_of_pairs(own_entries(section), first, second).items()
    ]
    texts = {"labelAngle": 0, "labelColor": "var(--ink)", "domain": False, "ticks": False}
    x = category("a", title=first.parameter, scale={"domain": _labels(first)}, axis=texts)
    y = category("b", title=second.parameter, scale={"domain": _labels(second)[::-1]}, axis=texts | vega.ABOVE)
    shade = quantity("cost", scale={"domain": [0, 1], "range": [_DARKEST, 0.04]}, legend=None)
    return {
        "width": _GRID,
        "height": {"step": _CELL},
        "encoding": {"x": x, "y": y},
        "layer": [
            layer(
                {"type": "rect", "fill": "var(--dot)", "stroke": "var(--rule)"}, cells, fillOpacity=shade, **linked()
            ),
            layer(
                {"type": "text", "color": "var(--ink)", "fontSize": 11, "aria": False}, cells, text={"field": "text"}
            ),
        ],
    }


def _best_of_pairs(entries: Sequence[Entry], first: Effect, second: Effect) -> dict[Any, Entry]:
    best: dict[Any, Entry] = {}
    for entry in entries:  # best first
        config = entry.attempt.config
        best.setdefault((config.get(first.parameter), config.get(second.parameter)), entry)
    return best


def _labels(effect: Effect) -> list[str]:
    return [notation.value(of.value) for of in effect.values]
