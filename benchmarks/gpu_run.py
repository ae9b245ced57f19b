"""A run of `gpu.py`: where it writes, how long it may take, what it measures with, and steps that are done once."""

import json
import sys
import tarfile
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tuner.base.pool import Limits
from tuner.compiler.nvrtc import Compiler
from tuner.evaluate.check.checker import Checker
from tuner.evaluate.measure.gpu_device import Physical
from tuner.evaluate.measure.ledger import Ledger
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.evaluate.measure.simulated import Simulation
from tuner.evaluate.measure.worker import Worker
from tuner.evaluate.measurer import Setup
from tuner.machines import gpu
from tuner.search import study
from tuner.store.sql import Store

_COMPILING = 16 << 30  # bytes of address space for a compiler: a driver maps more than the compiler takes
_PACK_S = 20.0


class Results:
    """results.json: steps by name, each written when it is done, whole or not at all."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.steps: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def put(self, step: str, data: Any) -> None:
        self.steps[step] = data
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps(self.steps, indent=1, default=str))
        partial.replace(self._path)


class Archive:
    """Everything in a folder as one file, whole at any moment; without a path nothing is packed."""

    def __init__(self, folder: Path, path: Path | None) -> None:
        self._folder, self._path, self._packed = folder, path, time.monotonic()
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)

    def renew(self) -> None:
        """Now and then: packing takes time from the steps."""
        if time.monotonic() - self._packed > _PACK_S:
            self.pack()

    def pack(self) -> None:
        if self._path is None:
            return
        partial = self._path.with_name(self._path.name + ".partial")
        own = {self._path.resolve(), partial.resolve()}  # they may lie in the folder
        with tarfile.open(partial, "w:gz", compresslevel=3) as packed:
            for each in sorted(self._folder.rglob("*")):
                if each.resolve() not in own:
                    packed.add(each, self._folder.name / each.relative_to(self._folder), recursive=False)
        partial.replace(self._path)
        self._packed = time.monotonic()


class Run:
    """One call of the program. What is `small` takes little time on any device; a simulated one is not there."""

    def __init__(
        self, out: Path, minutes: float, stack: ExitStack, *, small: bool, simulate: bool, archive: Path | None
    ) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self._archive = Archive(out, archive)
        stack.callback(self._archive.pack)
        self.out, self.small, self.simulate, self.seconds = out, small, simulate, 60 * minutes
        self._started = time.monotonic()
        self.results = Results(out / "results.json")
        self.place = Simulation() if simulate else Physical()
        self.policy = MeasurementPolicy()
        self.store = stack.enter_context(Store.open(out / "tuner.db"))
        self.compiler = stack.enter_context(Compiler(limits=Limits(memory_bytes=_COMPILING)))
        self.checker = stack.enter_context(Checker(1))
        self.worker = stack.enter_context(Worker(self.place))
        self.setup = Setup(self.worker, self.policy, Ledger(out / "ledger"))
        facts = self.worker.look().facts
        self.gpu, self.exclusive = gpu.named(str(facts["gpu"])), bool(facts.get("exclusive"))
        self.outcomes: list[study.Outcome] = []

    @property
    def left_s(self) -> float:
        return self.until(1.0)

    def until(self, share: float) -> float:
        """Seconds until this share of the run's time is over; negative afterwards."""
        return self._started + share * self.seconds - time.monotonic()

    def say(self, text: str) -> None:
        line = f"[{self.left_s:5.0f} s left] {text}"
        print(line, file=sys.stderr, flush=True)
        with (self.out / "log.txt").open("a") as log:
            log.write(line + "\n")

    def step(self, name: str, work: Callable[[], Any]) -> bool:
        """Do and write one step, unless it is done or the time is up; whether it was done now.

        What failed, or was not finished in its time, is taken up again by the next call.
        """
        if self.left_s <= 0 or self.done(name):
            return False
        started = time.monotonic()
        try:
            data = work()
        except Exception as error:  # the next step may still tell something
            data = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()[-2000:]}
        self.results.put(name, data | {"seconds": round(time.monotonic() - started, 2)})
        self.say(f"{name}: {data.get('error') or data.get('summary', 'done')}")
        self.show("archive", self._archive.renew)
        return True

    def done(self, name: str) -> bool:
        """Whether a step has come to its end, in this call or an earlier one."""
        known = self.results.steps.get(name)
        return known is not None and "error" not in known and bool(known.get("finished", True))

    def show(self, name: str, work: Callable[[], object]) -> None:
        """Write what only shows what is known: a failure is told, and costs nothing else."""
        try:
            work()
        except Exception as error:
            self.say(f"{name}: {type(error).__name__}: {error}")
