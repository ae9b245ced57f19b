"""Search sessions: measured if the requested GPU is in this machine, predicted otherwise."""

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from tuner.arch import GPU, is_listed
from tuner.backends import gpu
from tuner.base.cache import cache_dir
from tuner.compiler.nvrtc import Compiler, toolkit
from tuner.errors import MachineError
from tuner.evaluate.check.checker import Checker
from tuner.evaluate.evaluator import Evaluator
from tuner.evaluate.measure.crash_ledger import Ledger
from tuner.evaluate.measure.gpu_device import Physical
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.evaluate.measure.worker import DeviceOpener, Worker
from tuner.evaluate.measurer import Measurer, Setup
from tuner.evaluate.predictor import Predictor
from tuner.results.attempt import Evidence
from tuner.results.record import TuningRecord
from tuner.search import study
from tuner.search.final_race import final_race
from tuner.search.problem_waves import Wave, waves
from tuner.search.prove import default_instances, judge
from tuner.search.request import SearchRequest
from tuner.search.stored_ledger import StoredLedger
from tuner.search.study import Outcome, Progress
from tuner.spec.instance import Instance
from tuner.store.sql import Store

_KEPT_FREE = 2  # cores

Observe = Callable[[Progress], None]
Watch = Callable[[SearchRequest], AbstractContextManager[Observe]]
Evaluators = Callable[[SearchRequest], Evaluator]
Wanted = Sequence[tuple[Outcome, Sequence[Instance]]]  # configs of searched problems


class Searches(Protocol):
    """Searches of many problems: sequential on this machine (`Session`), or parallel elsewhere (`fleet.Fleet`)."""

    def search_all(self, requests: Sequence[SearchRequest], watch: Watch, stopped: Callable[[], bool]) -> list[Outcome]:
        """Return the outcome of each problem, in order; problems not started when `stopped()` returns True are
        omitted.
        """

    def extend_all(self, wanted: Wanted, watch: Watch) -> list[Outcome]:
        """Try these configs on each problem; outcomes without configs are returned unchanged."""

    def check_all(self, wanted: Wanted, watch: Watch) -> list[Outcome]:
        """Check these configs of each problem; outcomes without configs are returned unchanged."""


class Session:
    """Searches for one GPU that share a store and evaluators, which keep what they have learnt."""

    def __init__(
        self, store: Store, evaluator_of: Evaluators, worker: Worker | None = None, ledger: StoredLedger | None = None
    ) -> None:
        self._store, self._evaluator_of = store, evaluator_of
        self._worker, self._ledger = worker, ledger

    def evaluator(self, request: SearchRequest) -> Evaluator:
        """Return the evaluator of a problem's configs."""
        return self._evaluator_of(request)

    def refuse_broken(self) -> None:
        """Raise MachineError if the device fails at a plain copy or an empty kernel, so that no config is blamed for
        it.
        """
        if self._worker is None:
            return
        try:
            self._worker.describe(ceilings=True)
        except MachineError:
            if self._ledger is not None:
                self._ledger.forgive_own()
            raise

    def recall(self, request: SearchRequest, record: TuningRecord | None) -> Outcome:
        """Return what is stored about a problem, with the record of its last search."""
        return replace(study.recall(request, self._store, self._evaluator_of(request)), record=record)

    def search_all(self, requests: Sequence[SearchRequest], watch: Watch, stopped: Callable[[], bool]) -> list[Outcome]:
        """Search problems sequentially; `waves` documents how they learn from each other."""
        outcomes: list[Outcome] = []
        begun: dict[Wave, int] = {}  # the last study before a wave
        for request, wave in zip(requests, waves(requests), strict=True):
            if wave not in begun:
                begun[wave] = self._store.last_study()
            with watch(request) as observe:
                outcomes.append(self.search(replace(request, history_until=begun[wave]), observe, stopped))
            if stopped():
                break
        return outcomes

    def extend_all(self, wanted: Wanted, watch: Watch) -> list[Outcome]:
        return self._each(self.extend, wanted, watch)

    def check_all(self, wanted: Wanted, watch: Watch) -> list[Outcome]:
        return self._each(self.check, wanted, watch)

    def _each(self, work: Callable[..., Outcome], wanted: Wanted, watch: Watch) -> list[Outcome]:
        outcomes = []
        for outcome, configs in wanted:
            if configs:
                with watch(outcome.request) as observe:
                    outcome = work(outcome, configs, observe)
            outcomes.append(outcome)
        return outcomes

    def search(self, request: SearchRequest, observe: Observe, stopped: Callable[[], bool]) -> Outcome:
        """Search one problem; a final race decides the record if configs were measured."""
        evaluator = self._evaluator_of(request)
        if isinstance(evaluator, Measurer):
            self._prove(evaluator, request, observe)
        return final_race(study.search(request, self._store, evaluator, observe, stopped), self._store, evaluator)[0]

    def _prove(self, evaluator: Measurer, request: SearchRequest, observe: Observe) -> None:
        """Check the defaults without a verdict from this device, so that it can serve calls without a record."""
        instances, wrong = default_instances(request.operator, request.problem, request.gpu), 0
        for done, judged in enumerate(judge(self._store, evaluator, instances), start=1):
            wrong += not judged.right
            if not judged.earlier:
                observe(Progress("prove", done, len(instances), wrong, None))

    def extend(self, outcome: Outcome, configs: Sequence[Instance], observe: Observe) -> Outcome:
        """Try more configs on a searched problem."""
        evaluator = self._evaluator_of(outcome.request)
        extended = study.extend(outcome, self._store, evaluator, configs, observe)
        return extended if extended.record == outcome.record else final_race(extended, self._store, evaluator)[0]

    def check(self, outcome: Outcome, configs: Sequence[Instance], observe: Observe) -> Outcome:
        """Check tried configs of a problem."""
        return study.check(outcome, self._store, self._evaluator_of(outcome.request), configs, observe)


def predicted(target: GPU, compiler: Compiler, checker: Checker) -> Evaluators:
    """Return the evaluator of a machine without the GPU, shared by all problems."""
    predictor = Predictor(target, compiler, checker)
    return lambda _: predictor


def measured(target: GPU, compiler: Compiler, setup: Setup) -> Evaluators:
    """Return the evaluators of a device, one per problem; a config that one of them has checked is not checked
    again.
    """
    measurers: dict[object, Measurer] = {}

    def measurer(request: SearchRequest) -> Evaluator:
        if request.problem not in measurers:
            measurers[request.problem] = Measurer(request.operator, request.problem, target, compiler, setup)
        return measurers[request.problem]

    return measurer


def evidence_for(target: GPU) -> Evidence:
    """Return the kind of evidence that a search for `target` can have on this machine."""
    here = _here()
    return Evidence.MEASURED if here is not None and here.name == target.name else Evidence.PREDICTED


def why_predicted(target: GPU) -> str:
    """Return why a search is not measured on this machine's GPU; empty if there is no such GPU."""
    here = _here()
    if here is None:
        return gpu.trouble()
    meant = target.name == target.arch.name or not is_listed(here)
    if not meant or here.arch.name != target.arch.name or here.name == target.name:
        return ""
    return f"ask for the GPU of this machine by --gpu {shlex.quote(here.name)}"


def compilers_beside_timing() -> int:
    """Return how many processes may compile while a device is timed; the launching process and the driver need a core
    each.
    """
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
    opener: DeviceOpener | None = None,
    predict: bool = False,
) -> Iterator[Session]:
    """Provide a session with this machine's evidence, timed by `policy`; a device process lives as long as the session.

    With `retry`, configs that crashed the device in earlier sessions may run again. Raises MachineError if the driver
    cannot load the compiler's output. `opener` names a device other than the current one. `predict` leaves the device
    of this machine alone.
    """
    if opener is None and not predict and evidence_for(target) is Evidence.MEASURED:
        opener = Physical()
    if opener is None or predict:
        yield Session(store, predicted(target, compiler, checker))
        return
    if gpu.available():
        gpu.check_driver(toolkit())
    if retry:
        forgive(target, store)
    ledger = StoredLedger(store, target.name, Ledger(_older_ledger(target)))
    with Worker(opener) as worker:
        yield Session(store, measured(target, compiler, Setup(worker, policy, ledger)), worker, ledger)


def forgive(target: GPU, store: Store) -> None:
    """Allow configs that crashed devices of this kind to be tried again."""
    store.forgive(target.name)
    _older_ledger(target).unlink(missing_ok=True)


def _older_ledger(target: GPU) -> Path:
    """Return the file in which earlier versions recorded configs that crashed the device."""
    return cache_dir() / "ledger" / target.name


def _here() -> GPU | None:
    """Return the GPU of this machine; None if there is none, or if its arch is unknown."""
    try:
        return gpu.current_gpu() if gpu.available() else None
    except MachineError:
        return None
