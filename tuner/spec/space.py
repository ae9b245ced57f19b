"""Search spaces: the configs of an implementation that satisfy its constraints, enumerated once with NumPy."""

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

MAX_CONFIGS = 1 << 25  # limit for enumeration: half a gigabyte of codes and positions
_ESTIMATED_BY = 1 << 12  # prefixes used to estimate whether a space can be enumerated
_DRAWN_FROM = 1 << 17  # sample size of a larger space, from which configs are drawn
_LARGEST = 1 << 62  # positions in the product are 64-bit integers


def first_fit(configs: Iterable[C], arch: Arch, what: str) -> C:
    """Return the first config that fits. Raises TemplateError if none does: the arch has no room for `what`."""
    for config in configs:
        return config
    raise TemplateError(f"{arch.name} has no room for {what}")


@dataclass(frozen=True, eq=False)
class Space(Generic[C]):
    """The product of `choices` without the configs that a constraint refuses; indices follow the order of the product.

    It is enumerated on first use, which raises TemplateError when choices repeat or mix types, or when a constraint
    reads an unknown parameter or cannot be computed on arrays. A space may be empty: its length is 0.

    A space of more than MAX_CONFIGS configs is not enumerated: `enumerated` is false. Its indices are positions in the
    product and have gaps, its length and counts are estimates from a sample, `draw` gives configs of one uniform
    sample, `neighbours` any valid ones; what needs all configs at once (`codes`, `columns`, iteration) raises
    TemplateError.
    """

    config_type: type[C]
    choices: Mapping[str, Sequence[Value]]
    constraints: tuple[Constraint, ...] = ()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters, in the order of `choices`."""
        return tuple(self.choices)

    @cached_property
    def raw_size(self) -> int:
        """Number of combinations before any constraint."""
        return math.prod(len(values) for values in self.choices.values())

    @property
    def enumerated(self) -> bool:
        """Whether all valid configs are enumerated, so that indices count from 0 without gaps."""
        return self._enumeration is not None

    @property
    def codes(self) -> Array:
        """Index of each choice in each valid config: uint8 or uint16 [len(self), parameters]."""
        if self._enumeration is None:
            raise TemplateError(f"the space has about {len(self):,} configs, too many to enumerate: use draw")
        return self._enumeration.codes

    @property
    def columns(self) -> Columns:
        """The values of all valid configs, one attribute of shape [len(self)] per parameter."""
        return self._columns(self.codes)

    def codes_of(self, indices: Array) -> Array:
        """Return the choice indices of the given configs: [len(indices), parameters]."""
        if self._enumeration is not None:
            codes: Array = self._enumeration.codes[indices]
            return codes
        sizes = tuple(len(values) for values in self.choices.values())
        return np.stack(np.unravel_index(np.asarray(indices), sizes), axis=-1)

    def draw(self, count: int, rng: np.random.Generator) -> Array:
        """Return indices of up to `count` distinct configs, drawn uniformly in random order."""
        if self._enumeration is not None:
            return rng.choice(len(self), size=min(count, len(self)), replace=False)
        codes = self._codes
        return rng.choice(codes, size=min(count, len(codes)), replace=False)

    def counts(self) -> tuple[tuple[str, int], ...]:
        """Combinations that each constraint removes: (reason, count), in the order of `constraints`.

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
        """Return the index of `config`. Raises UsageError with the reason if it is not in the space."""
        refusal = self.refusal(config)
        if refusal is not None:
            raise UsageError(f"{config} is not in the space: {refusal}")
        row = [list(self.choices[name]).index(getattr(config, name)) for name in self.names]
        code = int(np.dot(row, self._strides))
        return int(np.searchsorted(self._codes, code)) if self.enumerated else code

    def refusal(self, config: C) -> str | None:
        """Return why `config` is not in the space; None if it is."""
        strangers = self._strangers(config)  # constraints are evaluated on declared choices only
        return strangers[0] if strangers else next(iter(self.refusals(config)), None)

    def allowed(self, configs: Iterable[C]) -> Iterator[C]:
        """Yield the configs that are in the space."""
        return (config for config in configs if self.refusal(config) is None)

    def refusals(self, config: C) -> tuple[str, ...]:
        """Return every reason why `config` is not in the space: undeclared values, then violated constraints.

        A constraint that cannot be evaluated on an undeclared value is skipped.
        """
        strangers = self._strangers(config)
        # An array of one element instead of scalars: on a Python bool, ~ would give -2, which is true.
        columns = Columns(lambda name: np.array([getattr(config, known(name, self.names))]))
        kept = (_kept(constraint, columns, strange=bool(strangers)) for constraint in self.constraints)
        return (*strangers, *(c.reason for c, ok in zip(self.constraints, kept, strict=True) if not ok))

    def _strangers(self, config: C) -> list[str]:
        """Return one sentence per parameter whose value is not a choice; `True` does not equal the choice 1."""
        chosen = {name: getattr(config, name) for name in self.names}
        return [
            f"{name}={chosen[name]} is not among {', '.join(map(str, values))}"
            for name, values in self.choices.items()
            if chosen[name] not in values or isinstance(chosen[name], bool) is not isinstance(values[0], bool)
        ]

    def neighbours(self, index: int) -> Array:
        """Return the indices of valid configs that differ from config `index` in exactly one parameter, ascending."""
        row = self.codes_of(np.array(index)).astype(np.int64)
        moves = [
            (np.delete(np.arange(len(values)), code) - code) * stride
            for values, code, stride in zip(self.choices.values(), row, self._strides, strict=True)
        ]
        wanted = np.sort(np.dot(row, self._strides) + np.concatenate([np.zeros(0, np.int64), *moves]))
        return self._indices_of(wanted)

    def _indices_of(self, codes: Array) -> Array:
        """Return the indices of the valid configs among positions in the product, in order."""
        if not self.enumerated:
            columns = self._columns(self.codes_of(codes))
            refused = [~holds(constraint, columns, codes.shape) for constraint in self.constraints]
            valid: Array = codes[~np.logical_or.reduce([np.zeros(codes.shape, bool), *refused])]
            return valid
        positions: Array = np.minimum(np.searchsorted(self._codes, codes), len(self) - 1)
        indices: Array = positions[self._codes[positions] == codes]
        return indices

    def _columns(self, codes: Array) -> Columns:
        """Return the values of configs [n, parameters], one attribute of shape [n] per parameter."""
        return Columns(lambda name: self._stages.values(name)[codes[:, self.names.index(name)]])

    @cached_property
    def _strides(self) -> Array:
        """Distance in the product between adjacent values of each parameter."""
        sizes = [len(values) for values in self.choices.values()]
        return np.array([math.prod(sizes[j + 1 :]) for j in range(len(sizes))], dtype=np.int64)

    @cached_property
    def _codes(self) -> Array:
        """Positions in the product of the valid configs, or of the sample, ascending."""
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
        """All valid configs; None if there are too many configs or intermediate prefixes."""
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
            raise TemplateError(f"the space has {self.raw_size:.1e} combinations, over 2^62: remove choices")
        sample = self._stages.sample(_DRAWN_FROM, np.random.default_rng(0))
        if not len(sample.codes):
            raise TemplateError(
                f"no config of a space of {self.raw_size:.1e} combinations passed the constraints by chance: "
                "put the parameters that constrain each other first, or remove choices"
            )
        return sample


def _kept(constraint: Constraint, columns: Columns, *, strange: bool) -> bool:
    """Return whether a config satisfies a constraint; True if an undeclared (`strange`) value makes it fail to
    evaluate.
    """
    try:
        return bool(holds(constraint, columns, (1,)).all())
    except TemplateError:
        if strange:
            return True
        raise
