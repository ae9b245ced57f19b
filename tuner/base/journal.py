"""An append-only file of JSON lines; each line is on disk before the program continues."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.base.cache import make_folder


class Journal:
    """Appends JSON lines to a file and creates its folder. A kill loses at most the line being written.

    Raises OSError if the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        make_folder(path.parent)
        self._file = path.open("ab", buffering=0)
        self._cut = b"" if _whole(path) else b"\n"  # terminates a line that a kill cut off; readers skip it

    def append(self, data: Mapping[str, Any]) -> None:
        """Append one line in a single write; values that JSON lacks become strings."""
        self._file.write(self._cut + json.dumps(data, default=str).encode() + b"\n")
        os.fsync(self._file.fileno())
        self._cut = b""


def read(path: Path, begin: int = 0) -> list[dict[str, Any]]:
    """Read the complete lines of a journal from byte `begin` on. Raises OSError if the file does not exist."""
    with path.open("rb") as file:
        file.seek(begin)
        return [row for line in file.read().split(b"\n") if (row := _object(line)) is not None]


def _whole(path: Path) -> bool:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 1, 0))
        return file.read() in (b"", b"\n")


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None
