"""The fields of a Problem or a Config as plain data, and how they are printed."""

from collections.abc import Mapping
from reprlib import repr as shortened
from typing import Any

Scalar = int | float | str | bool
Fields = Mapping[str, Scalar]  # a Problem or a Config as data


def scalar(value: Scalar) -> str:
    """One Problem or Config value as CUDA and JSON spell it: `true`, `64`, `bf16`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


def formatted(fields: Fields) -> str:
    """`BT=64 BK=128 swizzle=true`"""
    return " ".join(f"{name}={scalar(value)}" for name, value in fields.items())


def fields_from(data: Any) -> Fields:
    """A Problem or a Config as data. Raises TypeError for what is none."""
    if not isinstance(data, dict) or not all(isinstance(value, Scalar) for value in data.values()):
        raise TypeError(f"{shortened(data)} is no object of numbers, texts and booleans")
    if unprintable := [text for text in (*data, *data.values()) if isinstance(text, str) and not text.isprintable()]:
        raise ValueError(f"{shortened(unprintable[0])} has characters that are not printable")
    return dict(data)
