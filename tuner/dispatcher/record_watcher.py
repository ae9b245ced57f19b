"""Detection of new records while a process runs: if `TUNER_WATCH` is set, a thread checks at this interval in seconds.

The thread compiles and loads what calls need of the new records, while calls continue with the old ones. Meanwhile the
interpreter switches threads more often, so that calls do not wait for long computations of this thread.
"""

import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tuner.base.fork import renew_in_child
from tuner.errors import UsageError
from tuner.store.change_detection import Sources

VARIABLE = "TUNER_WATCH"
_LEAST_S = 0.1
_SWITCH_S = 0.0005  # thread switch interval while records are loaded; Python's default is ten times as long


class RenewalWarning(UserWarning):
    """New records could not be loaded; calls continue with the old ones."""


class Watcher:
    """A thread that calls `renew` whenever records have changed; a forked child has its own."""

    def __init__(self, seconds: float, renew: Callable[[], None]) -> None:
        self.seconds, self._renew = seconds, renew
        self._ended = threading.Event()
        self.sources = Sources()
        self._start()

    def close(self) -> None:
        self._ended.set()

    def _start(self) -> None:
        threading.Thread(target=self._run, args=(self._ended,), daemon=True, name="tuner watch").start()

    def _in_child(self) -> None:
        """Replace the event, whose lock another thread may have held, also where the watcher has ended."""
        ended, self._ended = self._ended.is_set(), threading.Event()
        if ended:
            self._ended.set()
        else:
            self._start()

    def _run(self, ended: threading.Event) -> None:
        while not ended.wait(self.seconds):
            try:
                if self.sources.changed():
                    with _switching_often():
                        self._renew()
            except Exception as error:  # any error: the next change is tried again
                text = f"new records are not taken up, and calls go on with the old ones: {error}"
                warnings.warn(text, RenewalWarning, stacklevel=2)


@contextmanager
def _switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, _SWITCH_S))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class _Process:
    watcher: Watcher | None = None


def watch(renew: Callable[[], None]) -> None:
    """Start watching as configured, from the current records; replaces an earlier watcher."""
    if _Process.watcher is not None:
        _Process.watcher.close()
    seconds = _seconds()
    _Process.watcher = Watcher(seconds, renew) if seconds else None


def watched() -> bool:
    return bool(_seconds())


def _seconds() -> float:
    text = os.environ.get(VARIABLE) or "0"
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if seconds != 0 and not _LEAST_S <= seconds < 1e6:
        raise UsageError(f"{VARIABLE}={text!r}: give seconds between looks for new records, at least {_LEAST_S}, or 0")
    return seconds


def _renew_in_child() -> None:
    if _Process.watcher is not None:
        _Process.watcher._in_child()


renew_in_child(_renew_in_child)
