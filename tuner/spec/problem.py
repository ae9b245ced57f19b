"""A Problem's or Config's fields: which select code, which are sizes at run time, and how they become plain data."""

from collections.abc import Sequence
from dataclasses import MISSING, field, fields
from enum import Enum
from typing import Any, TypeVar

import numpy.typing as npt

from tuner.base.canonical import encode
from tuner.base.result import Fields, Scalar

P = TypeVar("P")
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


def shared(problem: Any, other: type[Any]) -> dict[str, Any]:
    """Those fields of a Problem that another one has, too: a backward call's for the forward call."""
    names = {each.name for each in fields(other)}
    return {each.name: getattr(problem, each.name) for each in fields(problem) if each.name in names}


def to_fields(value: Any) -> dict[str, Scalar]:
    """A Problem or Config as plain data; enums by their value."""
    items = ((each.name, getattr(value, each.name)) for each in fields(value))
    return {name: item.value if isinstance(item, Enum) else item for name, item in items}


def from_fields(cls: type[P], data: Fields) -> P:
    """The Problem or Config that `to_fields` made `data` of."""
    kinds: dict[str, Any] = {f.name: f.type for f in fields(cls)}  # type: ignore[arg-type]  # P is a dataclass
    return cls(**{k: kinds[k](v) if _is_enum(kinds[k]) else v for k, v in data.items()})


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def canonical(value: Any) -> str:
    """Canonical JSON of a Problem or Config: equal values, equal text."""
    return encode(to_fields(value))
