"""Problems split into a family and sizes, as a database stores them, so that all sizes of a family are read at once."""

from typing import Any

from tuner.base.canonical_json import encode
from tuner.base.fields import Fields
from tuner.results.strict_json import to_json

_END = 2**62


def numbers_in(problem: Fields) -> dict[str, int]:
    """Return the names of the fields that may be sizes, sorted: integers that fit 63 bits."""
    return {name: value for name in sorted(problem) if type(value := problem[name]) is int and 0 <= value < _END}


def packed(problem: Fields) -> tuple[str, str]:
    """Return the family of a problem, canonical JSON with null for its sizes, and the sizes as text."""
    numbers, family = numbers_in(problem), {}
    for name, value in problem.items():
        family[name] = None if name in numbers else value
    return _encoded(family), " ".join(map(str, numbers.values()))


def _encoded(family: dict[str, Any]) -> str:
    """Return what `encode` returns. msgspec is ten times faster, but formats floats and some characters differently."""
    text = to_json(family).decode()
    plain = text.isascii() and text.isprintable() and "\\" not in text
    return text if plain and float not in map(type, family.values()) else encode(family)
