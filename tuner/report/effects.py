"""The effect of each parameter of the winner's implementation on the value: per value, in which direction, and by how
much.

Configs were chosen by a search and are not a random sample, so these are descriptions of what was tried.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from tuner.base.fields import Scalar
from tuner.report.section import Section
from tuner.report.standing import Entry, parameters

_CLEAR = 0.25  # absolute rank correlation from which a direction is reported
_ENOUGH = 8  # configs


@dataclass(frozen=True, slots=True)
class ValueEffect:
    """The configs that share one value of a parameter; `median` and `worst` are relative to the winner."""

    value: Scalar | None
    count: int
    best: Entry
    median: float
    worst: float


@dataclass(frozen=True, slots=True)
class Effect:
    """A parameter that varies. `values` are in ascending order; `trend` is Spearman's rank correlation of the parameter
    with the value to be minimised, None if the parameter has no order or too few configs were tried.
    """

    parameter: str
    chosen: Scalar | None  # by the winner
    values: tuple[ValueEffect, ...]
    trend: float | None

    @property
    def alternative(self) -> ValueEffect | None:
        """The value with the best config among those that the winner does not have."""
        others = [effect for effect in self.values if effect.value != self.chosen]
        return min(others, key=lambda effect: effect.best.rank, default=None)

    @property
    def direction(self) -> str:
        """`larger is better`, `off is better`, or `no clear direction`."""
        if self.trend is None or abs(self.trend) < _CLEAR:
            return "no clear direction"
        kinds = {type(effect.value) for effect in self.values}
        low, high = ("off", "on") if kinds == {bool} else ("smaller", "larger")
        return f"{high if self.trend < 0 else low} is better"


def effects(section: Section) -> tuple[Effect, ...]:
    """Return the parameters of the winner's implementation that vary among its successful configs."""
    if not section.entries:
        return ()
    entries = own_entries(section)
    names = parameters(entry.attempt.config for entry in entries)
    candidates = (_effect(name, entries) for name in names)
    return tuple(effect for effect in candidates if len(effect.values) > 1)


def own_entries(section: Section) -> list[Entry]:
    """Return the successful configs of the winner's implementation, best first."""
    implementation = section.entries[0].attempt.identity.implementation
    return [entry for entry in section.entries if entry.attempt.identity.implementation == implementation]


def value_order(value: Scalar | None) -> tuple[int, float, str]:
    """A sort key: absent values first, then numbers by size, then text."""
    if value is None:
        return (0, 0.0, "")
    return (2, 0.0, value) if isinstance(value, str) else (1, float(value), "")


def _effect(name: str, entries: Sequence[Entry]) -> Effect:
    groups: dict[Scalar | None, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.attempt.config.get(name), []).append(entry)
    values = tuple(_value_effect(value, groups[value]) for value in sorted(groups, key=value_order))
    return Effect(name, entries[0].attempt.config.get(name), values, _trend(name, entries))


def _value_effect(value: Scalar | None, entries: Sequence[Entry]) -> ValueEffect:
    best = min(entries, key=lambda entry: entry.rank)
    relative = [entry.relative for entry in entries]
    return ValueEffect(value, len(entries), best, median(relative), max(relative))


def _trend(name: str, entries: Sequence[Entry]) -> float | None:
    pairs = [(entry.attempt.config.get(name), entry.value) for entry in entries]
    numeric = [(float(value), cost) for value, cost in pairs if isinstance(value, int | float)]
    if len(numeric) < max(_ENOUGH, len(pairs)):
        return None
    return rank_correlation([value for value, _ in numeric], [cost for _, cost in numeric])


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation, with average ranks for equal values; None if either is constant."""
    a, b = _ranks(first), _ranks(second)
    a, b = a - a.mean(), b - b.mean()
    norm = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / norm if norm else None


def _ranks(values: Sequence[float]) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    _, inverse, counts = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2)[inverse], dtype=np.float64)
