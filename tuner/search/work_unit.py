"""A complete problem as a unit of work for another process. Its input is plain data, its result a record and counts.

The process opens the database itself and stores every attempt there. If it is lost, the next process that runs the unit
resumes from the stored attempts. A unit fails for good when it has lost two processes, and its error names the config
that was running: after the first loss its configs are evaluated one at a time, so that the second loss identifies the
config.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from socket import gethostname
from typing import Any
from uuid import uuid4

from tuner import operators
from tuner.backends.emulator.pool import PATIENCE_S
from tuner.backends.gpu import named
from tuner.base.canonical_json import encode
from tuner.base.fields import Fields, formatted
from tuner.compiler.nvrtc import Compiler
from tuner.errors import MachineError, TunerError, UsageError
from tuner.evaluate.check.checker import Checker
from tuner.evaluate.check.verdict_cache import VerdictCache
from tuner.evaluate.evaluator import Evaluator, Finalists, RaceOutcome
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.evaluate.measure.worker import DeviceOpener
from tuner.results.attempt import Attempt, Evidence, Identity, Stage
from tuner.results.verdict import Verdict
from tuner.search.code_version import code_here
from tuner.search.request import SearchRequest
from tuner.search.session import Observe, Session, compilers_beside_timing, session
from tuner.search.study import Outcome, Progress
from tuner.spec.instance import Instance
from tuner.spec.problem import from_fields, to_fields
from tuner.store import record_lines
from tuner.store.sql import Admission, Holder, Store

CAMPAIGNS = "campaigns"  # scope of the claims that mark a search over many problems as alive
MOST_LOSSES = 2
_LOOK_S = 5.0  # interval at which a unit checks whether its search was cancelled

ConfigFields = tuple[str, Fields]  # implementation, config


@dataclass(frozen=True, slots=True)
class Unit:
    """One problem of a search, as data without secrets."""

    campaign: str  # identifies the search
    stage: int  # 0: search the problem; later rounds try or check configs of other problems
    operator: str
    problem: Fields
    gpu: str
    search: Mapping[str, Any]  # the options of its SearchRequest
    l2: str
    launch: str
    code: str  # see `code_here`
    measured: bool
    db: str = ""  # without a password; empty: the database of the process
    workers: int | None = None
    check_seconds: float = PATIENCE_S
    device: str = ""  # UUID of the GPU that measured the problem, which must also continue it
    record: str = ""  # the current record as a line of `tuner.store.record_lines`
    tried: tuple[ConfigFields, ...] = ()
    judged: tuple[ConfigFields, ...] = ()

    @property
    def key(self) -> str:
        return f"{encode(self.problem)} {self.stage}"


@dataclass(frozen=True, slots=True)
class UnitResult:
    """The result of a unit. `error` is the reason why it failed for good."""

    record: str = ""  # a line of `tuner.store.record_lines`
    tried: int = 0
    reused: int = 0
    seconds: float = 0.0
    why_stopped: str = ""
    policy: str = ""
    device: str = ""
    worker: str = ""
    error: str = ""


class CancelledError(TunerError):
    """The search of a unit has ended."""


def perform(unit: Unit, opener: DeviceOpener | None = None, uuid: str = "") -> UnitResult:
    """Search the problem of a unit. If it is measured, `opener` names the device, by default the current one. If `uuid`
    is given, the device must have that UUID.

    Raises UsageError if the code or the database of this process differs from the search's.
    """
    if (here := code_here()) != unit.code:
        raise UsageError(f"{_worker()} has other code: it is {here}, and the search is {unit.code}")
    with Store.open(unit.db or None) as store:
        if unit.campaign not in store.claimed(CAMPAIGNS):
            raise UsageError(
                f"{_worker()} works with {store.place}, which knows nothing of this search: let TUNER_DB there name "
                "the database of the search"
            )
        with _accounted(unit, store) as account:
            if account.lost >= MOST_LOSSES:
                at = account.note or "before its first config"
                return UnitResult(worker=_worker(), error=f"it lost {account.lost} workers, the last one {at}")
            return _performed(replace(unit, device=unit.device or uuid), store, account, opener)


@dataclass(frozen=True, slots=True)
class _Account:
    """Enter the unit into the ledger. Return its entry, and the descriptions of its earlier deaths."""

    store: Store
    uuid: str
    lost: int
    note: str

    def say(self, what: str) -> None:
        """Describe the current step of the process, for the process that finds it dead."""
        self.store.note(self.uuid, what)


@contextmanager
def _accounted(unit: Unit, store: Store) -> Iterator[_Account]:
    """Bury the entries of earlier processes: a unit runs in one process at a time, so their processes were lost."""
    scope, uuid, holder = f"campaign {unit.campaign}", uuid4().hex, Holder.current()
    before = store.entries(scope, unit.key)
    for entry in before:
        store.bury(entry.uuid)
        store.release_process(entry.holder)  # otherwise its claims would last until their lease ends
    note = before[-1].note if before else ""
    if store.enter(scope, unit.key, holder, uuid, MOST_LOSSES) is not Admission.ENTERED:
        yield _Account(store, uuid, len(before), note)
        return
    try:
        yield _Account(store, uuid, len(before), note)
    finally:
        store.leave(uuid)


def _performed(unit: Unit, store: Store, account: _Account, opener: DeviceOpener | None) -> UnitResult:
    operator, target = operators.load(unit.operator), named(unit.gpu)
    request = SearchRequest(operator, from_fields(operator.problem, unit.problem), target, **unit.search)
    policy = MeasurementPolicy(l2=unit.l2, launch=unit.launch)  # type: ignore[arg-type]  # which checks it
    compilers = unit.workers or (compilers_beside_timing() if unit.measured else None)
    with (
        Compiler(compilers) as compiler,
        Checker(unit.workers, unit.check_seconds, known=VerdictCache.of_user()) as checker,
        session(target, store, compiler, checker, policy, opener=opener, predict=not unit.measured) as opened,
    ):
        evaluator = opened.evaluator(request)
        if unit.measured and evaluator.evidence is not Evidence.MEASURED:
            raise MachineError(f"{_worker()} has no {target.name} to measure on")
        if unit.device and evaluator.device != unit.device:
            raise MachineError(f"{_worker()} has the GPU {evaluator.device}, and {unit.device} is to measure")
        noted = Session(store, lambda _: _Noted(evaluator, account.say, one_by_one=account.lost > 0))
        outcome = _searched(unit, request, noted, _observer(unit, store))
        if outcome.record is None and any(map(_fell, outcome.tried)):
            opened.refuse_broken()
        return _result(outcome, evaluator)


def _searched(unit: Unit, request: SearchRequest, searches: Session, observe: Observe) -> Outcome:
    if unit.stage == 0:
        return searches.search(request, observe, lambda: False)
    outcome = searches.recall(request, record_lines.from_line(unit.record) if unit.record else None)
    outcome = searches.extend(outcome, _instances(outcome, unit.tried), observe) if unit.tried else outcome
    return searches.check(outcome, _instances(outcome, unit.judged), observe) if unit.judged else outcome


def _instances(outcome: Outcome, configs: Sequence[ConfigFields]) -> list[Instance]:
    arms = outcome.bandit.arms
    return [
        arms[name].default.with_config(from_fields(arms[name].implementation.config, config))
        for name, config in configs
    ]


def _fell(tried: Any) -> bool:
    failure = tried.attempt.failure
    return failure is not None and failure.stage is Stage.LAUNCH


def _result(outcome: Outcome, evaluator: Evaluator) -> UnitResult:
    return UnitResult(
        record=record_lines.to_line(outcome.record) if outcome.record else "",
        tried=len(outcome.tried),
        reused=outcome.reused,
        seconds=outcome.seconds,
        why_stopped=outcome.why_stopped,
        policy=evaluator.policy,
        device=evaluator.device or "",
        worker=_worker(),
    )


def _observer(unit: Unit, store: Store) -> Observe:
    """Check regularly whether the search of the unit is still alive. Raises CancelledError if it is not."""
    last = time.monotonic()

    def observe(_: Progress) -> None:
        nonlocal last
        if time.monotonic() - last > _LOOK_S:
            last = time.monotonic()
            if unit.campaign not in store.claimed(CAMPAIGNS):
                raise CancelledError("the search that this problem belongs to was cancelled")

    return observe


def _worker() -> str:
    return f"process {os.getpid()} on {gethostname()}"


@dataclass
class _Noted:
    """An evaluator that reports its current step. With `one_by_one`, the last report names a single config."""

    inner: Evaluator
    say: Callable[[str], None] = field(repr=False)
    one_by_one: bool = False

    def __post_init__(self) -> None:
        inner = self.inner
        self.evidence, self.policy, self.drift, self.device = inner.evidence, inner.policy, inner.drift, inner.device

    def identity(self, instance: Instance) -> Identity:
        if self.one_by_one:
            self._say_config("at", instance)
        return self.inner.identity(instance)

    def prior(self, instance: Instance) -> float:
        return self.inner.prior(instance)

    def compiled_costs(self, sample: Sequence[Instance]) -> list[float]:
        return self.inner.compiled_costs(sample)

    def resume(self, best: Instance) -> None:
        self.inner.resume(best)

    def is_current(self, attempt: Attempt) -> bool:
        return self.inner.is_current(attempt)

    def try_all(self, batch: Sequence[Instance]) -> Iterator[tuple[int, Attempt]]:
        for positions in self._parts(batch, "at"):
            for i, attempt in self.inner.try_all([batch[position] for position in positions]):
                yield positions[i], attempt

    def check(self, batch: Sequence[Instance]) -> Iterator[tuple[int, Verdict]]:
        for positions in self._parts(batch, "checking"):
            for i, verdict in self.inner.check([batch[position] for position in positions]):
                yield positions[i], verdict

    def settle(self, finalists: Finalists, seed: int) -> RaceOutcome | None:
        self.say("in the final race")
        return self.inner.settle(finalists, seed)

    def _parts(self, batch: Sequence[Instance], word: str) -> Iterator[list[int]]:
        """Yield positions that are evaluated together, after reporting them."""
        everything = list(range(len(batch)))
        for positions in [[i] for i in everything] if self.one_by_one else [everything] if everything else []:
            more = f" or one of {len(positions) - 1} more" if len(positions) > 1 else ""
            self._say_config(word, batch[positions[0]], more)
            yield positions

    def _say_config(self, word: str, instance: Instance, more: str = "") -> None:
        self.say(f"{word} {instance.implementation.name} {formatted(to_fields(instance.config))}{more}")


def unit_of(request: SearchRequest, settings: Mapping[str, Any], **more: Any) -> Unit:
    """Return a search request as a unit; `settings` are the values that all units of a search share."""
    options = {
        name: getattr(request, name)
        for name in (
            "effort",
            "budget",
            "seconds",
            "seed",
            "method",
            "resume",
            "implementation",
            "command",
            "history",
            "retry",
            "history_until",
        )
    }
    fields: dict[str, Any] = {
        "operator": request.operator.name,
        "problem": to_fields(request.problem),
        "gpu": request.gpu.name,
    }
    return Unit(**fields, search=options, **settings, **more)
