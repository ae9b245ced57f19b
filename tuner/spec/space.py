"""Search spaces: the configs of an implementation that its constraints allow, enumerated once with NumPy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np

from tuner.arch import Arch
from tuner.errors import TemplateError, UsageError
from tuner.spec.constraint import Array, Columns, Constraint, Value, holds
from tuner.spec.stages import Found, Stages, known

__all__ = ["MAX_CONFIGS", "Array", "Columns", "Constraint", "Space", "Value", "first_fit"]

C = TypeVar("C")

MAX_CONFIGS = 1 << 25  # enumerated: half a gigabyte of codes and places
_ESTIMATED_BY = 1 << 12  # prefixes that decide whether a space is enumerated
_DRAWN_FROM = 1 << 17  # configs of a larger space that draws come from
_LARGEST = 1 << 62  # places in the product are 64-bit integers


def first_fit(configs: Iterable[C], arch: Arch, what: str) -> C:
    """The first of configs that fit. Raises TemplateError where none is: the arch has no room for `what`."""
    for config in configs:
        return config
    raise TemplateError(f"{arch.name} has no room for {what}")


@dataclass(frozen=True, eq=False)
class Space(Generic[C]):
    """The product of `choices`, less what a constraint refuses; indices follow the order of the product.

    It is enumerated on first use, which raises TemplateError when choices repeat or mix types, or when a constraint
    reads an unknown parameter or cannot be computed on arrays. A space may be empty: its length is 0.

    A space of more than MAX_CONFIGS configs is not enumerated: `enumerated` is false. Its indices are places in the
    product and have gaps, its length and counts are estimates from a sample, `draw` gives configs of one uniform
    sample, `neighbours` any valid ones; what needs all configs at once (`codes`, `columns`, iteration) raises
    TemplateError.
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

    @property
    def enumerated(self) -> bool:
        """Whether all valid configs are known, and indices count them from 0."""
        return self._enumeration is not None

    @property
    def codes(self) -> Array:
        """Index of each choice in each valid config: uint8 or uint16 [len(self), parameters]."""
        if self._enumeration is None:
            raise TemplateError(f"the space has about {len(self):,} configs, too many to list: draw some of them")
        return self._enumeration.codes

    @property
    def columns(self) -> Columns:
        """The values of all valid configs, one attribute [len(self)] a parameter."""
        return self._columns(self.codes)

    def codes_of(self, indices: Array) -> Array:
        """Index of each choice in some valid configs: [len(indices), parameters]."""
        if self._enumeration is not None:
            codes: Array = self._enumeration.codes[indices]
            return codes
        sizes = tuple(len(values) for values in self.choices.values())
        return np.stack(np.unravel_index(np.asarray(indices), sizes), axis=-1)

    def draw(self, count: int, rng: np.random.Generator) -> Array:
        """Indices of up to `count` distinct configs, in random order, each as likely as any other."""
        if self._enumeration is not None:
            return rng.choice(len(self), size=min(count, len(self)), replace=False)
        codes = self._codes
        return rng.choice(codes, size=min(count, len(codes)), replace=False)

    def counts(self) -> tuple[tuple[str, int], ...]:
        """What each constraint removes: (reason, combinations), in the order of `constraints`.

        A combination counts once, for the constraint that reads the fewest leading parameters of those that
        refuse it; so the counts and the valid configs add up to `raw_size` (where enumerated; else about).
        """
        removed = [round(count) for count in self._found.removed]
        return tuple(zip((c.reason for c in self.constraints), removed, strict=True))

    def __len__(self) -> int:
        return round(self._found.valid)

    def __getitem__(self, index: int) -> C:
        row = self.codes_of(np.array(index)).tolist()
        return self.config_type(**{name: self.choices[name][code] for name, code in zip(self.names, row, strict=True)})

    def __iter__(self) -> Iterator[C]:
        return (self[index] for index in range(len(self.codes)))

    def index(self, config: C) -> int:
        """The index of `config`; raises UsageError with the reason when it is not in the space."""
        refusal = self.refusal(config)
        if refusal is not None:
            raise UsageError(f"{config} is not in the space: {refusal}")
        row = [list(self.choices[name]).index(getattr(config, name)) for name in self.names]
        code = int(np.dot(row, self._strides))
        return int(np.searchsorted(self._codes, code)) if self.enumerated else code

    def refusal(self, config: C) -> str | None:
        """Why `config` is not in the space; None when it is."""
        strangers = self._strangers(config)  # constraints are asked about declared choices only
        return strangers[0] if strangers else next(iter(self.refusals(config)), None)

    def allowed(self, configs: Iterable[C]) -> Iterator[C]:
        """Those of some configs that are in the space."""
        return (config for config in configs if self.refusal(config) is None)

    def refusals(self, config: C) -> tuple[str, ...]:
        """Every reason why `config` is not in the space: values that are no choice, then violated constraints.

        A constraint that cannot be computed on a value that is no choice says nothing.
        """
        strangers = self._strangers(config)
        # A column of one, not scalars: on a Python bool, ~ would give -2, which is true.
        columns = Columns(lambda name: np.array([getattr(config, known(name, self.names))]))
        kept = (_kept(constraint, columns, strange=bool(strangers)) for constraint in self.constraints)
        return (*strangers, *(c.reason for c, ok in zip(self.constraints, kept, strict=True) if not ok))

    def _strangers(self, config: C) -> list[str]:
        """A sentence for each parameter whose value is no choice; `True` is not the choice 1."""
        chosen = {name: getattr(config, name) for name in self.names}
        return [
            f"{name}={chosen[name]} is not among {', '.join(map(str, values))}"
            for name, values in self.choices.items()
            if chosen[name] not in values or isinstance(chosen[name], bool) is not isinstance(values[0], bool)
        ]

    def neighbours(self, index: int) -> Array:
        """Indices of the valid configs that differ from config `index` in exactly one parameter, ascending."""
        row = self.codes_of(np.array(index)).astype(np.int64)
        moves = [
            (np.delete(np.arange(len(values)), code) - code) * stride
            for values, code, stride in zip(self.choices.values(), row, self._strides, strict=True)
        ]
        wanted = np.sort(np.dot(row, self._strides) + np.concatenate([np.zeros(0, np.int64), *moves]))
        return self._indices_of(wanted)

    def _indices_of(self, codes: Array) -> Array:
        """Indices of the valid ones among some places in the product, in their order."""
        if not self.enumerated:
            columns = self._columns(self.codes_of(codes))
            refused = [~holds(constraint, columns, codes.shape) for constraint in self.constraints]
            valid: Array = codes[~np.logical_or.reduce([np.zeros(codes.shape, bool), *refused])]
            return valid
        positions: Array = np.minimum(np.searchsorted(self._codes, codes), len(self) - 1)
        indices: Array = positions[self._codes[positions] == codes]
        return indices

    def _columns(self, codes: Array) -> Columns:
        """The values of some configs [n, parameters], one attribute [n] a parameter."""
        return Columns(lambda name: self._stages.values(name)[codes[:, self.names.index(name)]])

    @cached_property
    def _strides(self) -> Array:
        """Distance in the product between neighbouring values of each parameter."""
        sizes = [len(values) for values in self.choices.values()]
        return np.array([math.prod(sizes[j + 1 :]) for j in range(len(sizes))], dtype=np.int64)

    @cached_property
    def _codes(self) -> Array:
        """Places in the product, ascending: of each valid config, or of those that draws come from."""
        codes = self._found.codes
        flat = np.zeros(len(codes), dtype=np.int64)
        for j, stride in enumerate(self._strides):
            flat += codes[:, j].astype(np.int64) * stride
        return flat

    @cached_property
    def _stages(self) -> Stages:
        return Stages(self.choices, self.constraints)

    @cached_property
    def _enumeration(self) -> Found | None:
        """All valid configs; None when there are too many, or too many prefixes on the way to them."""
        if self.raw_size > MAX_CONFIGS:
            estimate = self._stages.sample(_ESTIMATED_BY, np.random.default_rng(0))
            if estimate.largest > MAX_CONFIGS:
                return None
        return self._stages.all(MAX_CONFIGS)

    @cached_property
    def _found(self) -> Found:
        """The enumeration, or a sample of a space that is too large for it."""
        return self._enumeration or self._sample()

    def _sample(self) -> Found:
        if self.raw_size > _LARGEST:
            raise TemplateError(f"the space has {self.raw_size:.1e} combinations, over 2^62: take choices away")
        sample = self._stages.sample(_DRAWN_FROM, np.random.default_rng(0))
        if not len(sample.codes):
            raise TemplateError(
                f"no config of a space of {self.raw_size:.1e} combinations passed the constraints by chance: "
                "put the parameters that constrain each other first, or take choices away"
            )
        return sample


def _kept(constraint: Constraint, columns: Columns, *, strange: bool) -> bool:
    """Whether one config keeps a constraint, or it cannot be asked about `strange` values: tables may not hold them."""
    try:
        return bool(holds(constraint, columns, (1,)).all())
    except TemplateError:
        if strange:
            return True
        raise
