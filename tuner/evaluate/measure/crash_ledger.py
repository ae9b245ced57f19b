"""A file of the configs that were on the device during a crash. It survives the process and the machine."""

import os
from collections import Counter
from pathlib import Path
from typing import Protocol

from tuner.errors import MachineError

_MOST_FALLS = 2  # consecutive crashes of an implementation that was never timed; twice as many otherwise


class DeathLedger(Protocol):
    """The interface of a ledger: a session asks it before a config runs on the device, and reports when it has
    returned.
    """

    def banned(self, key: str) -> bool:
        """Return whether a config has reached the maximum number of crashes."""

    def began(self, key: str) -> bool:
        """Record that a config starts; return False if it may not, because it was banned in the meantime."""

    def ended(self, key: str) -> None:
        """Record that the config returned, with any result."""

    def died(self, key: str) -> None:
        """Record that the config crashed the process."""


class Ledger:
    """Records when a config is sent to the device and when it returns. Without a path it is kept in memory only."""

    def __init__(self, path: Path | None = None, most_deaths: int = 2) -> None:
        self._path, self._most_deaths = path, most_deaths
        text = path.read_text(encoding="utf-8", errors="replace") if path and path.exists() else ""
        self._deaths = _unfinished(text)
        # terminates another process's truncated line, which then does not count
        self._cut = "" if text.endswith("\n") or not text else "…\n"

    def banned(self, key: str) -> bool:
        """Return whether a config has reached the maximum number of crashes."""
        return self._deaths[key] >= self._most_deaths

    def began(self, key: str) -> bool:
        self._deaths[key] += 1
        self._write(f"began {key}\n")
        return True

    def ended(self, key: str) -> None:
        """Record that a config returned, with any result; not called after a crash."""
        self._deaths[key] -= 1
        self._write(f"ended {key}\n")

    def died(self, key: str) -> None:
        """Do nothing: a config that started and did not end counts as crashed."""

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
    """Count how often each config started without ending. A truncated line is ignored."""
    unfinished: Counter[str] = Counter()
    for line in text.splitlines(keepends=True):
        word, _, key = line.strip().partition(" ")
        if line.endswith("\n") and word in ("began", "ended"):
            unfinished[key] += 1 if word == "began" else -1
    return unfinished


class CrashStreaks:
    """Implementations that crash the device repeatedly. Their other configs are skipped, since each crash takes
    seconds.

    The list lasts for a session, because the machine may be the cause. An implementation that was timed before may
    crash more often.
    """

    def __init__(self) -> None:
        self._in_a_row: dict[str, dict[str, str]] = {}  # configs with their faults
        self._timed: set[str] = set()

    def record(self, implementation: str, config: str, fatal: str, *, timed: bool) -> None:
        """Record the result of a config; an empty `fatal` means no crash. Another problem counts separately."""
        if fatal:
            self._in_a_row.setdefault(implementation, {})[config] = fatal
        else:
            self._in_a_row.pop(implementation, None)
        if timed:  # edge cases alone do not show that a grid with many blocks ends
            self._timed.add(implementation)

    def reason(self, implementation: str) -> str:
        """Return why no config of an implementation may run; empty if they may."""
        failures = list(self._in_a_row.get(implementation, {}).values())
        if len(failures) < _MOST_FALLS * (2 if implementation in self._timed else 1):
            return ""
        return f"{len(failures)} in a row of {implementation} crashed the device, the last by {failures[-1]}"
