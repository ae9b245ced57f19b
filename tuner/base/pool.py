"""Killable worker processes: a job that crashes, hangs or exhausts memory loses only its own answer.

A worker is a fresh interpreter that runs one importable function on one job at a time. Unlike a multiprocessing worker,
it does not import the caller's `__main__`, so scripts need no guard. It leads its own process group, so that Ctrl-C
reaches only the caller and a kill also reaches the worker's children. It exits when the caller is gone.
"""

import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, NoReturn, TypeVar

from tuner.base.self_closing import Closing
from tuner.errors import MachineError

J = TypeVar("J")
R = TypeVar("R")

_START_TIMEOUT_S = 120.0  # includes imports from a slow disk
_START_TRIES = 3
_CHILD = "import sys; from tuner.base.pool import _serve; _serve(int(sys.argv[1]))"
_ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for one job."""

    timeout_s: float = 120.0
    memory_bytes: int = 4 << 30  # address space of a worker


@dataclass(frozen=True, slots=True)
class Lost:
    """A job without an answer: its worker died, ran out of memory or exceeded the time limit. A retry may succeed."""

    reason: str  # one line
    log: str = ""  # output of the worker


class Pool(Closing, Generic[J, R]):
    """Runs up to `workers` processes, started on demand and killed on leaving the context.

    `function`, and `warm`, which each worker calls once before its first job, must be importable by name: no lambdas
    and nothing from `__main__`. Workers inherit the caller's environment variables plus those of `environment`. Only
    one thread at a time may use a pool.
    """

    def __init__(
        self,
        function: Callable[[J], R | Lost],
        *,
        workers: int | None = None,
        limits: Limits | None = None,
        warm: Callable[[], object] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._function, self._warm, self._environment = function, warm, environment or {}
        self._most = workers or len(os.sched_getaffinity(0))
        self._limits = limits or Limits()
        self._workers: list[_Worker] = []
        self._failed_starts = 0

    def close(self) -> None:
        """Kill the workers and their children."""
        for worker in list(self._workers):
            self._drop(worker)

    def run(self, jobs: Iterable[J], timeout_s: float | None = None) -> Iterator[tuple[J, R | Lost]]:
        """Yield each job with its answer, in order of completion. A job is taken when a worker becomes free.

        `timeout_s` overrides the pool's time limit for these jobs. Raises what `function` raises, and MachineError if
        workers do not start.
        """
        source, pending = iter(jobs), deque[J]()
        try:
            while True:
                pending.extend(islice(source, self._most - len(self._in(_State.BUSY)) - len(pending)))
                self._assign(pending, timeout_s or self._limits.timeout_s)
                if not pending and not self._in(_State.BUSY):
                    return
                for worker in self._heard():
                    yield from self._answers(worker)
        finally:
            for worker in self._in(_State.BUSY):
                self._drop(worker)

    def pids(self) -> tuple[int, ...]:
        """The process ids of the workers."""
        return tuple(worker.process.pid for worker in self._workers)

    def _in(self, state: "_State") -> "list[_Worker]":
        return [worker for worker in self._workers if worker.state is state]

    def _assign(self, pending: deque[J], timeout_s: float) -> None:
        """Assign jobs to idle workers, and start workers for the remaining jobs."""
        for worker in self._in(_State.IDLE):
            if pending:
                try:
                    worker.give(pending[0], timeout_s)
                    pending.popleft()
                except OSError:  # it died while idle
                    self._drop(worker)
        while len(self._in(_State.STARTING)) < len(pending) and len(self._workers) < self._most:
            self._workers.append(_Worker(self._function, self._warm, self._limits.memory_bytes, self._environment))

    def _heard(self) -> "list[_Worker]":
        """Wait for a worker, and return those that sent a message, died or timed out."""
        active = {worker.connection: worker for worker in self._workers if worker.state is not _State.IDLE}
        first = min(worker.deadline for worker in active.values())
        spoke: list[Any] = wait(list(active), max(first - time.monotonic(), 0.0))
        return [active[connection] for connection in spoke] or [w for w in active.values() if w.deadline == first]

    def _answers(self, worker: "_Worker") -> Iterator[tuple[J, R | Lost]]:
        """Yield the job's answer, or nothing if the worker has just started."""
        job, state, message = worker.job, worker.state, worker.hear()
        if isinstance(message, _Raised):
            self._drop(worker)
            raise message.error
        if isinstance(message, _Answer):
            self._failed_starts = 0
            if isinstance(message.value, Lost):  # out of memory: the memory it still holds would starve the next job
                self._drop(worker)
            if state is _State.BUSY:
                yield job, message.value
            return
        self._drop(worker)
        lost = worker.lost(late=isinstance(message, _Late))
        if state is _State.BUSY:
            yield job, lost
        else:
            self._count_failed_start(lost)

    def _count_failed_start(self, lost: Lost) -> None:
        self._failed_starts += 1
        if self._failed_starts == _START_TRIES:
            raise MachineError(f"worker processes do not start ({lost.reason}):\n{lost.log}")

    def _drop(self, worker: "_Worker") -> None:
        self._workers.remove(worker)
        worker.kill()


class _State(Enum):
    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class _Answer:
    value: Any = None


@dataclass(frozen=True, slots=True)
class _Raised:
    error: BaseException


@dataclass(frozen=True, slots=True)
class _Late:
    """No message before the deadline."""


@dataclass(frozen=True, slots=True)
class _Dead:
    """The connection was closed."""


class _Worker:
    """The caller's side of one process: its connection, its job and its deadline."""

    def __init__(
        self,
        function: Callable[[Any], Any],
        warm: Callable[[], object] | None,
        memory_bytes: int,
        environment: Mapping[str, str],
    ) -> None:
        path = os.pathsep.join(path or "." for path in sys.path)
        here, there = socket.socketpair()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # it outlives this call; `lost` closes it
        with there:
            self.process = subprocess.Popen(
                # -P: in an operator's folder, operator.py would shadow the standard module.
                [sys.executable, "-P", "-c", _CHILD, str(there.fileno())],
                pass_fds=(there.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env={**os.environ, **_ONE_THREAD, "PYTHONPATH": path, **environment},
                process_group=0,
            )
        self.connection: Connection[Any, Any] = Connection(here.detach())
        self.state = _State.STARTING
        self.job: Any = None
        self.deadline = time.monotonic() + _START_TIMEOUT_S
        self._timeout_s = _START_TIMEOUT_S
        with suppress(OSError):  # it died at once; `hear` reports it
            self.connection.send((function, warm, memory_bytes))

    def give(self, job: Any, timeout_s: float) -> None:
        """Send a job. Raises OSError if the process has exited."""
        self._log.seek(0)  # the process shares this file offset, so its log starts anew
        self._log.truncate()
        self.connection.send(job)
        self.state, self.job = _State.BUSY, job
        self._timeout_s = timeout_s
        self.deadline = time.monotonic() + timeout_s

    def hear(self) -> _Answer | _Raised | _Late | _Dead:
        try:
            if not self.connection.poll():
                return _Late()
            message: _Answer | _Raised = self.connection.recv()
        except (EOFError, OSError):
            return _Dead()
        self.state, self.job = _State.IDLE, None
        return message

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.connection.close()

    def lost(self, *, late: bool) -> Lost:
        """Return why a killed worker gave no answer, and delete its log."""
        with self._log as log:
            log.seek(0)
            text = log.read().decode(errors="replace")
        return Lost(f"no answer within {self._timeout_s:g} s" if late else self._death(text), text)

    def _death(self, log: str) -> str:
        code = self.process.returncode
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        last = log.strip().rpartition("\n")[2]
        return f"the process {how}" + (f": {last}" if last else "")


def _serve(descriptor: int) -> NoReturn:
    """The worker's main loop: answer jobs until the caller kills it or exits."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller handles Ctrl-C
    threading.Thread(target=_end_with_caller, args=(descriptor,), daemon=True).start()
    connection: Connection[Any, Any] = Connection(descriptor)
    function, warm, memory_bytes = connection.recv()
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    connection.send(_answer(lambda _: warm() if warm else None, None, memory_bytes))
    while True:
        connection.send(_answer(function, connection.recv(), memory_bytes))


def _end_with_caller(descriptor: int) -> None:
    """Exit with the caller, even in the middle of a job, which would otherwise continue as an orphan."""
    watch = select.poll()
    watch.register(descriptor, select.POLLRDHUP)
    watch.poll()
    os.killpg(0, signal.SIGKILL)


def _answer(function: Callable[[Any], object], job: object, memory_bytes: int) -> _Answer | _Raised:
    try:
        return _Answer(function(job))
    except MemoryError:
        return _Answer(
            Lost(f"out of memory: it needs more than {memory_bytes / 2**30:.3g} GiB", traceback.format_exc())
        )
    except Exception as error:  # raised again in the caller
        error.add_note(f"in a worker process:\n{traceback.format_exc()}")
        return _Raised(error)
