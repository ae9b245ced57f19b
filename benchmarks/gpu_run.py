"""A run of `gpu.py`: its output, time limit and measuring tools, and steps that are executed once."""

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_archive import Keeper
from gpu_plan import planned_s
from gpu_rows import Rows

from tuner.arch import GPU
from tuner.backends import gpu
from tuner.base.fields import Fields
from tuner.base.pool import Limits
from tuner.bench import Venue
from tuner.bench.peers import Rehearsed
from tuner.compiler.nvrtc import Compiler
from tuner.evaluate.check.checker import Checker
from tuner.evaluate.measure.crash_ledger import Ledger
from tuner.evaluate.measure.gpu_device import Physical
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.evaluate.measure.worker import DeviceOpener, Worker
from tuner.evaluate.measurer import Setup

if TYPE_CHECKING:  # imported on use elsewhere, because a machine without these packages must be able to run the rest
    from tuner.search import study
    from tuner.store.sql import Store

_COMPILING = 16 << 30  # address space of a compiler in bytes: a driver maps more than the compiler uses
_ROOMY = 32 << 30  # memory of a device in bytes
_SPARE_CORES = 2  # cores that compilers leave to the timing processes
_FAREWELL_S = 10.0  # part of a run's time that is reserved for its archive


def _simulation() -> DeviceOpener:
    """Return the simulated device, which is part of the tests and not needed on a GPU."""
    from tests.support.simulated_device import Simulation

    return Simulation()


class Run:
    """A call of the program, which ends when its time is over.

    A `small` run takes little time on any device. `guests` are the peers of a simulated device.
    """

    def __init__(
        self,
        out: Path,
        minutes: float,
        stack: ExitStack,
        *,
        small: bool,
        simulate: bool,
        archive: Path | None,
        guests: tuple[Rehearsed, ...] = (),
    ) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self._keeper = Keeper(out, archive)
        stack.callback(self._keeper.close)
        self.out, self.small, self.simulate, self.guests = out, small, simulate, guests
        self._began, self._seconds = time.monotonic(), 60 * minutes
        self._step = ""  # name of the current step
        self.rows = Rows(out)
        self._end_in_time(stack)
        self.opener = _simulation() if simulate else Physical()
        self.policy = MeasurementPolicy()
        self._stack = stack
        self.worker = stack.enter_context(Worker(self.opener))
        self.venue = stack.enter_context(Venue(self.opener))
        self.outcomes: list[study.Outcome] = []

    @cached_property
    def _facts(self) -> Fields:
        return self.worker.describe().facts

    @cached_property
    def gpu(self) -> GPU:
        """The GPU. Raises MachineError if there is none."""
        return gpu.named(str(self._facts["gpu"]))

    @property
    def exclusive(self) -> bool:
        """Whether only one process at a time may use the GPU."""
        return bool(self._facts.get("exclusive"))

    @property
    def cramped(self) -> bool:
        """Whether the GPU's memory is too small for the measuring and the comparing process together."""
        return self.exclusive or int(self._facts.get("memory_bytes", _ROOMY)) < _ROOMY

    @cached_property
    def store(self) -> "Store":
        from tuner.store.sql import Store

        store = self._stack.enter_context(Store.open(self.out / "tuner.db"))
        store.add_device(self.gpu.name, self.rows.steps.get("device", self._facts))
        return store

    @cached_property
    def compiler(self) -> Compiler:
        most = max(len(os.sched_getaffinity(0)) - _SPARE_CORES, 1)
        return self._stack.enter_context(Compiler(most, limits=Limits(memory_bytes=_COMPILING)))

    @cached_property
    def setup(self) -> Setup:
        return Setup(self.worker, self.policy, Ledger(self.out / "ledger"))

    @cached_property
    def checker(self) -> Checker:
        return self._stack.enter_context(Checker(1))

    @property
    def left_s(self) -> float:
        """Return the seconds that are left for planned steps."""
        return self._began + planned_s(self._seconds) - time.monotonic()

    def say(self, text: str) -> None:
        line = f"[{self.left_s:5.0f} s left] {text}"
        print(line, file=sys.stderr, flush=True)
        with (self.out / "log.txt").open("a") as log:
            log.write(line + "\n")

    def step(
        self,
        name: str,
        work: Callable[[], Any],
        seconds: float,
        details: Mapping[str, Any] | None = None,
        most_s: float = 0.0,
    ) -> bool:
        """Run and record one step, unless it is done or less than `seconds` are left; return whether it ran now.

        A step that failed or was interrupted is repeated by the next call. `details` is recorded at the start of the
        step; `most_s` is its time limit if more than `seconds` are left.
        """
        if self.done(name):
            return False
        if self.left_s < seconds:
            self.say(f"{name}: takes up to {seconds:.0f} s, so it is left for another call")
            return False
        may_take_s = max(seconds, most_s)
        began, self._step = time.monotonic(), name
        self.rows.begin(name, may_take_s, details or {})
        try:
            data = work()
        except Exception as error:  # later steps may still succeed
            data = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()[-2000:]}
        took_s = time.monotonic() - began
        self.rows.end(name, data | {"seconds": round(took_s, 2), "may_take_s": round(may_take_s, 1)})
        self._step = ""
        over = f" (it took {took_s:.0f} s instead of {may_take_s:.0f})" if took_s > may_take_s else ""
        self.say(f"{name}: {data.get('error') or data.get('summary', 'done')}{over}")
        self._keeper.renew()
        return True

    def find(self, **found: Any) -> None:
        """Record a result of the current step, which is kept if the step does not end."""
        self.rows.find(self._step, found)

    def reopen(self, prefix: str) -> None:
        """Mark the steps with this name prefix as not done."""
        for name in [name for name in self.rows.steps if name.startswith(prefix) and self.done(name)]:
            self.rows.reopen(name)

    def done(self, name: str) -> bool:
        """Return whether a step ended in this call or an earlier one."""
        earlier = self.rows.steps.get(name)
        return earlier is not None and "error" not in earlier and bool(earlier.get("finished", True))

    def show(self, name: str, work: Callable[[], object]) -> None:
        """Write a presentation of the results; a failure is logged and has no other effect."""
        try:
            work()
        except Exception as error:
            self.say(f"{name}: {type(error).__name__}: {error}")

    @property
    def failed(self) -> bool:
        """Whether a step failed or was cut off, which the exit code says."""
        unfinished = any("error" in data or not data.get("finished", True) for data in self.rows.steps.values())
        return unfinished or bool(self._step)

    def _end_in_time(self, stack: ExitStack) -> None:
        timer = threading.Timer(max(self._seconds - _FAREWELL_S, self._seconds / 2), self._end)
        timer.daemon = True
        timer.start()
        stack.callback(timer.cancel)

    def _end(self) -> None:
        """Interrupt the current step with its processes, which end with their caller, because the time is over."""
        with suppress(OSError):
            self.say(f"the time is over{': ' + self._step + ' is interrupted' if self._step else ''}")
            self._keeper.close(_FAREWELL_S / 2)
        os._exit(int(self.failed))
