"""Geometry of the report's figures; reports/charts.html.jinja draws it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.base.result import Attempt, Evidence, Scalar, scalar
from tuner.evaluate.predict.cost import TERMS
from tuner.report import axes
from tuner.report.axes import Tick, ValueAxis
from tuner.report.standing import Entry, best_so_far, numbers, parameters

WIDTH = 760  # of a drawing
BAR = 100  # the longest bar
LINES = 300  # lines of the parallel coordinates besides the best tenth


@dataclass(frozen=True, slots=True)
class Frame:
    """Where a figure's plot lies in its drawing."""

    top: float
    bottom: float
    height: float
    left: float = 64.0
    right: float = 744.0


_BY_TRY = Frame(top=16, bottom=220, height=270)
_FAILURES = 240.0
_PARALLEL = Frame(top=52, bottom=300, height=312, left=48, right=700)


@dataclass(frozen=True, slots=True)
class Convergence:
    """Values by try, the best so far as a staircase, and the failures on a line of their own below the plot."""

    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    dots: str
    above: str  # triangles of the values over the ceiling
    steps: str
    crosses: str
    winner: tuple[float, float] | None
    n_above: int
    frame: Frame
    lane: float  # of the failures


@dataclass(frozen=True, slots=True)
class Axis:
    label: str
    at: float
    label_at: float  # labels alternate between two heights, so that long names do not collide
    ticks: tuple[Tick, ...]
    rows: tuple[float, ...]  # the height of each config


@dataclass(frozen=True, slots=True)
class Parallel:
    """One axis a parameter and one for the value; one line a config."""

    axes: tuple[Axis, ...]
    rest: str
    best: str  # the best tenth
    winner: str
    n_drawn: int
    n_total: int
    n_best: int
    frame: Frame


@dataclass(frozen=True, slots=True)
class Profile:
    """Predicted terms, the heaviest first, as shares of the winner's cost: one row an entry. They overlap in time, so
    that they do not add up to a cost."""

    terms: tuple[str, ...]
    rows: tuple[tuple[float, ...], ...]
    largest: float

    @property
    def meanings(self) -> dict[str, str]:
        """What the terms stand for, those that today's model has."""
        return {term: TERMS[term] for term in self.terms if term in TERMS}


def convergence(attempts: Sequence[Attempt], entries: Sequence[Entry], evidence: Evidence) -> Convergence:
    """`entries` is the standing of `attempts`."""
    frame = _BY_TRY
    y = _values(entries, frame.bottom - 8, frame.top + 8, evidence)
    x = axes.linear(0, max(len(attempts) - 1, 1), frame.left + 8, frame.right - 8)
    best = best_so_far(attempts, entries)
    within = [entry for entry in entries if entry.value <= y.ceiling]
    above = [entry for entry in entries if entry.value > y.ceiling]
    failed = [index for index, attempt in enumerate(attempts) if attempt.failure is not None]
    return Convergence(
        x_ticks=tuple(Tick(x(n - 1), str(n)) for n in axes.whole_ticks(len(attempts))),
        y_ticks=y.ticks if entries else (),
        dots=axes.dots((x(entry.index), y.at(entry.value)) for entry in within),
        above=axes.triangles((x(entry.index), frame.top + 4) for entry in above),
        steps=axes.staircase([(x(index), y.at(value)) for index, value in enumerate(best) if value is not None]),
        crosses=axes.crosses((x(index), _FAILURES) for index in failed),
        winner=(x(entries[0].index), y.at(entries[0].value)) if entries else None,
        n_above=len(above),
        frame=frame,
        lane=_FAILURES,
    )


def _values(entries: Sequence[Entry], best_at: float, worst_at: float, evidence: Evidence) -> ValueAxis:
    """Times in µs, predicted costs as multiples of the winner's: a cost of its own means nothing to a reader."""
    values = [entry.value for entry in entries]
    if evidence is Evidence.MEASURED or not entries or entries[0].value <= 0:
        return axes.value_axis(values, best_at, worst_at)
    return axes.value_axis(values, best_at, worst_at, unit=entries[0].value, suffix="×")


def parallel(entries: Sequence[Entry], evidence: Evidence) -> Parallel | None:
    """Lines of one implementation's `entries`, best first, over what varies among them; None where nothing does."""
    configs = [entry.attempt.config for entry in entries]
    names = [name for name in parameters(configs) if len({config.get(name) for config in configs}) > 1]
    if not names:
        return None
    frame = _PARALLEL
    x = axes.linear(0, len(names), frame.left, frame.right)
    found = [_category_axis(name, [c.get(name) for c in configs], x(at), at, frame) for at, name in enumerate(names)]
    found.append(_value_axis(entries, x(len(names)), len(names), frame, evidence))
    n_best = math.ceil(len(entries) / 10)
    rest = range(n_best, len(entries), max(1, math.ceil((len(entries) - n_best) / LINES)))
    return Parallel(
        axes=tuple(found),
        rest="".join(_line(found, row) for row in rest),
        best="".join(_line(found, row) for row in range(n_best)),
        winner=_line(found, 0),
        n_drawn=n_best + len(rest),
        n_total=len(entries),
        n_best=n_best,
        frame=frame,
    )


def _line(found: Sequence[Axis], row: int) -> str:
    return axes.polyline((axis.at, axis.rows[row]) for axis in found)


def _category_axis(name: str, column: Sequence[Scalar | None], x: float, place: int, frame: Frame) -> Axis:
    """Equally spaced places for the values; rows of one value fan out by rank, the best on top, to show as bands."""
    kinds = sorted(set(column), key=_order)
    slot = (frame.bottom - frame.top) / len(kinds)
    rows, ticks = [0.0] * len(column), []
    for nth, kind in enumerate(kinds):
        centre = frame.bottom - (nth + 0.5) * slot
        members = [row for row, value in enumerate(column) if value == kind]
        for rank, row in enumerate(members):
            rows[row] = centre + slot * 0.6 * ((rank + 0.5) / len(members) - 0.5)
        ticks.append(Tick(round(centre, 1), "none" if kind is None else scalar(kind)))
    return Axis(name, x, _label_at(place, frame), tuple(ticks[:: math.ceil(len(ticks) / 16)]), tuple(rows))


def _order(value: Scalar | None) -> tuple[int, float, str]:
    """Absent values first, then numbers by size, then text."""
    if value is None:
        return (0, 0.0, "")
    return (2, 0.0, value) if isinstance(value, str) else (1, float(value), "")


def _value_axis(entries: Sequence[Entry], x: float, place: int, frame: Frame, evidence: Evidence) -> Axis:
    y = _values(entries, frame.top + 8, frame.bottom - 8, evidence)
    label = "time (µs)" if evidence is Evidence.MEASURED else "relative cost"
    return Axis(label, x, _label_at(place, frame), y.ticks, tuple(y.at(entry.value) for entry in entries))


def _label_at(place: int, frame: Frame) -> float:
    return frame.top - 32 + 18 * (place % 2)


def profile(entries: Sequence[Entry]) -> Profile | None:
    """Predicted terms of `entries` against the first one's cost; None where it has no prediction."""
    first = entries[0].attempt.prediction if entries else None
    if first is None or first.cost <= 0:
        return None
    found = [numbers(entry.attempt.prediction.terms) if entry.attempt.prediction else {} for entry in entries]
    peak = {name: max(terms.get(name, 0.0) for terms in found) for terms in found for name in terms}
    names = sorted((name for name in peak if peak[name] > 0), key=lambda name: -peak[name])
    rows = tuple(tuple(terms.get(name, 0.0) / first.cost for name in names) for terms in found)
    return Profile(tuple(names), rows, max((max(row) for row in rows if row), default=1.0)) if names else None


def bar(share: float, largest: float) -> float:
    """Length of a bar in units of BAR."""
    return round(BAR * max(share, 0.0) / largest, 1) if largest > 0 else 0.0
