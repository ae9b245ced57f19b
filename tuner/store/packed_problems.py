"""Problems split into a family and sizes, as a database stores them, so that all sizes of a family are read at once."""

from typing import Any

from tuner.base.canonical_json import encode
from tuner.base.fields import Fields
from tuner.results.strict_json import to_json


def numbers_in(problem: Fields) -> dict[str, int]:
    """Return the names of the fields that may be sizes, sorted: integers that fit 63 bits."""
    return {name: value for name, value in sorted(problem.items()) if type(value) is int and 0 <= value < 2**62}


def packed(problem: Fields) -> tuple[str, str]:
    """Return the family of a problem, canonical JSON with null for its sizes, and the sizes as text."""
    numbers = numbers_in(problem)
    return _encoded({**problem, **dict.fromkeys(numbers)}), " ".join(map(str, numbers.values()))


def _encoded(family: dict[str, Any]) -> str:
    """Return what `encode` returns. msgspec is ten times faster, but formats floats and some characters differently."""
    text = to_json(family).decode()
    plain = text.isascii() and text.isprintable() and "\\" not in text
    return text if plain and not any(type(value) is float for value in family.values()) else encode(family)
