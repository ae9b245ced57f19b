"""The convergence figure: values by try, the best so far, and failures by stage."""

from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from tuner.report import vega
from tuner.report.section import Section
from tuner.report.standing import Entry, best_so_far
from tuner.report.value_axis import Axis, axis, named, row
from tuner.report.vega import category, layer, linked, mark, quantity
from tuner.results.attempt import Stage

_WIDTH, _HEIGHT, _LANE = 1100, 250, 18
_CROSS = "M-1,-.75L-.75,-1L0,-.25L.75,-1L1,-.75L.25,0L1,.75L.75,1L0,.25L-.75,1L-1,.75L-.25,0Z"
_ROOM = 1.04  # relative margin between the outermost values and the edges


@dataclass(frozen=True, slots=True)
class Convergence:
    svg: Markup
    n_above: int  # number of tries above the ceiling


def convergence(section: Section) -> Convergence:
    """Return the figure of a section with entries."""
    entries = sorted(section.entries, key=lambda entry: entry.index)
    value = axis(section, entries)
    points = [_point(section, entry, value) for entry in entries]
    failed = [_failure(section, n) for n, attempt in enumerate(section.attempts) if attempt.failure is not None]
    numbers = {"title": "try", "grid": False, "tickMinStep": 1, "format": "d"}
    x = quantity("try", scale={"domain": [0.3, len(section.attempts) + 0.7], "nice": False}, axis=numbers)
    plot = {
        "width": _WIDTH,
        "height": _HEIGHT,
        "encoding": {"x": {**x, "axis": None} if failed else x},
        "layer": _layers(points, _steps(section, value), value.channel(_ROOM)),
    }
    stages = [stage.value for stage in Stage if any(failure["stage"] == stage.value for failure in failed)]
    names = {"title": None, "grid": True, "labelExpr": "'✗ ' + datum.value"}
    lanes = category("stage", scale={"domain": stages}, axis=names)
    crosses = layer(mark(_CROSS, "var(--bad)", size=44), failed, x=x, y=lanes, **linked())
    below = [crosses | {"width": _WIDTH, "height": {"step": _LANE}}] if failed else []
    drawn = vega.draw({"vconcat": [plot, *below], "spacing": 8})
    return Convergence(drawn, sum(point["above"] for point in points))


def _layers(points: list[dict[str, Any]], steps: list[dict[str, float]], y: dict[str, Any]) -> list[vega.Spec]:
    above = [point for point in points if point["above"]]
    within = [point for point in points if not point["above"]]
    ring = mark("circle", "transparent", size=170, stroke="var(--ink)", strokeWidth=2)
    line = {"type": "line", "interpolate": "step-after", "color": "var(--accent)", "strokeWidth": 2}
    return [
        layer(line, steps, y=y),
        layer("rule", [p for p in within if "low" in p], y={**y, "field": "low"}, y2={"field": "high"}),
        layer(mark("circle", "var(--dot)"), within, y=y, **linked()),
        layer(mark("triangle-up", "var(--dot)", size=44), above, y=y, **linked()),
        layer(ring, [point for point in points if point["winner"]], y=y, **linked()),
    ]


def _point(section: Section, entry: Entry, value: Axis) -> dict[str, Any]:
    point = named(section, entry) | {"try": entry.index + 1, "value": value.at(entry.value), "winner": entry.rank == 1}
    point["above"] = value.of(entry.value) > value.ceiling
    if section.measured and (time := entry.attempt.measurement):
        point |= {"low": max(value.at(time.low_us), value.best / _ROOM), "high": value.at(time.high_us)}
    return point


def _failure(section: Section, index: int) -> dict[str, Any]:
    failure = section.attempts[index].failure
    stage = failure.stage.value if failure else ""
    return {"try": index + 1, "stage": stage, "row": row(section, index), "label": f"try {index + 1} failed: {stage}"}


def _steps(section: Section, value: Axis) -> list[dict[str, float]]:
    """Return the best value so far at each change, and at the last try."""
    best = best_so_far(section.attempts, section.entries)
    steps = [(n, at) for n, (before, at) in enumerate(zip((None, *best), best, strict=False), 1) if at != before]
    return [{"try": n, "value": value.at(at)} for n, at in (*steps, (len(best), best[-1])) if at is not None]
