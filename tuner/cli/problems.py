"""Problems from a file: JSON, JSON lines or CSV. Each line has fields; the rest comes from the command line."""

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.errors import UsageError


@dataclass(frozen=True)
class Line:
    """Fields of a problem as written, and their location; empty for the command line alone."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    location: str = ""


def read(path: Path) -> list[Line]:
    """Read one line per problem. Raises UsageError, with the line, if it cannot be parsed."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # spreadsheets write a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise UsageError(f"cannot read the problems in {path}: {reason}") from error
    try:
        lines = _csv(path, text) if path.suffix.lower() == ".csv" else _json(path, text)
    except csv.Error as error:
        raise UsageError(f"{path}: not CSV: {error}") from error
    if not lines:
        raise UsageError(f"{path} names no problem: give a line of fields for each")
    return lines


def _csv(path: Path, text: str) -> list[Line]:
    rows = csv.DictReader(text.splitlines(), skipinitialspace=True)
    names = [name.strip() for name in rows.fieldnames or ()]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"{path}, line 1: there are several columns {twice[0]!r}: give one")
    lines = []
    for row in rows:
        location = f"{path}, line {rows.line_num}"
        if None in row or None in row.values():
            raise UsageError(f"{location}: it does not have the {len(names)} columns of line 1")
        lines.append(Line({name.strip(): value.strip() for name, value in row.items() if value.strip()}, location))
    return lines


def _json(path: Path, text: str) -> list[Line]:
    """Read one array of objects, or one object per line."""
    if text.lstrip().startswith("["):
        parts = [(f"{path}, problem {i}", part) for i, part in enumerate(_parsed(str(path), text), start=1)]
    else:
        lines = [(f"{path}, line {n}", line) for n, line in enumerate(text.splitlines(), start=1) if line.strip()]
        parts = [(position, _parsed(position, line)) for position, line in lines]
    for position, fields in parts:
        if not isinstance(fields, dict) or any(
            isinstance(value, dict | list) or value is None for value in fields.values()
        ):
            raise UsageError(f'{position}: {json.dumps(fields)} is no problem: write {{"field": value, …}}')
    return [Line(fields, position) for position, fields in parts]


def _parsed(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{where}: not JSON: {error.msg} at column {error.colno}") from error
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits, or as many brackets
        raise UsageError(f"{where}: not JSON that can be read: {error}") from error
