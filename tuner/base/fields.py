"""The fields of a Problem or a Config as plain data, and their formatting."""

from collections.abc import Mapping
from reprlib import repr as shortened
from typing import Any

Scalar = int | float | str | bool
Fields = Mapping[str, Scalar]  # a Problem or a Config as data


def scalar(value: Scalar) -> str:
    """Format one Problem or Config value as in CUDA and JSON: `true`, `64`, `bf16`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


def formatted(fields: Fields) -> str:
    """Format fields as `BT=64 BK=128 swizzle=true`."""
    return " ".join(f"{name}={scalar(value)}" for name, value in fields.items())


def fields_from(data: Any) -> Fields:
    """Return the fields of a Problem or a Config. Raises TypeError if they are not plain values, and ValueError as
    `check_printable`.
    """
    check_scalars(data)
    check_printable(data)
    return dict(data)


def check_scalars(data: Any) -> None:
    """Raise TypeError unless the data is an object of plain values."""
    if not isinstance(data, dict) or not all(isinstance(value, Scalar) for value in data.values()):
        raise TypeError(f"{shortened(data)} is not an object of numbers, strings and booleans")


def check_printable(data: Any) -> None:
    """Raise ValueError if a string in JSON-compatible data has characters that are not printable.

    Such data reaches terminals, where an escape sequence could rewrite the screen.
    """
    if isinstance(data, str):
        if not data.isprintable():
            raise ValueError(f"{shortened(data)} has characters that are not printable")
    elif isinstance(data, Mapping):
        for name, value in data.items():
            check_printable(name)
            check_printable(value)
    elif isinstance(data, list | tuple):
        for value in data:
            check_printable(value)
