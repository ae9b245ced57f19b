"""A recorded space: every config of a kernel with its value or failure, usable as `evaluate` of a search."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from typing import Any

import numpy as np

from tuner.errors import UsageError
from tuner.spec.space import Array, Columns, Constraint, Space, Value


@dataclass(frozen=True, slots=True)
class Row:
    """One recorded config."""

    config: Mapping[str, Value]
    value: float | None  # lower is better; None if it failed
    samples: tuple[float, ...] = ()  # the measurements behind the value
    failure: str = ""  # the stage that failed: compile, runtime, correctness, timeout


@dataclass(frozen=True, eq=False)
class Recording:
    """A space with known values: index → value."""

    name: str
    space: Space[Any]
    values: Array  # [configs]; NaN if it failed
    samples: tuple[tuple[float, ...], ...]  # [configs]

    @property
    def optimum(self) -> float:
        """The best value in the recording."""
        return float(np.nanmin(self.values))

    def evaluate(self, rng: np.random.Generator | None) -> Callable[[int], float | None]:
        """Return a function that returns one recorded sample of a config, drawn by `rng`, or its value without
        `rng`.
        """

        def evaluate(index: int) -> float | None:
            if np.isnan(self.values[index]):
                return None
            if rng is None or not self.samples[index]:
                return float(self.values[index])
            return float(rng.choice(self.samples[index]))

        return evaluate


def recording(name: str, rows: Sequence[Row], space: Space[Any] | None = None) -> Recording:
    """Build a recording from rows; the last row of a config counts.

    Without a `space`, the parameters are those that vary, and the space contains exactly the recorded configs. With
    one, its configs without a row count as failed, and rows outside it are ignored. Raises UsageError if no row has a
    value and, without a `space`, if rows have different parameters or there is only one config.
    """
    if all(row.value is None for row in rows):
        raise UsageError(f"{name} holds no config with a value: nothing to search for")
    if space is not None:
        return _within(name, rows, space)
    if len({frozenset(row.config) for row in rows}) > 1:
        raise UsageError(f"{name} holds configs of unlike parameters: those of several kernels do not compare")
    names = [key for key in rows[0].config if len({row.config[key] for row in rows}) > 1]
    if not names:
        raise UsageError(f"{name} holds one config: nothing to search for")
    rows = list({tuple(row.config[key] for key in names): row for row in rows}.values())
    choices = {key: sorted({row.config[key] for row in rows}) for key in names}
    codes = np.array([[choices[key].index(row.config[key]) for key in names] for row in rows])
    order = np.lexsort(codes.T[::-1])
    values = [np.nan if rows[i].value is None else rows[i].value for i in order]
    exactly: Space[Any] = Space(make_dataclass("Recorded", names, frozen=True), choices, _recorded(choices, codes))
    return Recording(name, exactly, np.array(values, dtype=float), tuple(rows[i].samples for i in order))


def _within(name: str, rows: Sequence[Row], space: Space[Any]) -> Recording:
    indices = indices_of([row.config for row in rows], space)
    values = np.full(len(space.codes), np.nan)
    samples: list[tuple[float, ...]] = [()] * len(space)
    for index, row in zip(indices, rows, strict=True):
        if index is not None:
            values[index], samples[index] = (np.nan if row.value is None else row.value), row.samples
    if np.all(np.isnan(values)):
        raise UsageError(f"{name} holds no config with a value in the space of {', '.join(space.names)}")
    return Recording(name, space, values, tuple(samples))


def indices_of(configs: Sequence[Mapping[str, Value]], space: Space[Any]) -> list[int | None]:
    """Return the index of each config in a space with the same parameters, some of them fixed; None outside the space.

    Raises UsageError if a config lacks a parameter of the space.
    """
    lacking = sorted({name for config in configs for name in space.names if name not in config})
    if lacking:
        raise UsageError(f"the configs have no {', '.join(lacking)}: another kernel, or parameters that were fixed")
    typed = [space.config_type(**{name: config[name] for name in space.names}) for config in configs]
    return [space.index(config) if space.refusal(config) is None else None for config in typed]


def _recorded(choices: Mapping[str, Sequence[Value]], codes: Array) -> tuple[Constraint, ...]:
    """Return constraints that allow exactly the configs with these codes [configs, parameters], one per prefix."""
    names, sizes = list(choices), [len(values) for values in choices.values()]
    return tuple(
        Constraint("not in the recording", _membership({name: choices[name] for name in names[:k]}, codes[:, :k]))
        for k in range(1, len(sizes) + 1)
    )


def _membership(choices: Mapping[str, Sequence[Value]], codes: Array) -> Callable[[Columns], Array]:
    """Return a function that tests whether the columns together occur among the rows of `codes`."""
    sizes = tuple(len(values) for values in choices.values())
    members = np.unique(np.ravel_multi_index(tuple(codes.T), sizes))

    def holds(columns: Columns) -> Array:
        codes_of_columns = [np.searchsorted(values, getattr(columns, name)) for name, values in choices.items()]
        return np.isin(np.ravel_multi_index(tuple(np.broadcast_arrays(*codes_of_columns)), sizes, mode="clip"), members)

    return holds
