"""Model coordinates of configs: axes for sizes, alignments and categories, looked up by code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tuner.spec.space import Array, Space, Value

# Typical length scales on axes of length 1, up to twice those fitted to hundreds of results: after its first dozen
# results a model learns faster if it assumes that they generalise (benchmarks/README.md).
_SIZE_SCALE = 1.5
_ALIGNMENT_SCALE = 3.0
_CATEGORY_SCALE = 6.0  # between categories, whose distance is 1, and between the two values of a switch
_KEPT = 20_000  # the coordinates of a space with at most this many configs are computed once
_MOST_ALIGNED = 8  # 2^8: no instruction or cache line requires more


@dataclass(frozen=True, eq=False)
class Axis:
    """An axis with one length scale: a table indexed by one parameter's code."""

    parameter: int
    table: Array  # [choices, width]
    typical_scale: float


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Configs as points for a stationary kernel.

    Two categories are at distance 1, regardless of their values.
    """

    space: Space[Any]
    axes: tuple[Axis, ...]

    def of(self, indices: Array) -> Array:
        """Return coordinates of configs: float32 [len(indices), width]."""
        return self._compute(indices) if len(self.space) > _KEPT else self._all[indices]

    @cached_property
    def axis_of_column(self) -> Array:
        """The axis of each of the `width` columns, ascending."""
        return np.repeat(np.arange(len(self.axes)), [axis.table.shape[1] for axis in self.axes])

    @cached_property
    def typical_scales(self) -> Array:
        """The expected length scale of each axis before any result."""
        return np.array([axis.typical_scale for axis in self.axes])

    @cached_property
    def _all(self) -> Array:
        return self._compute(np.arange(len(self.space)))

    def _compute(self, indices: Array) -> Array:
        codes = self.space.codes_of(indices)
        blocks = [axis.table[codes[:, axis.parameter]] for axis in self.axes]
        return np.concatenate(blocks, axis=1, dtype=np.float32)


def coordinates(space: Space[Any]) -> Coordinates:
    """Return the coordinates of a space's valid configs."""
    choices = [list(values) for values in space.choices.values()]
    numbers = [j for j, values in enumerate(choices) if len(values) > 1 and not isinstance(values[0], str)]
    axes = [
        *(Axis(j, _unit(_sizes(choices[j])), _size_scale(choices[j])) for j in numbers),
        *(Axis(j, _unit(_alignments(choices[j])), _ALIGNMENT_SCALE) for j in numbers if _varies_apart(choices[j])),
        *(Axis(j, _categories(len(choices[j])), _CATEGORY_SCALE) for j in _unordered(choices)),
    ]
    return Coordinates(space, tuple(axes))


def _unordered(choices: Sequence[Sequence[Value]]) -> list[int]:
    """Return the parameters with a category axis: names, and numbers whose values may matter beyond their size."""
    return [j for j, values in enumerate(choices) if len(values) >= (2 if isinstance(values[0], str) else 3)]


def _sizes(values: Sequence[Value]) -> Array:
    """Return numbers in model units: sizes that span a factor of four or more by their logarithm."""
    numbers = np.array(values, dtype=float)
    return np.log2(numbers) if numbers.min() > 0 and numbers.max() >= 4 * numbers.min() else numbers


def _size_scale(values: Sequence[Value]) -> float:
    return _SIZE_SCALE if len(values) > 2 else _CATEGORY_SCALE


def _alignments(values: Sequence[Value]) -> Array:
    """Return the number of times that 2 divides each number."""
    return np.array([min((int(v) & -int(v)).bit_length() - 1, _MOST_ALIGNED) for v in values], dtype=float)


def _varies_apart(values: Sequence[Value]) -> bool:
    """Return whether alignment carries information beyond size."""
    if len(values) < 5 or min(map(int, values)) <= 0:
        return False
    steps = np.diff(_alignments(sorted(values, key=int)))
    return bool(np.any(steps != 0) and not np.all(steps > 0))


def _categories(count: int) -> Array:
    corners: Array = np.eye(count) * np.sqrt(0.5)
    return corners


def _unit(values: Array) -> Array:
    """Return values scaled to [0, 1], as a table [choices, 1]."""
    table: Array = ((values - values.min()) / np.ptp(values))[:, None]
    return table
