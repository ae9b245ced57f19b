"""How much the caches of a folder may hold together, and what goes first when they hold more."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tuner.errors import UsageError

VARIABLE = "TUNER_CACHE_LIMIT"
_DEFAULT_GB = 4.0
_SWEEPS = 16  # a filled limit's worth of writing is looked over so often, on average
_KEPT = 1 - 2 / _SWEEPS  # of the limit, after a sweep
_IN_USE_S = 600.0  # what was used so lately may still be open in another process


class _Item(NamedTuple):
    used: float  # seconds since the epoch
    nbytes: int
    path: Path  # a file, or a folder that goes whole


@dataclass(frozen=True, slots=True)
class Limit:
    """A bound on the bytes under `folder`, which holds caches; 0 is no bound.

    Not exact: writers do not count what others write, so each write of n bytes makes a sweep due with the chance
    16 n / `nbytes`, drawn from its key, which is uniform. What was used in the last ten minutes always stays.
    """

    folder: Path
    nbytes: int

    def written(self, key: str, nbytes: int) -> None:
        """To be told after each write, by the entry's hexadecimal key."""
        if self.nbytes and int(key[:8], 16) / 16**8 < _SWEEPS * nbytes / self.nbytes:
            self.sweep()

    def sweep(self) -> int:
        """Remove what was used longest ago until an eighth of the limit is free; returns the bytes removed.

        Any number of processes may do so at once.
        """
        items = sorted(self._items())
        surplus = sum(item.nbytes for item in items) - int(_KEPT * self.nbytes)
        removed = 0
        for item in items:
            if removed >= surplus or item.used > time.time() - _IN_USE_S:
                break
            remove(item.path)
            removed += item.nbytes
        return removed

    def held(self) -> int:
        """Bytes of everything in the caches."""
        return sum(item.nbytes for item in self._items())

    def _items(self) -> Iterator[_Item]:
        for path in self.folder.glob("*/??/*"):
            if path.suffix in (".entry", ".folder", ".partial"):
                with suppress(OSError):  # another process was faster
                    yield _Item(path.stat().st_mtime, size(path), path)


def limit_of(folder: Path) -> Limit:
    """The limit of the user's caches: `TUNER_CACHE_LIMIT` gigabytes. Raises UsageError for what is no number."""
    text = os.environ.get(VARIABLE) or str(_DEFAULT_GB)
    try:
        gigabytes = float(text)
    except ValueError:
        gigabytes = -1.0
    if not 0 <= gigabytes < 1e9:
        raise UsageError(f"{VARIABLE} is {text!r}: give gigabytes, such as 0.5 (0 is no limit)")
    return Limit(folder, int(gigabytes * 1e9))


def touch(path: Path) -> None:
    """Note that an entry is used now."""
    with suppress(OSError):  # a cache that cannot be written is not swept either
        os.utime(path)


def remove(path: Path) -> None:
    """Remove an entry, or a folder with all that it holds; what another process removed already is fine."""
    with suppress(OSError):
        if path.is_dir():
            path = path.rename(path.with_suffix(f".{os.getpid()}.partial"))  # gone for readers at once
            shutil.rmtree(path)
        else:
            path.unlink()


def size(path: Path) -> int:
    """Bytes of an entry, or of all that a folder holds."""
    return sum(each.stat().st_size for each in (path.rglob("*") if path.is_dir() else (path,)))
