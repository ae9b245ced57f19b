"""The GPUs of this machine as an executor: one process per GPU, which sees only that GPU through CUDA."""

import os
import resource
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tuner.arch import GPU
from tuner.backends import gpu
from tuner.base.pool import Limits, Lost, Pool
from tuner.errors import MachineError, UsageError
from tuner.evaluate.measure.gpu_device import Physical
from tuner.evaluate.measure.worker import DeviceOpener
from tuner.search.work_unit import Unit, UnitResult

ALL = "all"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_LONGEST_S = 14 * 86_400.0  # per problem
_MOST_FAILURES = 2  # consecutive failures after which a GPU receives no more problems
_LOOK_S = 0.2


@dataclass(frozen=True)
class LocalGpu:
    """A GPU of this machine, and the environment in which a process sees only this GPU."""

    ordinal: int
    uuid: str
    opener: DeviceOpener = field(default_factory=Physical)
    visible: str = ""  # CUDA_VISIBLE_DEVICES for a process that sees only this GPU; empty: unchanged

    def __str__(self) -> str:
        return f"GPU {self.ordinal} ({self.uuid})" if self.uuid else f"GPU {self.ordinal}"


def chosen_gpus(words: str, target: GPU) -> list[LocalGpu]:
    """Return the GPUs that `all`, or a list such as `0,2,4-7`, names. Raises UsageError if one of them is not a
    `target`.
    """
    here = {ordinal: gpu.current_gpu(ordinal) for ordinal in range(gpu.count())}
    if words == ALL:
        wanted = [ordinal for ordinal, model in here.items() if model.name == target.name]
        if not wanted:
            raise UsageError(f"--gpus all: this machine has no {target.name} (it has {_models(here)})")
    else:
        wanted = ordinals(words)
    for ordinal in wanted:
        if ordinal not in here:
            raise UsageError(f"--gpus {words}: there is no GPU {ordinal} here (it has {_models(here)})")
        if here[ordinal].name != target.name:
            raise UsageError(
                f"--gpus {words}: GPU {ordinal} is a {here[ordinal].name}, and --gpu asks for {target.name}"
            )
    return [LocalGpu(ordinal, gpu.uuid(ordinal), Physical(), _as_seen_from_outside(ordinal)) for ordinal in wanted]


def ordinals(words: str) -> list[int]:
    """Parse `0,2,4-7` into distinct indices. Raises UsageError."""
    indices: dict[int, None] = {}
    for part in filter(None, (word.strip() for word in words.split(","))):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or int(last or first) < int(first):
            raise UsageError(f"--gpus {words}: give all, or numbers such as 0,2,4-7")
        indices |= dict.fromkeys(range(int(first), int(last or first) + 1))
    if not indices:
        raise UsageError(f"--gpus {words!r}: give all, or numbers such as 0,2,4-7")
    return list(indices)


def _models(here: Mapping[int, GPU]) -> str:
    return ", ".join(f"{ordinal}: {model.name}" for ordinal, model in here.items()) or "none"


def _as_seen_from_outside(ordinal: int) -> str:
    """Return the value of CUDA_VISIBLE_DEVICES that shows only this GPU to a child process."""
    listed = [word.strip() for word in os.environ.get(_VISIBLE, "").split(",") if word.strip()]
    return listed[ordinal] if ordinal < len(listed) else str(ordinal)


@dataclass
class _Job:
    future: Future[UnitResult]
    work: Callable[..., UnitResult]
    unit: Unit
    failed_on: set[LocalGpu] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.device = self.unit.device


class GpuExecutor(Executor):
    """Runs units on the GPUs of this machine, one at a time per GPU. The CPU cores are divided among the GPUs.

    A failing GPU affects only its own problems: they move to another GPU, and a GPU that fails twice in a row receives
    no more. `report` receives a message for both events.
    """

    def __init__(self, gpus: Sequence[LocalGpu], report: Callable[[str], None] = lambda _: None) -> None:
        self._gpus, self._report = list(gpus), report
        self._jobs: list[_Job] = []
        self._changed, self._closed = threading.Condition(), False
        self._working = set(range(len(self._gpus)))
        self._pools: list[Pool[Any, UnitResult]] = []
        cores = _divided(sorted(os.sched_getaffinity(0)), len(self._gpus))
        self._threads = [
            threading.Thread(target=self._serve, args=(number, cores[number]), daemon=True)
            for number in range(len(self._gpus))
        ]
        for thread in self._threads:
            thread.start()

    def capacity(self) -> int:
        """Return the number of GPUs that still accept problems."""
        return max(len(self._working), 1)  # without any GPU, submitted units fail at once

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        assert not kwargs and len(args) == 1, "a unit is all that is submitted"
        job = _Job(Future(), fn, args[0])
        with self._changed:
            if self._closed:
                raise RuntimeError("the executor is closed")
            self._jobs.append(job)
            self._fail_hopeless()
            self._changed.notify_all()
        return job.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes: immediately with `cancel_futures`, otherwise after all submitted units."""
        with self._changed:
            self._closed = True
            if cancel_futures:
                for job in self._jobs:
                    job.future.cancel()
                self._jobs.clear()
            self._changed.notify_all()
        if cancel_futures:
            for pool in list(self._pools):
                for pid in pool.pids():
                    with suppress(OSError):
                        os.killpg(pid, 9)
        if wait:
            for thread in self._threads:
                thread.join()

    def _serve(self, number: int, cores: Sequence[int]) -> None:
        """Run the thread of a GPU: one unit after another, in a process of its own."""
        device, failures = self._gpus[number], 0
        memory = resource.getrlimit(resource.RLIMIT_AS)[1]  # CUDA reserves address space for all memory of the machine
        limits = Limits(_LONGEST_S, memory)
        environment = {_VISIBLE: device.visible} if device.visible else {}
        with Pool(_perform, workers=1, limits=limits, environment=environment) as pool:
            self._pools.append(pool)
            while (job := self._next(device)) is not None:
                begins = not job.failed_on
                if begins and not job.future.set_running_or_notify_cancel():
                    continue
                failure = self._attempt(pool, job, device, cores)
                failures = failures + 1 if failure else 0
                if failure:
                    self._pass_on(job, device, failure)
                if failures >= _MOST_FAILURES:
                    self._retire(number, failure)
                    return

    def _attempt(self, pool: "Pool[Any, UnitResult]", job: _Job, device: LocalGpu, cores: Sequence[int]) -> str:
        """Run a unit. Return the GPU's error; empty if there is none."""
        try:
            ((_, answer),) = pool.run([(job.work, job.unit, device.opener, device.uuid, tuple(cores))])
        except MachineError as error:
            return str(error)
        except Exception as error:
            job.future.set_exception(error)
            return ""
        if isinstance(answer, Lost):
            return answer.reason
        job.future.set_result(answer)
        return ""

    def _next(self, device: LocalGpu) -> _Job | None:
        """Return the next unit for a GPU; None if no more will follow."""
        with self._changed:
            while True:
                for job in self._jobs:
                    if device not in job.failed_on and job.device in ("", device.uuid):
                        self._jobs.remove(job)
                        return job
                if self._closed and not self._jobs:
                    return None
                self._changed.wait(_LOOK_S if self._closed else None)

    def _pass_on(self, job: _Job, device: LocalGpu, why: str) -> None:
        with self._changed:
            job.failed_on.add(device)
            if self._closed or job.device:
                job.future.set_exception(MachineError(f"{' and '.join(map(str, job.failed_on))} failed, last: {why}"))
                return
            self._report(f"{device} failed ({why}): its problem goes to another GPU")
            self._jobs.append(job)
            self._fail_hopeless()
            self._changed.notify_all()

    def _retire(self, number: int, why: str) -> None:
        with self._changed:
            self._working.discard(number)
            self._report(
                f"{self._gpus[number]} failed {_MOST_FAILURES} times in a row and gets no more problems: {why}"
            )
            self._fail_hopeless()
            self._changed.notify_all()

    def _fail_hopeless(self) -> None:
        """Fail the units that no working GPU accepts."""
        working = [self._gpus[number] for number in self._working]
        for job in list(self._jobs):
            if not any(device not in job.failed_on and job.device in ("", device.uuid) for device in working):
                self._jobs.remove(job)
                job.future.set_exception(MachineError("no GPU is left that works"))


def _perform(job: tuple[Callable[..., UnitResult], Unit, DeviceOpener, str, tuple[int, ...]]) -> UnitResult:
    """Run a unit in the process of a GPU."""
    work, unit, opener, uuid, cores = job
    os.sched_setaffinity(0, cores)
    return work(unit, opener, uuid)


def _divided(cores: Sequence[int], parts: int) -> list[list[int]]:
    """Return the CPU cores of each GPU: adjacent cores; with fewer cores than GPUs, cores are shared."""
    if len(cores) < parts:
        return [[cores[number % len(cores)]] for number in range(parts)]
    bounds = [round(i * len(cores) / parts) for i in range(parts + 1)]
    return [list(cores[first:last]) for first, last in pairwise(bounds)]
