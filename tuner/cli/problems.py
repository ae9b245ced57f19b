"""Problems from a file: JSON, JSON lines or CSV; each line names fields, the rest comes from the command line."""

import csv
import json
from pathlib import Path
from typing import Any

from tuner.errors import UsageError


def read(path: Path) -> list[dict[str, Any]]:
    """Field → value as written, a problem each. Raises UsageError with the line that cannot be read."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # spreadsheets begin a file with a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text file"
        raise UsageError(f"cannot read the problems in {path}: {reason}") from error
    found = _csv(path, text) if path.suffix.lower() == ".csv" else _json(path, text)
    if not found:
        raise UsageError(f"{path} names no problem: give a line of fields for each")
    return found


def _csv(path: Path, text: str) -> list[dict[str, Any]]:
    rows = csv.DictReader(text.splitlines(), skipinitialspace=True)
    found = []
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise UsageError(
                f"{path}, line {number}: it does not have the {len(rows.fieldnames or ())} columns of line 1"
            )
        found.append({name.strip(): value.strip() for name, value in row.items() if value.strip()})
    return found


def _json(path: Path, text: str) -> list[dict[str, Any]]:
    """One array of objects, or an object a line."""
    if text.lstrip().startswith("["):
        parts = _parsed(str(path), text)
    else:
        lines = [(n, line) for n, line in enumerate(text.splitlines(), start=1) if line.strip()]
        parts = [_parsed(f"{path}, line {number}", line) for number, line in lines]
    for each in parts:
        if not isinstance(each, dict) or any(
            isinstance(value, dict | list) or value is None for value in each.values()
        ):
            raise UsageError(f'{path}: {json.dumps(each)} is no problem: write {{"field": value, …}}')
    return list(parts)


def _parsed(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{where}: not JSON: {error.msg} at column {error.colno}") from error
