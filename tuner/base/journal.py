"""A file that tells what happened, a JSON object a line, each on the disk before anything else happens."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.base.cache import make_folder


class Journal:
    """Appends to a file, whose folder is made. A kill at any moment costs at most the line in hand.

    Raises OSError where nothing can be written.
    """

    def __init__(self, path: Path) -> None:
        make_folder(path.parent)
        self._file = path.open("ab", buffering=0)
        self._cut = b"" if _whole(path) else b"\n"  # ends the line that a kill cut off, which is then none

    def append(self, data: Mapping[str, Any]) -> None:
        """One line, in one write; values that JSON lacks become text."""
        self._file.write(self._cut + json.dumps(data, default=str).encode() + b"\n")
        os.fsync(self._file.fileno())
        self._cut = b""


def read(path: Path, begin: int = 0) -> list[dict[str, Any]]:
    """The lines of a journal from a byte on, without those that a kill cut off. Raises OSError without one."""
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
