"""Makes `os.fork` safe in a process with threads.

A child has only the thread that forked. A lock that another thread held stays locked in the child, and a library in the
middle of a call, such as a compiler or a database, stays in that state. Code with such state runs inside of a
`ForkGuard`: `os.fork` waits up to `PATIENCE_S` until no other thread is inside a guard. If a guard is held for longer,
using it in the child raises MachineError. Processes started by spawn, forkserver or subprocess share no state.
"""

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from functools import cached_property
from types import TracebackType

from tuner.errors import MachineError

PATIENCE_S = 60.0
_gate = threading.Condition(threading.Lock())
_inside: dict[int, int] = {}  # thread → number of guards that it is inside of
_forks = 0  # in progress
_preparations: list[Callable[[], None]] = []
_renewals: list[Callable[[], None]] = []


class ForkGuard:
    """A reentrant lock that a child process never inherits locked.

    `what` completes the message "this process was forked while a thread …". Entering raises MachineError in a child
    that was forked while another thread was inside of the guard.
    """

    def __init__(self, what: str) -> None:
        self._what, self._lock = what, threading.RLock()
        self._owner, self._depth, self._torn = 0, 0, False
        _guards.add(self)

    def __enter__(self) -> None:
        thread = threading.get_ident()
        while True:
            self._refuse_half_state()
            with _gate:
                _gate.wait_for(lambda: not _forks or thread in _inside)
            self._lock.acquire()
            with _gate:
                if not _forks or thread in _inside:
                    _inside[thread] = _inside.get(thread, 0) + 1
                    self._owner, self._depth = thread, self._depth + 1
                    return
            self._lock.release()  # a fork came first: a thread inside of a guard may need this lock to leave it

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        thread = threading.get_ident()
        with _gate:
            self._depth -= 1
            if not self._depth:
                self._owner = 0
            _inside[thread] -= 1
            if not _inside[thread]:
                del _inside[thread]
                _gate.notify_all()
        self._lock.release()

    def locked(self) -> bool:
        return self._depth > 0

    def _refuse_half_state(self) -> None:
        if self._torn:
            raise MachineError(
                f"this process was forked while a thread {self._what}, and has half of its state: fork before or after "
                "that, or start processes by spawn"
            )

    def _renew(self) -> None:
        """Replace the lock in a child. The forking thread keeps its own acquisitions; other owners are gone."""
        thread = threading.get_ident()
        self._lock = threading.RLock()
        if self._owner == thread:
            for _ in range(self._depth):
                self._lock.acquire()
        elif self._owner:
            self._owner, self._depth, self._torn = 0, 0, True


_guards: "weakref.WeakSet[ForkGuard]" = weakref.WeakSet()


def before_fork(prepare: Callable[[], None]) -> None:
    """Call `prepare` before every fork, in the forking thread, when no other thread is inside of a guard."""
    _preparations.append(prepare)


def renew_in_child(renewal: Callable[[], None]) -> None:
    """Call `renewal` first in every forked child."""
    _renewals.append(renewal)


def _before() -> None:
    global _forks
    _gate.acquire()
    _forks += 1
    thread, deadline = threading.get_ident(), time.monotonic() + PATIENCE_S
    while _inside.keys() - {thread} and (left := deadline - time.monotonic()) > 0:
        _gate.wait(left)
    for prepare in _preparations:
        prepare()


def _after_in_parent() -> None:
    global _forks
    _forks -= 1
    _gate.notify_all()
    _gate.release()


def _after_in_child() -> None:
    global _forks, _gate
    thread = threading.get_ident()
    _forks, _gate = 0, threading.Condition(threading.Lock())
    for other in _inside.keys() - {thread}:
        del _inside[other]
    for guard in list(_guards):
        guard._renew()
    if sys.version_info < (3, 12):
        _renew_cached_properties()
    for renewal in _renewals:
        renewal()


def _renew_cached_properties() -> None:
    """Replace the locks of cached properties: before Python 3.12, computing one holds its lock."""
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "tuner"]
    classes = {value for module in modules for value in list(vars(module).values()) if isinstance(value, type)}
    for attribute in (value for kind in classes for value in vars(kind).values()):
        if isinstance(attribute, cached_property):
            attribute.lock = threading.RLock()  # type: ignore[attr-defined]


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
