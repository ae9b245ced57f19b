"""Staged enumeration of valid configs: each constraint is tested as soon as all parameters that it reads are
present.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tuner.errors import TemplateError
from tuner.spec.constraint import Array, Columns, Constraint, Value, holds

_TILE = 1 << 18  # combinations per tile: the temporaries of a constraint stay in the cache


@dataclass(frozen=True, eq=False)
class Found:
    """Valid configs, and the combinations that each constraint removed."""

    codes: Array  # [configs, parameters], in product order
    valid: float  # number of valid configs; an estimate if `codes` is a sample
    largest: float  # maximum number of prefixes at any stage
    removed: tuple[float, ...]  # combinations removed per constraint


@dataclass(frozen=True, eq=False)
class Stages:
    """Extends prefixes of configs by one parameter at a time; a refused prefix is never extended.

    Raises TemplateError when choices repeat or mix types, or a constraint reads an unknown parameter or cannot be
    computed on arrays.
    """

    choices: Mapping[str, Sequence[Value]]
    constraints: tuple[Constraint, ...]

    def __post_init__(self) -> None:
        for name, values in self.choices.items():
            if len(set(values)) < len(values):
                raise TemplateError(f"the choices of {name!r} repeat a value: {', '.join(map(str, values))}")
            if len({type(value) for value in values}) > 1:
                raise TemplateError(f"the choices of {name!r} are of several types: {', '.join(map(repr, values))}")

    def all(self, at_most: int) -> Found | None:
        """Return every valid config; None if more than `at_most` prefixes survive a stage."""
        return self._run(at_most, None)

    def sample(self, width: int, rng: np.random.Generator) -> Found:
        """Draw about `width` valid configs uniformly, with estimates for the whole space.

        After each stage at most `width` prefixes are kept, drawn uniformly. The estimate multiplies the growth of the
        stages, and is unbiased (Knuth 1975, "Estimating the efficiency of backtrack programs").
        """
        rows = self._run(width, rng)
        assert rows is not None
        return rows

    def values(self, name: str) -> Array:
        """Return the choices of a parameter. Raises TemplateError if it does not exist."""
        return np.array(self.choices[known(name, self._names)])

    def _run(self, width: int, rng: np.random.Generator | None) -> Found | None:
        widest = max((len(values) for values in self.choices.values()), default=0)
        prefixes = np.zeros((1, 0), dtype=np.uint8 if widest <= 256 else np.uint16)
        stands_for: float = 1  # number of surviving prefixes per kept prefix; an integer until prefixes are dropped
        largest: float = 1
        removed: list[float] = [0] * len(self.constraints)
        for stage in range(len(self._names)):
            parts, alive = [np.zeros((0, stage + 1), prefixes.dtype)], 0
            for part, refused in self._extended(prefixes, stage):
                for k, count in refused:
                    removed[k] += count * stands_for
                parts.append(part)
                alive += len(part)
                if rng is None and alive > width:
                    return None
            prefixes, largest = np.concatenate(parts), max(largest, alive * stands_for)
            if rng is not None and alive > width:
                prefixes = prefixes[np.sort(rng.choice(alive, size=width, replace=False))]
                stands_for *= alive / width
        return Found(prefixes, len(prefixes) * stands_for, largest, tuple(removed))

    def _extended(self, prefixes: Array, stage: int) -> Iterator[tuple[Array, list[tuple[int, int]]]]:
        """Yield the valid extensions of `prefixes` [n, stage] by one parameter, tile by tile, with the refused counts.

        A refused count is (constraint, combinations of all parameters).
        """
        size = len(self.choices[self._names[stage]])
        completions = math.prod(len(self.choices[name]) for name in self._names[stage + 1 :])
        tested = [k for k, at in enumerate(self._last_read) if at == stage]
        step = max(1, _TILE // max(1, size))
        for start in range(0, len(prefixes), step):
            rows = prefixes[start : start + step]
            mask = np.ones((len(rows), size), dtype=bool)
            refused = []
            for k in tested:
                before = int(np.count_nonzero(mask))
                mask &= holds(self.constraints[k], self._tile(rows), mask.shape)
                refused.append((k, (before - int(np.count_nonzero(mask))) * completions))
            parents, codes = np.nonzero(mask)
            yield np.column_stack((rows[parents], codes.astype(rows.dtype))), refused

    def _tile(self, rows: Array) -> Columns:
        """Return the values of the prefixes as [n, 1] and of the next parameter as [1, choices]."""
        stage = rows.shape[1]

        def column(name: str) -> Array:
            values, position = self.values(name), self._names.index(name)
            return values[None, :] if position == stage else values[rows[:, position]][:, None]

        return Columns(column)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(self.choices)

    @cached_property
    def _last_read(self) -> tuple[int, ...]:
        """Position of the last parameter that each constraint reads, found by evaluating it."""
        return tuple(self._last(constraint) for constraint in self.constraints)

    def _last(self, constraint: Constraint) -> int:
        read = {0}

        def column(name: str) -> Array:
            values = self.values(name)
            read.add(self._names.index(name))
            return np.resize(values, 2)  # two elements, so that `if` and `and` raise an error

        holds(constraint, Columns(column), (2,))
        return max(read)


def known(name: str, names: tuple[str, ...]) -> str:
    """Return the name of a parameter. Raises TemplateError if it does not exist."""
    if name not in names:
        raise TemplateError(f"{name!r} is not a parameter of this space ({', '.join(names)})")
    return name
