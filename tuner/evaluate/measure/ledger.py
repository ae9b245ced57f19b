"""Which configs were on the device when something died: a file that survives the search, and the machine."""

import os
from collections import Counter
from pathlib import Path

from tuner.errors import MachineError

_MOST_FALLS = 2  # crashes in a row of an implementation that was never timed; twice that for others


class Ledger:
    """A line when a config goes to the device and one when it is back. Without a path it is kept in memory only."""

    def __init__(self, path: Path | None = None, most_deaths: int = 2) -> None:
        self._path, self._most_deaths = path, most_deaths
        text = path.read_text(encoding="utf-8", errors="replace") if path and path.exists() else ""
        self._deaths = _unfinished(text)
        self._cut = "" if text.endswith("\n") or not text else "…\n"  # ends the line of another, which stays unwritten

    def banned(self, key: str) -> bool:
        """Whether a config has crashed the device process as often as it may."""
        return self._deaths[key] >= self._most_deaths

    def began(self, key: str) -> None:
        self._deaths[key] += 1
        self._write(f"began {key}\n")

    def ended(self, key: str) -> None:
        """It is back, with whatever result; not called when it took the process down."""
        self._deaths[key] -= 1
        self._write(f"ended {key}\n")

    def _write(self, line: str) -> None:
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(self._cut + line)
                file.flush()
                os.fsync(file.fileno())
            self._cut = ""
        except OSError as error:
            raise MachineError(f"cannot write {self._path}: {error.strerror or error}") from error


def _unfinished(text: str) -> Counter[str]:
    """How often each config began and did not end. A line that a kill cut off counts as not written."""
    unfinished: Counter[str] = Counter()
    for line in text.splitlines(keepends=True):
        word, _, key = line.strip().partition(" ")
        if line.endswith("\n") and word in ("began", "ended"):
            unfinished[key] += 1 if word == "began" else -1
    return unfinished


class CrashStreaks:
    """Implementations whose configs crash the device process one after another, each for seconds: the rest are skipped.

    For as long as a session, since what is wrong may be the machine. One that was timed before may fall more often.
    """

    def __init__(self) -> None:
        self._in_a_row: dict[str, dict[str, str]] = {}  # configs with what they did
        self._timed: set[str] = set()

    def record(self, implementation: str, config: str, fatal: str, *, timed: bool) -> None:
        """What a config did to the device; nothing `fatal`, if empty. On another problem it counts as another."""
        if fatal:
            self._in_a_row.setdefault(implementation, {})[config] = fatal
        else:
            self._in_a_row.pop(implementation, None)
        if timed:  # on edge cases alone, a grid of many blocks has not shown that it ends
            self._timed.add(implementation)

    def reason(self, implementation: str) -> str:
        """Why none of an implementation is to be run; empty where they may be."""
        failures = list(self._in_a_row.get(implementation, {}).values())
        if len(failures) < _MOST_FALLS * (2 if implementation in self._timed else 1):
            return ""
        return f"{len(failures)} in a row of {implementation} took the device down, the last by {failures[-1]}"
