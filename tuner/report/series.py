"""Geometry of the figures of a comparison: lines over a size, and bars side by side; reports/bench.html.jinja draws."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.report import axes
from tuner.report.axes import Tick
from tuner.report.charts import WIDTH

_TOP, _BOTTOM, _LEFT, _RIGHT = 24.0, 330.0, 64.0, WIDTH - 230.0
_LABEL_DISTANCE = 15.0
_BARS_LEFT, _BARS_RIGHT, _BAR_DISTANCE = 250.0, WIDTH - 90.0, 26.0
_STYLES = 6  # that the style sheet tells apart by dashes


@dataclass(frozen=True, slots=True)
class Series:
    """Values by size, both positive."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    style: int
    path: str
    dots: str
    end: tuple[float, float]
    label_at: float  # height, at the right edge; beside `end` where the line ends before the last size


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines on logarithmic axes, each with its name at its end."""

    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[Line, ...]
    left: float
    right: float
    top: float
    bottom: float
    height: float


@dataclass(frozen=True, slots=True)
class Bar:
    name: str
    at: float
    end: float
    low: float
    high: float
    value: str


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars from zero, with the intervals of their values."""

    bars: tuple[Bar, ...]
    left: float
    height: float


def lines(series: Sequence[Series]) -> Lines | None:
    """None where fewer than two sizes have a value."""
    drawn = [each for each in series if each.points]
    sizes = sorted({size for each in drawn for size, _ in each.points})
    if len(sizes) < 2:
        return None
    values = [value for each in drawn for _, value in each.points]
    x = axes.log(sizes[0], sizes[-1], _LEFT, _RIGHT)
    lowest, highest = min(values), max(max(values), 1.01 * min(values))
    y = axes.log(lowest, highest, _BOTTOM - 10, _TOP + 10)
    ends = {each.name: (x(each.points[-1][0]), y(each.points[-1][1])) for each in drawn}
    places = {name: end[1] for name, end in ends.items()}
    places |= _apart({name: at for name, at in places.items() if ends[name][0] == x(sizes[-1])})
    return Lines(
        x_ticks=tuple(Tick(x(size), f"{size:g}") for size in sizes),
        y_ticks=tuple(Tick(y(value), f"{value:g}") for value in _decades(lowest, highest)),
        lines=tuple(
            Line(
                name=each.name,
                style=i % _STYLES,
                path=axes.polyline((x(size), y(value)) for size, value in each.points),
                dots=axes.dots((x(size), y(value)) for size, value in each.points),
                end=ends[each.name],
                label_at=places[each.name],
            )
            for i, each in enumerate(drawn)
        ),
        left=_LEFT,
        right=_RIGHT,
        top=_TOP,
        bottom=_BOTTOM,
        height=max(_BOTTOM + 40, _TOP + _LABEL_DISTANCE * len(drawn)),
    )


def bars(named: Sequence[tuple[str, float, float, float]], unit: str) -> Bars:
    """`named` is (name, value, low, high) a bar, values of one unit."""
    longest = max((high for _, _, _, high in named), default=1.0) or 1.0
    x = axes.linear(0.0, longest, _BARS_LEFT, _BARS_RIGHT)
    drawn = tuple(
        Bar(name, _TOP + i * _BAR_DISTANCE, x(value), x(low), x(high), f"{value:.4g} {unit}")
        for i, (name, value, low, high) in enumerate(named)
    )
    return Bars(drawn, _BARS_LEFT, _TOP + len(named) * _BAR_DISTANCE)


def _decades(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten, or the powers alone where these are many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if len(powers) <= 4 else (1,)
    found = [step * 10.0**power for power in powers for step in steps]
    return [value for value in found if low * 0.999 <= value <= high * 1.001]


def _apart(wanted: dict[str, float]) -> dict[str, float]:
    """Heights near the wanted ones, from the top down, with room for a label each."""
    found: dict[str, float] = {}
    last = _TOP - _LABEL_DISTANCE
    for name in sorted(wanted, key=wanted.__getitem__):
        last = found[name] = max(wanted[name], last + _LABEL_DISTANCE)
    lifted = min(max(last - _BOTTOM, 0.0), min(found.values(), default=_TOP) - _TOP)
    return {name: at - lifted for name, at in found.items()}
