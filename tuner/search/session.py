"""Searches with what this machine has: measured where the GPU that is asked for is here, predicted elsewhere."""

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from tuner.arch import GPU, is_listed
from tuner.backends import gpu
from tuner.base.cache import cache_dir
from tuner.compiler.nvrtc import Compiler, toolkit
from tuner.errors import MachineError
from tuner.evaluate.check.checker import Checker
from tuner.evaluate.measure.gpu_device import Physical
from tuner.evaluate.measure.ledger import Ledger
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.evaluate.measure.worker import Worker
from tuner.evaluate.measurer import Measurer, Setup
from tuner.evaluate.predictor import Predictor
from tuner.results.attempt import Evidence
from tuner.search import study
from tuner.search.final_race import final_race
from tuner.search.study import Outcome, Progress, SearchRequest
from tuner.spec.instance import Instance
from tuner.store.sql import Store

_KEPT_FREE = 2  # cores

Observe = Callable[[Progress], None]


class Session(Protocol):
    """Searches of problems for one GPU, which share compilers, a checker and a store."""

    def search(self, request: SearchRequest, observe: Observe, stopped: Callable[[], bool]) -> Outcome:
        """Search one problem."""

    def extend(self, outcome: Outcome, wanted: Sequence[Instance], observe: Observe) -> Outcome:
        """Try more configs on a problem that was searched."""

    def judge(self, outcome: Outcome, wanted: Sequence[Instance], observe: Observe) -> Outcome:
        """Give tried configs of a problem a verdict."""


class Predicted:
    """A session on a machine without the GPU."""

    def __init__(self, target: GPU, store: Store, compiler: Compiler, checker: Checker) -> None:
        self._store, self._evaluator = store, Predictor(target, compiler, checker)

    def search(self, request: SearchRequest, observe: Observe, stopped: Callable[[], bool]) -> Outcome:
        return study.search(request, self._store, self._evaluator, observe, stopped)

    def extend(self, outcome: Outcome, wanted: Sequence[Instance], observe: Observe) -> Outcome:
        return study.extend(outcome, self._store, self._evaluator, wanted, observe)

    def judge(self, outcome: Outcome, wanted: Sequence[Instance], observe: Observe) -> Outcome:
        return study.judge(outcome, self._store, self._evaluator, wanted, observe)


class Measured:
    """A session on the GPU of this machine. Winners are settled by a final race."""

    def __init__(self, target: GPU, store: Store, compiler: Compiler, checker: Checker, setup: Setup) -> None:
        self._target, self._store, self._compiler, self._checker = target, store, compiler, checker
        self._setup = setup
        self._measurers: dict[object, Any] = {}  # by problem: what one has judged it need not judge again

    def search(self, request: SearchRequest, observe: Observe, stopped: Callable[[], bool]) -> Outcome:
        found = study.search(request, self._store, self._measurer(request), observe, stopped)
        return self._raced(found)

    def extend(self, outcome: Outcome, wanted: Sequence[Instance], observe: Observe) -> Outcome:
        found = study.extend(outcome, self._store, self._measurer(outcome.request), wanted, observe)
        return found if found.record == outcome.record else self._raced(found)

    def judge(self, outcome: Outcome, wanted: Sequence[Instance], observe: Observe) -> Outcome:
        return study.judge(outcome, self._store, self._measurer(outcome.request), wanted, observe)

    def _raced(self, outcome: Outcome) -> Outcome:
        request = outcome.request
        raced, _ = final_race(outcome, self._store, self._measurer(request), request.seed)
        return raced

    def _measurer(self, request: SearchRequest) -> Any:
        if request.problem not in self._measurers:
            self._measurers[request.problem] = Measurer(
                request.operator, request.problem, self._target, self._compiler, self._checker, self._setup
            )
        return self._measurers[request.problem]


def evidence_for(target: GPU) -> Evidence:
    """What a search for `target` can know on this machine."""
    here = _here()
    return Evidence.MEASURED if here is not None and here.name == target.name else Evidence.PREDICTED


def why_predicted(target: GPU) -> str:
    """What keeps a search from being measured on the GPU of this machine; empty where there is none to be meant."""
    here = _here()
    if here is None:
        return gpu.trouble()
    meant = target.name == target.arch.name or not is_listed(here)
    if not meant or here.arch.name != target.arch.name or here.name == target.name:
        return ""
    return f"ask for the GPU of this machine by --gpu {shlex.quote(here.name)}"


def compilers_beside_timing() -> int:
    """How many processes may compile while a device is timed: who queues its launches, and the driver, keep a core."""
    return max(1, len(os.sched_getaffinity(0)) - _KEPT_FREE)


@contextmanager
def session(
    target: GPU,
    store: Store,
    compiler: Compiler,
    checker: Checker,
    policy: MeasurementPolicy,
    *,
    retry: bool = False,
) -> Iterator[Session]:
    """A session of what this machine can know, timed by `policy`; a device process lives as long as it. Raises
    MachineError for a driver that loads nothing that the compiler makes.

    With `retry`, no config is banned for having taken the device down in earlier ones.
    """
    if evidence_for(target) is Evidence.PREDICTED:
        yield Predicted(target, store, compiler, checker)
        return
    if gpu.available():
        gpu.check_driver(toolkit())
    path = cache_dir() / "ledger" / target.name
    if retry:
        path.unlink(missing_ok=True)
    with Worker(Physical()) as worker:
        setup = Setup(worker, policy, Ledger(path))
        yield Measured(target, store, compiler, checker, setup)


def _here() -> GPU | None:
    """The GPU of this machine; None where there is none, or it is of no arch that we know."""
    try:
        return gpu.current_gpu() if gpu.available() else None
    except MachineError:
        return None
