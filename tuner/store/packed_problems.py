"""Problems as a family and sizes, as a database keeps them beside a record: an index of the sizes is read at once."""

from typing import Any

from tuner.base.canonical_json import encode
from tuner.base.fields import Fields
from tuner.results.strict_json import to_json


def numbers_in(problem: Fields) -> dict[str, int]:
    """The fields that may be sizes, sorted by name: whole numbers that 63 bits hold."""
    return {name: value for name, value in sorted(problem.items()) if type(value) is int and 0 <= value < 2**62}


def packed(problem: Fields) -> tuple[str, str]:
    """The family of a problem, canonical JSON with null for its numbers, and the numbers in a line."""
    numbers = numbers_in(problem)
    return _encoded({**problem, **dict.fromkeys(numbers)}), " ".join(map(str, numbers.values()))


def _encoded(family: dict[str, Any]) -> str:
    """As `encode` has it. msgspec is ten times faster, and writes floats and special characters in another way."""
    text = to_json(family).decode()
    plain = text.isascii() and text.isprintable() and "\\" not in text
    return text if plain and not any(type(value) is float for value in family.values()) else encode(family)
