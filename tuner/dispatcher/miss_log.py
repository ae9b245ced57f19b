"""Logging of this process's misses to the file or server in `TUNER_MISSES`.

A problem is logged at its first call, whenever the number of its calls has doubled, and at process exit. A process
therefore writes a few lines per problem, a killed one loses less than half of a problem's calls, and files need no
thread: the counted call writes the line. A server is written to by a thread, so that no call waits for the network.
"""

import os
import queue
import threading
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tuner.base.fork import ForkGuard, renew_in_child
from tuner.errors import TunerError
from tuner.store import misses
from tuner.store.misses import Missed

VARIABLE = "TUNER_MISSES"
_WAITING = 4096  # queue length for a server; further misses are dropped
_END_S = 5.0  # time that process exit waits for a server
_IMPORTING = ForkGuard("imported the store")


class MissLogWarning(UserWarning):
    """This process no longer logs misses."""


class MissLog:
    """Logs misses to one destination until that fails, which causes one warning; calls never fail."""

    def __init__(self, destination: str) -> None:
        self._destination, self.failed = destination, False
        self._sender = _Sender(destination, self._fail) if "://" in destination else None

    def add(self, missed: Missed) -> None:
        if self.failed:
            return
        if self._sender is not None:
            self._sender.put(missed)
            return
        try:
            misses.append(Path(self._destination).expanduser(), missed)
        except (TunerError, RuntimeError) as error:
            self._fail(error)

    def close(self) -> None:
        """Wait a few seconds for pending writes to a server."""
        if self._sender is not None:
            self._sender.close()

    def _fail(self, error: Exception) -> None:
        self.failed = True
        warnings.warn(f"{error}; {VARIABLE} is ignored from now on", MissLogWarning, stacklevel=2)


class _Sender:
    """A thread that sends misses to a server, started by the first miss; a forked child starts its own."""

    def __init__(self, destination: str, fail: Callable[[Exception], None]) -> None:
        self._destination, self._fail = destination, fail
        self._begin()
        _senders.add(self)

    def _begin(self) -> None:
        self._queue: queue.Queue[Missed | None] = queue.Queue(_WAITING)
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def put(self, missed: Missed) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, args=(self._queue,), daemon=True, name="tuner misses")
                self._thread.start()
        with suppress(queue.Full):  # the server is slower than the application, so counts are a lower bound
            self._queue.put_nowait(missed)

    def close(self) -> None:
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(_END_S)

    def _run(self, waiting: "queue.Queue[Missed | None]") -> None:
        with _IMPORTING:
            from tuner.store.sql import Store  # imported here because it takes a second

        try:
            with Store.open(self._destination) as store:
                while (first := waiting.get()) is not None:
                    batch, ended = [first], False
                    while not waiting.empty() and not ended:
                        following = waiting.get()
                        batch, ended = (batch, True) if following is None else ([*batch, following], False)
                    store.add_misses(batch)
                    if ended:
                        return
        except TunerError as error:
            self._fail(error)


_senders: "weakref.WeakSet[_Sender]" = weakref.WeakSet()


def _renew() -> None:
    for sender in list(_senders):
        sender._begin()


renew_in_child(_renew)


_logs: dict[str, MissLog] = {}


def of_environment() -> MissLog | None:
    """Return the log that `TUNER_MISSES` names, one per destination; None if unset."""
    destination = os.environ.get(VARIABLE)
    if not destination:
        return None
    if destination not in _logs or _logs[destination].failed:
        _logs[destination] = MissLog(destination)
    return _logs[destination]
