"""Recordings in files: Kernel Tuner's caches and T4, the exchange format of the auto-tuning community."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tuner.errors import UsageError
from tuner.search.replay.recording import Recording, Row, recording
from tuner.spec.space import Space

_FAILED_VALUE = 1e19  # written by old versions of Kernel Tuner for a failure
_MOST_BYTES = 1 << 30  # uncompressed: a small archive may hold far more
_REFUSED = ("InvalidConfig", "constraints")  # outside the space: a search would never try it
_STAGES = {"CompilationFailedConfig": "compile", "RuntimeFailedConfig": "runtime"}


def read(path: Path, space: Space[Any] | None = None) -> Recording:
    """Read a recording from a file, by the first objective of a T4 file or "time". Raises UsageError if it is not one.

    With a `space` (of a T1 file), its configs that are missing in the file count as failed.
    """
    try:
        rows = _rows(parse(path))
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is not a recording: an entry is broken ({type(error).__name__}: {error})") from error
    if rows is None:
        raise UsageError(f"{path} is not a recording: it has neither 'results' (T4) nor 'cache' (Kernel Tuner)")
    tried = [row for row in rows if row.failure not in _REFUSED]
    try:
        return recording(path.name.split(".")[0], tried, space)
    except (TypeError, ValueError) as error:  # a parameter's name is not an identifier
        raise UsageError(f"{path} is no recording: {error}") from error


def _rows(data: Mapping[str, Any]) -> list[Row] | None:
    if "cache" in data:
        return [_row_of_cache(data["tune_params"], entry) for entry in data["cache"].values()]
    return [_row_of_t4(entry) for entry in data["results"]] if "results" in data else None


def t4(rows: Sequence[Row], unit: str, objective: str = "time") -> dict[str, Any]:
    """Return rows as a T4 document for JSON; values and samples are in `unit`."""
    results = [_entry(row, unit, objective) for row in rows]
    return {"schema_version": "1.0.0", "metadata": {"timeunit": unit}, "results": results}


def _entry(row: Row, unit: str, objective: str) -> dict[str, Any]:
    worked = row.value is not None
    return {
        "configuration": dict(row.config),
        "objectives": [objective],
        "measurements": [{"name": objective, "value": row.value, "unit": unit}] if worked else [],
        "invalidity": "correct" if worked else row.failure,
        "correctness": float(worked),
        "times": {"runtimes": list(row.samples)},
    }


def parse(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file, plain or gzipped. Raises UsageError if there is none."""
    try:
        with path.open("rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if zipped else path.open("rb") as source:
            data = source.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise UsageError(f"cannot read {path}: it has more than {_MOST_BYTES:,} bytes")
        text = data.decode()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except (EOFError, zlib.error, UnicodeDecodeError) as error:
        reason = "it is not text in UTF-8" if isinstance(error, UnicodeDecodeError) else error
        raise UsageError(f"cannot read {path}: {reason}") from error
    closed = text.rstrip().rstrip(",") + "}}"  # the cache of an interrupted run lacks its end
    for candidate in (text, closed):
        try:
            document = json.loads(candidate)
        except (ValueError, RecursionError):  # ValueError: also an integer of thousands of digits
            continue
        if isinstance(document, dict):
            return document
    raise UsageError(f"{path} is not a recording: not a JSON object")


def _row_of_cache(parameters: Mapping[str, Any], entry: Mapping[str, Any]) -> Row:
    config = {name: entry[name] for name in parameters}
    value = entry.get("time")
    if isinstance(value, int | float) and value < _FAILED_VALUE:
        return Row(config, float(value), tuple(entry.get("times") or ()))
    return Row(config, None, failure=_STAGES.get(str(value), str(value)))


def _row_of_t4(entry: Mapping[str, Any]) -> Row:
    objective = (entry.get("objectives") or ["time"])[0]
    values = [measurement["value"] for measurement in entry["measurements"] if measurement["name"] == objective]
    if entry["invalidity"] == "correct" and values and isinstance(values[0], int | float):
        return Row(entry["configuration"], float(values[0]), tuple(entry["times"].get("runtimes") or ()))
    return Row(entry["configuration"], None, failure=entry["invalidity"])
