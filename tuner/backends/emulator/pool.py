"""Emulator jobs in killable processes: a kernel that crashes or hangs affects only its own verdict."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from tuner.backends.emulator.kernel import Finding
from tuner.base import pool
from tuner.base.self_closing import Closing

J = TypeVar("J")
R = TypeVar("R")

PATIENCE_S = 600.0  # generous for busy machines; a hanging kernel is detected earlier, by CPU time
_MEMORY_BYTES = 16 << 30  # address space per process: a launch reserves far more than it uses


class Pool(Closing):
    """Up to `workers` processes that run one job at a time, each for at most `timeout_s` seconds."""

    def __init__(self, workers: int | None = None, timeout_s: float = PATIENCE_S) -> None:
        limits = pool.Limits(timeout_s, _MEMORY_BYTES)
        self._pool: pool.Pool[Any, Any] = pool.Pool(_apply, workers=workers, limits=limits)

    def close(self) -> None:
        self._pool.close()

    def map(self, function: Callable[[J], R], jobs: Sequence[J]) -> Iterator[tuple[int, R | Finding]]:
        """Yield (position, function(job)) in order of completion; a Finding of kind `lost` if the process ended without
        an answer.

        `function` must be importable by name; its exceptions are raised here.
        """
        calls = [(position, function, job) for position, job in enumerate(jobs)]
        for (position, _, _), answer in self._pool.run(calls):
            yield position, Finding("lost", answer.reason) if isinstance(answer, pool.Lost) else answer


def _apply(call: tuple[int, Callable[[Any], Any], Any]) -> Any:
    _, function, job = call
    return function(job)
