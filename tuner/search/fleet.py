"""Searches of many problems in parallel on any executor: see `session.Searches`.

Each problem is one unit of work. The executor's processes store their attempts in the database of the search. This
process decides which units follow, and reads the outcomes from the database.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from tuner.compiler.nvrtc import Compiler
from tuner.errors import UsageError
from tuner.evaluate.check.checker import Checker
from tuner.evaluate.evaluator import Evaluator
from tuner.evaluate.predictor import Predictor, Remembered
from tuner.search import study
from tuner.search.code_version import code_here
from tuner.search.many_problems import Campaign, CampaignRequest, campaign
from tuner.search.problem_waves import Wave, waves
from tuner.search.request import SearchRequest
from tuner.search.session import Wanted, Watch, forgive
from tuner.search.study import Outcome
from tuner.search.work_unit import CAMPAIGNS, Unit, UnitResult, perform, unit_of
from tuner.spec.instance import Instance
from tuner.spec.problem import canonical, to_fields
from tuner.store import record_lines
from tuner.store.sql import Holder, Store

_REFRESH_S = 0.5  # between two updates of the progress
_RENEW_S = 60.0  # between two renewals of the search's claim


@dataclass(frozen=True)
class FleetProgress:
    """The state of a search of many problems."""

    step: str  # what the problems below are for: the search itself, or the portfolio
    workers: int
    problems: int
    done: int
    failed: int  # of those done: without a record
    running: tuple[tuple[Unit, float], ...]  # with the seconds since their submission
    configs: int  # tried since the search began
    seconds: float  # since the search began


@dataclass(frozen=True)
class Workers:
    """Processes that perform `capacity()` units at once. If `measured`, they have the GPU of the search."""

    executor: Executor
    capacity: Callable[[], int]
    measured: bool = False
    db: str = ""  # the database's URL for them, without a password; empty: as their environment says
    processes: int | None = None  # compiling and checking processes of each; None: one per core
    show: Callable[[FleetProgress], None] = lambda _: None


def run(request: CampaignRequest, workers: Workers, stopped: Callable[[], bool] = lambda: False) -> Campaign:
    """Run the searches of a request on `workers`. Once `stopped()` returns True, no further problem starts.

    If the unit of a problem fails, only that problem is lost: its outcome has no record and contains the reason. Raises
    UsageError if a worker has other code or another database.
    """
    with opened(request, workers) as searches:
        return campaign(request.searches, searches, _unwatched, stopped, request.terms)


@contextmanager
def opened(request: CampaignRequest, workers: Workers) -> Iterator["Fleet"]:
    """The fleet that `run` searches with. While it is open, workers see in the database that the search is alive."""
    with Store.open(request.db) as store, Compiler(1) as compiler, Checker(1) as checker:
        if any(search.retry for search in request.searches):
            forgive(request.gpu, store)
        with _announced(store) as (name, renew):
            yield Fleet(request, workers, store, (compiler, checker), name, renew)


@dataclass(frozen=True)
class _Task:
    """A unit that can be created once the units at the positions `after` are done."""

    make: Callable[[], Unit]
    after: frozenset[int] = frozenset()


@dataclass(frozen=True)
class _Running:
    """A submitted unit."""

    position: int
    unit: Unit
    began: float  # of time.monotonic


class Fleet:
    """See `session.Searches`. Outcomes are read from the store."""

    def __init__(
        self,
        request: CampaignRequest,
        workers: Workers,
        store: Store,
        compilers: tuple[Compiler, Checker],
        name: str,
        renew: Callable[[], None],
    ) -> None:
        self._workers, self._store, self._compilers, self._renew = workers, store, compilers, renew
        self._settings: Mapping[str, Any] = {
            "campaign": name,
            "l2": request.policy.l2,
            "launch": request.policy.launch,
            "code": code_here(),
            "measured": workers.measured,
            "db": workers.db,
            "workers": request.workers or workers.processes,
            "check_seconds": request.check_seconds,
        }
        self._results: dict[object, UnitResult] = {}  # by problem
        self._first_row, self._stage, self._began = store.last_attempt(), 0, time.monotonic()

    def results(self, requests: Sequence[SearchRequest], stopped: Callable[[], bool]) -> dict[int, UnitResult]:
        """The result of each problem, by position; problems that did not start are left out."""
        last_studies: dict[Wave, int] = {}  # as of the start of a wave

        def make(request: SearchRequest, wave: Wave) -> Unit:
            if wave not in last_studies:
                last_studies[wave] = self._store.last_study()
            return unit_of(replace(request, history_until=last_studies[wave]), self._settings, stage=0)

        order = waves(requests)
        tasks = [
            _Task(
                lambda request=request, wave=wave: make(request, wave),  # type: ignore[misc]
                frozenset(
                    i for i, other in enumerate(order) if other.family == wave.family and other.number < wave.number
                ),
            )
            for request, wave in zip(requests, order, strict=True)
        ]
        return self._run(tasks, "searching", stopped)

    def search_all(
        self,
        requests: Sequence[SearchRequest],
        watch: Watch,  # noqa: ARG002  # part of the protocol
        stopped: Callable[[], bool],
    ) -> list[Outcome]:
        """Outcomes in the order of the requests; problems that did not start are left out."""
        results = self.results(requests, stopped)
        outcomes = []
        for position, result in sorted(results.items()):
            self._results[requests[position].problem] = result
            outcomes.append(self._outcome(requests[position], result))
        return outcomes

    def extend_all(self, wanted: Wanted, watch: Watch) -> list[Outcome]:  # noqa: ARG002  # part of the protocol
        return self._continue(wanted, "tried")

    def check_all(self, wanted: Wanted, watch: Watch) -> list[Outcome]:  # noqa: ARG002  # part of the protocol
        return self._continue(wanted, "judged")

    def _continue(self, wanted: Wanted, what: str) -> list[Outcome]:
        """Try or check configs of other problems on searched ones, each on the GPU that measured the problem."""
        self._stage += 1
        failed = {problem for problem, result in self._results.items() if result.error}
        positions = [
            i for i, (outcome, configs) in enumerate(wanted) if configs and outcome.request.problem not in failed
        ]
        tasks = [_Task(lambda i=i: self._later(*wanted[i], what)) for i in positions]  # type: ignore[misc]
        outcomes = [outcome for outcome, _ in wanted]
        for number, result in self._run(tasks, "portfolio", lambda: False).items():
            outcome = outcomes[positions[number]]
            if not result.error:
                first = self._results[outcome.request.problem]
                merged = replace(result, reused=first.reused, seconds=first.seconds, why_stopped=first.why_stopped)
                self._results[outcome.request.problem] = merged
                outcomes[positions[number]] = self._outcome(outcome.request, merged)
        return outcomes

    def _later(self, outcome: Outcome, configs: Sequence[Instance], what: str) -> Unit:
        fields = tuple((config.implementation.name, to_fields(config.config)) for config in configs)
        device = self._results[outcome.request.problem].device
        record = record_lines.to_line(outcome.record) if outcome.record else ""
        more: dict[str, Any] = {"stage": self._stage, "device": device, "record": record, what: fields}
        return unit_of(outcome.request, self._settings, **more)

    def _run(self, tasks: Sequence[_Task], step: str, stopped: Callable[[], bool]) -> dict[int, UnitResult]:
        """The results of all tasks by position, or of those that started before `stopped()` returned True."""
        waiting, done = dict(enumerate(tasks)), dict[int, UnitResult]()
        running: dict[Future[UnitResult], _Running] = {}
        try:
            while running or (waiting and not stopped()):
                if not stopped():
                    self._start(waiting, running, done)
                finished, _ = wait(running, timeout=_REFRESH_S, return_when=FIRST_COMPLETED)
                if not running:
                    time.sleep(_REFRESH_S)
                for future in finished:
                    done[running.pop(future).position] = _result(future)
                    del future  # Dask recomputes a result that is still referenced when its worker is lost
                self._show(step, len(tasks), done, running.values())
                self._renew()
        except BaseException:
            for future in running:
                future.cancel()
            raise
        return done

    def _start(
        self, waiting: dict[int, _Task], running: dict[Future[UnitResult], _Running], done: dict[int, UnitResult]
    ) -> None:
        ready = (position for position, task in waiting.items() if task.after <= done.keys())
        for position in list(ready)[: max(0, self._workers.capacity() - len(running))]:
            unit = waiting.pop(position).make()
            try:
                future = self._workers.executor.submit(perform, unit)
            except RuntimeError as error:  # an executor whose processes have ended accepts no units
                done[position] = UnitResult(error=f"{type(error).__name__}: {error}")
            else:
                running[future] = _Running(position, unit, time.monotonic())

    def _show(self, step: str, problems: int, done: Mapping[int, UnitResult], running: Iterable[_Running]) -> None:
        now = time.monotonic()
        self._workers.show(
            FleetProgress(
                step,
                self._workers.capacity(),
                problems,
                len(done),
                sum(not result.record for result in done.values()),
                tuple((task.unit, now - task.began) for task in running),
                self._store.count_attempts(self._first_row),
                now - self._began,
            )
        )

    def _outcome(self, request: SearchRequest, result: UnitResult) -> Outcome:
        """The outcome of a problem as a search in this process would return it, from the store."""
        after = 0 if request.resume else self._first_row
        outcome = study.recall(request, self._store, self._evaluator(request, result), after)
        record = record_lines.from_line(result.record) if result.record else None
        about = request.operator.name, canonical(request.problem), request.gpu.name
        races = self._store.races(*about) if record and record.measurement else []
        return replace(
            outcome,
            record=record,
            reused=result.reused,
            seconds=result.seconds,
            why_stopped=result.error or result.why_stopped,
            final=next((race for race in reversed(races) if record and race.settled(record)), None),
        )

    def _evaluator(self, request: SearchRequest, result: UnitResult) -> Evaluator:
        if not self._workers.measured:
            return Predictor(request.gpu, *self._compilers)
        return Remembered(result.policy, request.gpu, *self._compilers, device=result.device)


def _result(future: Future[UnitResult]) -> UnitResult:
    """The result of a unit. A failure costs the unit's problem; a UsageError ends the whole search."""
    try:
        return future.result()
    except UsageError:
        raise
    except CancelledError as error:
        return UnitResult(error=f"cancelled: {error}".rstrip(": "))
    except Exception as error:
        return UnitResult(error=f"{type(error).__name__}: {error}")


@contextmanager
def _announced(store: Store) -> Iterator[tuple[str, Callable[[], None]]]:
    """A name for the search, claimed in the database while the search is alive, and the renewal of that claim."""
    name, holder, renewed = uuid4().hex, Holder.current(), time.monotonic()

    def renew() -> None:
        nonlocal renewed
        if time.monotonic() - renewed > _RENEW_S:
            store.renew_claims(holder)
            renewed = time.monotonic()

    store.claim(CAMPAIGNS, [name], holder)
    try:
        yield name, renew
    finally:
        store.release(CAMPAIGNS, [name], holder)


@contextmanager
def _unwatched(_: SearchRequest) -> Iterator[Callable[[object], None]]:
    yield lambda _: None
