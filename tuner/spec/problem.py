"""A Problem's or Config's fields: which select code, which are sizes at run time, and how they become plain data."""

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

from tuner.base.canonical import encode
from tuner.base.fields import Fields, Scalar

P = TypeVar("P")
_LARGEST_INTEGER = 2**63  # what an int64 parameter of a kernel, and a column of a space, holds
_NAME = re.compile(r"[\w.]+(?:(?:::| )[\w.]+)*", re.ASCII)  # `channel`, `float4`, `unsigned int`
Array = npt.NDArray[Any]
Arrays = dict[str, Any]  # argument name → array, or Python number for a scalar


def static(help: str, *, default: Any = MISSING, choices: Sequence[Any] = (), size: bool = False) -> Any:
    """A Problem field that selects code: another value is another kernel.

    One that is a `size`, as of a macro, is made small for edges, which are then compiled for themselves.
    """
    about = {"kind": "static", "help": help, "choices": tuple(choices), "size": size}
    return field(default=default, metadata=about)


def extent(help: str, *, default: Any = MISSING) -> Any:
    """A Problem field that is a size at run time: one kernel serves every value."""
    return field(default=default, metadata={"kind": "extent", "help": help, "choices": ()})


def extents(problem: Any) -> tuple[str, ...]:
    """Names of the run-time sizes of a Problem (value or type)."""
    return tuple(f.name for f in fields(problem) if f.metadata["kind"] == "extent")


def sizes(problem: Any) -> tuple[str, ...]:
    """Names of what edges make small: run-time sizes, and static fields that are sizes."""
    return tuple(f.name for f in fields(problem) if f.metadata["kind"] == "extent" or f.metadata.get("size"))


def statics(problem: Any) -> tuple[str, ...]:
    """Names of the fields of a Problem (value or type) that select code."""
    return tuple(f.name for f in fields(problem) if f.metadata["kind"] == "static")


def common_fields(problem: Any, other: type[Any]) -> dict[str, Any]:
    """Those fields of a Problem that another one has, too: a backward call's for the forward call."""
    names = {item.name for item in fields(other)}
    return {item.name: getattr(problem, item.name) for item in fields(problem) if item.name in names}


def to_fields(value: Any) -> dict[str, Scalar]:
    """A Problem or Config as plain data; enums by their value."""
    items = ((item.name, getattr(value, item.name)) for item in fields(value))
    return {name: item.value if isinstance(item, Enum) else item for name, item in items}


def from_fields(cls: type[P], data: Fields) -> P:
    """The Problem or Config that `to_fields` made `data` of. Raises what `parse_fields` raises.

    Raises TypeError also where a field that has no default is missing.
    """
    return cls(**parse_fields(cls, data))


def parse_fields(cls: type[Any], data: Fields) -> dict[str, Any]:
    """Values for fields of a Problem or Config, each of the type that its field declares.

    Raises TypeError for a name that is unknown or a value of another type than its field declares, and ValueError for
    one that is out of range, or text that is neither a declared choice nor a name.
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
    """Raises TypeError or ValueError unless each field of a Problem or Config holds a number, a boolean or a name of
    its declared type, which is all that may reach a source.
    """
    for name, declared in _field_types(type(value)).items():  # type: ignore[arg-type]
        _parsed(name, declared, getattr(value, name))


@cache
def _field_types(cls: type[Any]) -> Mapping[str, Any]:
    hints = get_type_hints(cls)
    return {item.name: hints[item.name] for item in fields(cls)}


def _parsed(name: str, declared: Any, value: Any) -> Any:
    """The value as the declared type: bool, int, float, str or an Enum."""
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
            raise ValueError(f"{name} is {shortened(whole)}, which 64 bits do not hold")
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
    """Canonical JSON of a Problem or Config: equal values, equal text."""
    return encode(to_fields(value))
