"""Canonical JSON: equal values give equal text, on every platform, also for the numbers that JSON lacks."""

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any

_FLOAT = "$float"  # {"$float": "nan"}: plain JSON that every reader parses
_dump = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def encode(value: Any) -> str:
    """One line of JSON: keys sorted, no spaces, floats in the fewest digits that read back as the same float."""
    try:
        return _dump(value)
    except ValueError:  # a NaN or an infinity; rare enough that only those texts pay for a copy of the value
        return _dump(_tagged(value))


def decode(text: str) -> Any:
    """The value that `encode` made `text` of; tuples come back as lists. Raises ValueError for what is no JSON."""
    return json.loads(text, object_hook=_read) if _FLOAT in text else json.loads(text)


def _tagged(value: Any) -> Any:
    if isinstance(value, float) and not isfinite(value):
        return {_FLOAT: str(value)}
    if isinstance(value, Mapping):
        return {key: _tagged(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_tagged(item) for item in value]
    return value


def _read(data: dict[str, Any]) -> Any:
    return float(data[_FLOAT]) if data.keys() == {_FLOAT} else data
