"""An application under load while records arrive: threads that call an operator, and records that change its kernel."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.served import snapshot
from tuner.results.record import TuningRecord
from tuner.spec.instance import Instance
from tuner.store import record_lines


def records(*instances: Instance, target: str, arch: str) -> list[TuningRecord]:
    """Return a record of each config with the current source."""
    listed = snapshot(*instances, target=target, arch=arch)
    return [stored.record for stored in listed.records(instances[0].operator.name)]


class Load:
    """Threads that repeat calls until they are stopped. `call(number)` raises if a result is wrong.

    `seconds` contains the duration of each call of each thread by `clock`, `errors` the exceptions of calls.
    """

    def __init__(self, call: Callable[[int], object], threads: int, pause_s: float = 0.0) -> None:
        self._call, self._pause_s, self._stop = call, pause_s, threading.Event()
        self.seconds: list[list[float]] = [[] for _ in range(threads)]
        self.errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._repeat, args=(number,)) for number in range(threads)]

    @contextmanager
    def running(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()

    def _repeat(self, number: int) -> None:
        while not self._stop.is_set():
            began = time.perf_counter()
            try:
                self._call(number)
            except BaseException as error:
                self.errors.append(error)
                return
            self.seconds[number].append(time.perf_counter() - began)
            time.sleep(self._pause_s)


def arrive(
    path: Path, each: Sequence[TuningRecord], runs: Callable[[], Any], patience_s: float, look_s: float = 0.02
) -> int:
    """Write the records one after another, each once the previous one runs; return how many ran within `patience_s`."""
    served = 0
    for record in each:
        record_lines.write(path, [record])
        deadline = time.monotonic() + patience_s
        while runs() != dict(record.config):
            if time.monotonic() > deadline:
                return served
            time.sleep(look_s)
        served += 1
    return served
