"""The fields of a Problem or Config: which select code, which are run-time sizes, and their conversion to plain
data.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, field, fields
from enum import Enum
from functools import cache
from numbers import Integral, Real
from reprlib import repr as shortened
from typing import Any, TypeVar, get_type_hints

import numpy as np
import numpy.typing as npt

from tuner.base.canonical_json import encode
from tuner.base.fields import Fields, Scalar

P = TypeVar("P")
_LARGEST_INTEGER = 2**63  # the range of int64 kernel parameters and of the columns of a space
_NAME = re.compile(r"[\w.]+(?:(?:::| )[\w.]+)*", re.ASCII)  # `channel`, `float4`, `unsigned int`
Array = npt.NDArray[Any]
Arrays = dict[str, Any]  # argument name → array, or a Python number for a scalar


def static(help: str, *, default: Any = MISSING, choices: Sequence[Any] = (), size: bool = False) -> Any:
    """Declare a Problem field that selects code: each value compiles to a different kernel.

    A `size`, such as a macro, is made small for edge cases, which are then compiled separately.
    """
    about = {"kind": "static", "help": help, "choices": tuple(choices), "size": size}
    return field(default=default, metadata=about)


def extent(help: str, *, default: Any = MISSING) -> Any:
    """Declare a Problem field that is a run-time size: one kernel serves every value."""
    return field(default=default, metadata={"kind": "extent", "help": help, "choices": ()})


def extents(problem: Any) -> tuple[str, ...]:
    """Return the names of the run-time sizes of a Problem (value or type)."""
    return tuple(f.name for f in fields(problem) if f.metadata["kind"] == "extent")


def sizes(problem: Any) -> tuple[str, ...]:
    """Return the names of all sizes that edge cases reduce: run-time sizes and static fields that are sizes."""
    return tuple(f.name for f in fields(problem) if f.metadata["kind"] == "extent" or f.metadata.get("size"))


def statics(problem: Any) -> tuple[str, ...]:
    """Return the names of the fields of a Problem (value or type) that select code."""
    return tuple(f.name for f in fields(problem) if f.metadata["kind"] == "static")


def common_fields(problem: Any, other: type[Any]) -> dict[str, Any]:
    """Return the fields of a Problem that `other` also has, e.g. the forward call's fields for a backward call."""
    names = {item.name for item in fields(other)}
    return {item.name: getattr(problem, item.name) for item in fields(problem) if item.name in names}


def to_fields(value: Any) -> dict[str, Scalar]:
    """Return a Problem or Config as plain data; enums become their value."""
    items = ((item.name, getattr(value, item.name)) for item in fields(value))
    return {name: item.value if isinstance(item, Enum) else item for name, item in items}


def from_fields(cls: type[P], data: Fields) -> P:
    """Build the Problem or Config from the result of `to_fields`. Raises what `parse_fields` raises.

    Also raises TypeError if a field without a default is missing.
    """
    return cls(**parse_fields(cls, data))


def parse_fields(cls: type[Any], data: Fields) -> dict[str, Any]:
    """Parse values for fields of a Problem or Config into their declared types.

    Raises TypeError for an unknown name or a value of the wrong type, and ValueError for a value out of range or a
    string that is neither a declared choice nor a name.
    """
    types = _field_types(cls)  # type: ignore[arg-type]  # a class is hashable
    if unknown := data.keys() - types.keys():
        raise TypeError(f"{cls.__name__} has no field {shortened(min(unknown))}")
    parsed = {name: _parsed(name, types[name], value) for name, value in data.items()}
    for item in fields(cls):
        choices = item.metadata.get("choices", ())
        if choices and types[item.name] is str and parsed.get(item.name, choices[0]) not in choices:
            raise ValueError(f"{item.name} is {shortened(parsed[item.name])}, not among {', '.join(choices)}")
    return parsed


def check_fields(value: Any) -> None:
    """Raise TypeError or ValueError unless every field of a Problem or Config is a number, boolean or name of its type.

    Nothing else may reach a source.
    """
    for name, declared in _field_types(type(value)).items():  # type: ignore[arg-type]
        _parsed(name, declared, getattr(value, name))


@cache
def _field_types(cls: type[Any]) -> Mapping[str, Any]:
    hints = get_type_hints(cls)
    return {item.name: hints[item.name] for item in fields(cls)}


def _parsed(name: str, declared: Any, value: Any) -> Any:
    """Convert the value to the declared type: bool, int, float, str or an Enum."""
    if isinstance(declared, type) and issubclass(declared, Enum):
        try:
            return declared(value)
        except ValueError:
            names = ", ".join(str(member.value) for member in declared)
            raise ValueError(f"{name} is {shortened(value)}, not among {names}") from None
    if declared is bool and isinstance(value, bool | np.bool_):
        return bool(value)
    if declared is int and isinstance(value, Integral) and not isinstance(value, bool):
        if not -_LARGEST_INTEGER < (whole := int(value)) < _LARGEST_INTEGER:
            raise ValueError(f"{name} is {shortened(whole)}, which does not fit in 64 bits")
        return whole
    if declared is float and isinstance(value, Real) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise ValueError(f"{name} is {value}, not a finite number")
        return float(value)
    if declared is str and isinstance(value, str):
        if not _NAME.fullmatch(value):
            raise ValueError(f"{name} is {shortened(value)}, not a name")
        return value
    raise TypeError(f"{name} is {shortened(value)}, not of type {getattr(declared, '__name__', declared)}")


def canonical(value: Any) -> str:
    """Return canonical JSON of a Problem or Config: equal values give equal text."""
    return encode(to_fields(value))
