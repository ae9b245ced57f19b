"""The valid set in stages: parameter after parameter, each constraint tested as soon as all that it reads is there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tuner.errors import TemplateError
from tuner.spec.constraint import Array, Columns, Constraint, Value, holds

_TILE = 1 << 18  # combinations tested at once: the temporaries of a constraint stay in the cache


@dataclass(frozen=True, eq=False)
class Found:
    """Valid configs, and what each constraint removed."""

    codes: Array  # [configs, parameters], in the order of the product
    valid: float  # how many there are: all of `codes`, or an estimate where these are a sample
    largest: float  # the most prefixes alive at one stage
    removed: tuple[float, ...]  # combinations, one a constraint


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
        """Every valid config; None when more than `at_most` prefixes are alive at a stage."""
        return self._run(at_most, None)

    def sample(self, width: int, rng: np.random.Generator) -> Found:
        """About `width` valid configs, each valid config being as likely as any other, and estimates of the rest.

        After each stage at most `width` prefixes live on, drawn uniformly. The estimate multiplies the growth of the
        stages, and is unbiased (Knuth 1975, "Estimating the efficiency of backtrack programs").
        """
        rows = self._run(width, rng)
        assert rows is not None
        return rows

    def values(self, name: str) -> Array:
        """The choices of a parameter; raises TemplateError when there is no such parameter."""
        return np.array(self.choices[known(name, self._names)])

    def _run(self, width: int, rng: np.random.Generator | None) -> Found | None:
        widest = max((len(values) for values in self.choices.values()), default=0)
        prefixes = np.zeros((1, 0), dtype=np.uint8 if widest <= 256 else np.uint16)
        stands_for: float = 1  # alive prefixes for one of `prefixes`; an integer until prefixes are dropped
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
        """The living among `prefixes` [n, stage] with one more parameter, tile by tile, and what was refused there.

        What was refused is (constraint, combinations of all parameters).
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
        """Values of the prefixes as [n, 1] and of the parameter that comes next as [1, choices]."""
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
        """For each constraint the position of the last parameter that it reads, found by letting it read."""
        return tuple(self._last(constraint) for constraint in self.constraints)

    def _last(self, constraint: Constraint) -> int:
        read = {0}

        def column(name: str) -> Array:
            values = self.values(name)
            read.add(self._names.index(name))
            return np.resize(values, 2)  # two, so that `if` and `and` refuse

        holds(constraint, Columns(column), (2,))
        return max(read)


def known(name: str, names: tuple[str, ...]) -> str:
    """The name of a parameter. Raises TemplateError when there is no such one."""
    if name not in names:
        raise TemplateError(f"{name!r} is no parameter of this space ({', '.join(names)})")
    return name
