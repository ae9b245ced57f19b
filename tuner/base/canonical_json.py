"""Canonical JSON: equal values give equal text on every platform, including numbers that JSON lacks."""

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any

_FLOAT = "$float"  # e.g. {"$float": "nan"}, which is standard JSON
_dump = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def encode(value: Any) -> str:
    """Return one line of JSON: keys sorted, no spaces, floats in the fewest digits that round-trip."""
    try:
        return _dump(value)
    except ValueError:  # NaN or infinity; rare, so only these values are copied
        return _dump(_tagged(value))


def decode(text: str) -> Any:
    """Return the value that `encode` encoded; tuples become lists. Raises ValueError if the text is not JSON."""
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
