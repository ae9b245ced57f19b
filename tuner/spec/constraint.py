"""Constraints: which combinations of choices are valid, with a reason for each rule, computed on NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.errors import TemplateError

Value = int | float | str | bool
Array = NDArray[Any]


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
    """The parameters as lazily evaluated attributes."""

    def __init__(self, column: Callable[[str], Array]) -> None:
        self._column = column

    def __getattr__(self, name: str) -> Array:
        return self._column(name)


def holds(constraint: Constraint, columns: Columns, shape: tuple[int, ...]) -> Array:
    """Return the constraint's booleans, broadcast to `shape`. Raises TemplateError if arrays cannot be used."""
    try:
        result = np.asarray(constraint.holds(columns))
    except TemplateError as error:  # for an unknown parameter
        raise TemplateError(f"constraint {constraint.reason!r}: {error}") from error
    except (TypeError, ValueError, LookupError, ArithmeticError) as error:
        raise TemplateError(
            f"constraint {constraint.reason!r} cannot be computed on arrays ({error}): "
            "write & | ~ for and, or, not; np.where for if; np.minimum for min"
        ) from error
    if result.dtype != np.bool_:
        raise TemplateError(f"constraint {constraint.reason!r} gives {result.dtype}, not booleans: compare its result")
    return np.broadcast_to(result, shape)
