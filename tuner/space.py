"""Search spaces: the configs of an implementation that its constraints allow, enumerated once with NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from tuner.errors import TemplateError, UsageError

Value = int | str | bool
Array = NDArray[Any]
C = TypeVar("C")

MAX_CONFIGS = 1 << 25  # half a gigabyte of codes and places
_TILE = 1 << 18  # combinations tested at once: the temporaries of a constraint stay in the cache


@dataclass(frozen=True)
class Constraint:
    """A rule with the reason for it.

    `holds` receives an object with one attribute a parameter, each a NumPy array, and returns booleans that
    broadcast with them. It is written with arithmetic, comparisons, `&`, `|`, `~`, `np.where` and `np.isin`:
    `Constraint("one warp owns 16 rows", lambda c: c.threads == 2 * c.BT)`.
    """

    reason: str
    holds: Callable[[Any], bool | Array] = field(repr=False)


class Columns:
    """One attribute a parameter, looked up when it is read."""

    def __init__(self, column: Callable[[str], Array]) -> None:
        self._column = column

    def __getattr__(self, name: str) -> Array:
        return self._column(name)


@dataclass(frozen=True, eq=False)
class Space(Generic[C]):
    """The product of `choices`, less what a constraint refuses; indices follow the order of the product.

    It is enumerated on first use, which raises TemplateError when choices repeat or mix types, or when a constraint
    reads an unknown parameter or cannot be computed on arrays. A space may be empty: its length is 0.
    """

    config_type: type[C]
    choices: Mapping[str, Sequence[Value]]
    constraints: tuple[Constraint, ...] = ()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The parameters, in the order of `choices`."""
        return tuple(self.choices)

    @cached_property
    def raw_size(self) -> int:
        """Combinations before any constraint."""
        return math.prod(len(values) for values in self.choices.values())

    @cached_property
    def codes(self) -> Array:
        """Index of each choice in each valid config: uint8 or uint16 [len(self), parameters]."""
        return self._enumeration[0]

    @property
    def columns(self) -> Columns:
        """The values of all valid configs, one attribute [len(self)] a parameter."""
        return Columns(lambda name: self._values(name)[self.codes[:, self.names.index(name)]])

    def counts(self) -> tuple[tuple[str, int], ...]:
        """What each constraint removes: (reason, combinations), in the order of `constraints`.

        A combination counts once, for the constraint that reads the fewest leading parameters of those that
        refuse it; so the counts and the valid configs add up to `raw_size`.
        """
        return tuple(zip((c.reason for c in self.constraints), self._enumeration[1], strict=True))

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, index: int) -> C:
        row = self.codes[index].tolist()
        return self.config_type(**{name: self.choices[name][code] for name, code in zip(self.names, row, strict=True)})

    def __iter__(self) -> Iterator[C]:
        return (self[index] for index in range(len(self)))

    def index(self, config: C) -> int:
        """The index of `config`; raises UsageError with the reason when it is not in the space."""
        refusal = self.refusal(config)
        if refusal is not None:
            raise UsageError(f"{config} is not in the space: {refusal}")
        row = [list(self.choices[name]).index(getattr(config, name)) for name in self.names]
        return int(np.searchsorted(self._ranks, int(np.dot(row, self._strides))))

    def refusal(self, config: C) -> str | None:
        """Why `config` is not in the space; None when it is."""
        return next(iter(self.refusals(config)), None)

    def refusals(self, config: C) -> tuple[str, ...]:
        """Every reason why `config` is not in the space: values that are no choice, then violated constraints."""
        strangers = [
            f"{name}={getattr(config, name)} is not among {', '.join(map(str, values))}"
            for name, values in self.choices.items()
            if getattr(config, name) not in values
        ]
        # A column of one, not scalars: on a Python bool, ~ would give -2, which is true.
        columns = Columns(lambda name: np.array([getattr(config, name)]))
        return (*strangers, *(c.reason for c in self.constraints if not np.all(c.holds(columns))))

    def neighbours(self, index: int) -> Array:
        """Indices of the valid configs that differ from config `index` in exactly one parameter, ascending."""
        row = self.codes[index].astype(np.int64)
        moves = [
            (np.delete(np.arange(len(values)), code) - code) * stride
            for values, code, stride in zip(self.choices.values(), row, self._strides, strict=True)
        ]
        wanted = np.sort(self._ranks[index] + np.concatenate([np.zeros(0, np.int64), *moves]))
        found: Array = np.minimum(np.searchsorted(self._ranks, wanted), len(self) - 1)
        valid: Array = found[self._ranks[found] == wanted]
        return valid

    @cached_property
    def _strides(self) -> Array:
        """Distance in the product between neighbouring values of each parameter."""
        sizes = [len(values) for values in self.choices.values()]
        return np.array([math.prod(sizes[j + 1 :]) for j in range(len(sizes))], dtype=np.int64)

    @cached_property
    def _ranks(self) -> Array:
        """Place of each valid config in the product, ascending."""
        ranks = np.zeros(len(self), dtype=np.int64)
        for j, stride in enumerate(self._strides):
            ranks += self.codes[:, j].astype(np.int64) * stride
        return ranks

    def _values(self, name: str) -> Array:
        if name not in self.choices:
            raise TemplateError(f"{name!r} is no parameter of this space ({', '.join(self.names)})")
        return np.array(self.choices[name])

    @cached_property
    def _enumeration(self) -> tuple[Array, tuple[int, ...]]:
        """The codes of the valid configs, and the combinations that each constraint removes.

        Parameter after parameter is appended to the prefixes that are still alive; a constraint is tested as soon
        as everything it reads is there, so that a refused prefix is never extended.
        """
        _check_choices(self.choices)
        stages = [self._stage(constraint) for constraint in self.constraints]
        widest = max((len(values) for values in self.choices.values()), default=0)
        prefixes = np.zeros((1, 0), dtype=np.uint8 if widest <= 256 else np.uint16)
        removed = np.zeros(len(self.constraints), dtype=object)  # Python integers: they may pass 2^63
        for stage in range(len(self.names)):
            tested = [k for k, at in enumerate(stages) if at == stage]
            prefixes = self._extend(prefixes, tested, removed)
        return prefixes, tuple(int(count) for count in removed)

    def _stage(self, constraint: Constraint) -> int:
        """Position of the last parameter that the constraint reads, found by letting it read."""
        read = {0}

        def column(name: str) -> Array:
            values = self._values(name)
            read.add(self.names.index(name))
            return np.resize(values, 2)  # two, so that `if` and `and` refuse

        _holds(constraint, Columns(column), (2,))
        return max(read)

    def _extend(self, prefixes: Array, tested: list[int], removed: Array) -> Array:
        """The living prefixes [n, stage] with one more parameter [m, stage + 1]; adds to `removed`."""
        stage = prefixes.shape[1]
        size = len(self.choices[self.names[stage]])
        completions = math.prod(len(self.choices[name]) for name in self.names[stage + 1 :])
        parts, alive = [np.zeros((0, stage + 1), prefixes.dtype)], 0
        step = max(1, _TILE // max(1, size))
        for start in range(0, len(prefixes), step):
            rows = prefixes[start : start + step]
            mask = np.ones((len(rows), size), dtype=bool)
            for k in tested:
                before = np.count_nonzero(mask)
                mask &= _holds(self.constraints[k], self._tile(rows), mask.shape)
                removed[k] += (before - np.count_nonzero(mask)) * completions
            parents, codes = np.nonzero(mask)
            parts.append(np.column_stack((rows[parents], codes.astype(rows.dtype))))
            alive += len(codes)
            if alive > MAX_CONFIGS:
                raise TemplateError(f"the space has over {MAX_CONFIGS:,} configs: take choices away or add constraints")
        return np.concatenate(parts)

    def _tile(self, rows: Array) -> Columns:
        """Values of the prefixes as [n, 1] and of the parameter that comes next as [1, choices]."""
        stage = rows.shape[1]

        def column(name: str) -> Array:
            values, position = self._values(name), self.names.index(name)
            return values[None, :] if position == stage else values[rows[:, position]][:, None]

        return Columns(column)


def _holds(constraint: Constraint, columns: Columns, shape: tuple[int, ...]) -> Array:
    """The constraint's booleans, in `shape`."""
    try:
        result = np.asarray(constraint.holds(columns))
    except (TypeError, ValueError) as error:
        raise TemplateError(
            f"constraint {constraint.reason!r} cannot be computed on arrays ({error}): "
            "write & | ~ for and, or, not; np.where for if; np.minimum for min"
        ) from error
    if result.dtype != np.bool_:
        raise TemplateError(f"constraint {constraint.reason!r} gives {result.dtype}, not booleans: compare its result")
    return np.broadcast_to(result, shape)


def _check_choices(choices: Mapping[str, Sequence[Value]]) -> None:
    for name, values in choices.items():
        if len(set(values)) < len(values):
            raise TemplateError(f"the choices of {name!r} repeat a value: {', '.join(map(str, values))}")
        if len({type(value) for value in values}) > 1:
            raise TemplateError(f"the choices of {name!r} are of several types: {', '.join(map(repr, values))}")
