"""T1, the auto-tuning community's description of a kernel's search space, read as a Space.

Only `ConfigurationSpace` is used: `TuningParameters` with `Name`, `Type` and `Values` (a list as an expression), and
`Conditions` with an `Expression` each (github.com/odgaard/TuningSchema, version 1.0.0).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tuner.errors import UsageError
from tuner.search.replay.expression import evaluate
from tuner.search.replay.files import parse
from tuner.spec.space import Array, Columns, Constraint, Space

_TYPES: Mapping[str, Callable[[Any], Any]] = {"int": int, "uint": int, "float": float, "bool": bool, "string": str}


def read(path: Path) -> Space[Any]:
    """Read the space of a T1 file. Raises UsageError if it describes none."""
    document = parse(path)
    try:
        described = document["ConfigurationSpace"]
        parameters = described["TuningParameters"]
        choices = {parameter["Name"]: _choices(parameter) for parameter in parameters}
        constraints = tuple(
            _constraint(condition["Expression"], choices) for condition in described.get("Conditions", ())
        )
        return Space(make_dataclass("Described", list(choices), frozen=True), choices, constraints)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path} is not a T1 file: {type(error).__name__} {error} in its ConfigurationSpace"
        ) from error


def _choices(parameter: Mapping[str, Any]) -> Sequence[Any]:
    if parameter["Type"] not in _TYPES:
        raise ValueError(f"type {parameter['Type']!r} of {parameter['Name']} (known: {', '.join(_TYPES)})")
    values = parameter["Values"]
    listed = evaluate(values, _no_name) if isinstance(values, str) else values
    return tuple(dict.fromkeys(_TYPES[parameter["Type"]](value) for value in listed))


def _no_name(word: str) -> Any:
    raise ValueError(f"{word!r} has no meaning in a list of values")


def _constraint(expression: str, choices: Mapping[str, Sequence[Any]]) -> Constraint:
    """Return the condition as a constraint, whose reason is the expression itself."""

    def holds(columns: Columns) -> Array:
        truth: Array = np.asarray(evaluate(expression, lambda word: getattr(columns, word))) != 0
        return truth

    def first(word: str) -> Array:
        if word not in choices:
            raise ValueError(f"{word!r} is not a parameter")
        return np.array(choices[word][:1])

    evaluate(expression, first)  # reports errors here instead of during an enumeration
    return Constraint(expression, holds)
