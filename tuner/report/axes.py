"""Axes of the figures: values to coordinates, round ticks, and short SVG paths."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

Scale = Callable[[float], float]
CEILING = 4.0  # values above this many times the best are drawn at the edge, or they would flatten all the others
_STEPS = (1, 2, 5, 1.5, 3, 4, 7, 1.2, 2.5, 3.5, 6, 8, 1.1, 1.3, 1.7, 4.5, 9, 2.25, 2.75)  # the roundest first
_TICK_DISTANCE = 22


@dataclass(frozen=True, slots=True)
class Tick:
    at: float
    label: str


@dataclass(frozen=True, slots=True)
class ValueAxis:
    """A logarithmic axis from the lowest value to a ceiling."""

    scale: Scale
    ceiling: float
    ticks: tuple[Tick, ...]

    def at(self, value: float) -> float:
        return self.scale(min(value, self.ceiling))


def value_axis(
    values: Sequence[float], best_at: float, worst_at: float, *, unit: float = 1.0, suffix: str = ""
) -> ValueAxis:
    """From coordinate `best_at` for the lowest value to `worst_at`; tick labels count in `unit`."""
    best, worst = min(values, default=1.0), max(values, default=1.0)
    ceiling = max(min(worst, CEILING * best) if best > 0 else worst, best + (abs(best) or 1.0) / 50)
    scale = log(best, ceiling, best_at, worst_at)
    round_values = _round_values(best / unit, ceiling / unit)
    return ValueAxis(scale, ceiling, _apart(Tick(round(scale(v * unit), 1), f"{v:.4g}{suffix}") for v in round_values))


def linear(low: float, high: float, start: float, end: float) -> Scale:
    return lambda value: start + (value - low) / (high - low) * (end - start)


def log(low: float, high: float, start: float, end: float) -> Scale:
    """Logarithmic, or linear where the values are not positive."""
    if low <= 0:
        return linear(low, high, start, end)
    inner = linear(math.log(low), math.log(high), start, end)
    return lambda value: inner(math.log(value))


def whole_ticks(n: int) -> tuple[int, ...]:
    """About eight round numbers from 1 to n."""
    if n <= 8:
        return tuple(range(1, n + 1))
    step = next(s * 10**e for e in range(9) for s in (1, 2, 5) if n / (s * 10**e) <= 8)
    return (1, *range(max(step, 2), n + 1, step))


def _round_values(low: float, high: float) -> list[float]:
    """Values worth a label, the roundest first; a narrow or non-positive range has even steps."""
    if low <= 0 or high / low < 1.3:
        step = next(size for size in _falling(high - low) if (high - low) / size >= 3)
        return [n * step for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = (step * 10.0**decade for step in _STEPS for decade in decades)
    return [value for value in values if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]


def _falling(span: float) -> Iterator[float]:
    """1, 0.5, 0.2, 0.1 … times the power of ten of `span`."""
    top = 10.0 ** math.floor(math.log10(span))
    return (top * step / 10**power for power in range(4) for step in (1, 0.5, 0.2))


def _apart(ticks: Iterable[Tick]) -> tuple[Tick, ...]:
    """The ticks whose labels do not touch an earlier one's."""
    found: list[Tick] = []
    for tick in ticks:
        if all(abs(tick.at - other.at) >= _TICK_DISTANCE for other in found):
            found.append(tick)
    return tuple(found)


Point = tuple[float, float]


def dots(points: Iterable[Point]) -> str:
    """Zero-length strokes, which round line caps make into dots: a tenth of the text of circles."""
    return "".join(f"M{_number(x)} {_number(y)}h0" for x, y in points)


def crosses(points: Iterable[Point]) -> str:
    return "".join(f"M{_number(x - 3)} {_number(y - 3)}l6 6m0-6l-6 6" for x, y in points)


def triangles(points: Iterable[Point]) -> str:
    return "".join(f"M{_number(x - 4)} {_number(y + 4)}l4-7 4 7z" for x, y in points)


def polyline(points: Iterable[Point]) -> str:
    return "M" + "L".join(f"{_number(x)} {_number(y)}" for x, y in points)


def staircase(points: Sequence[Point]) -> str:
    """Level until the next change."""
    if not points:
        return ""
    (x, level), path = points[0], polyline(points[:1])
    for x, y in points[1:]:
        if y != level:
            path, level = f"{path}H{_number(x)}V{_number(y)}", y
    return f"{path}H{_number(x + 4)}"


def _number(value: float) -> str:
    """One decimal, no trailing zero: the tenth of a pixel that nobody sees would double the text."""
    return f"{value:.1f}".removesuffix(".0")
