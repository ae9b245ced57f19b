"""Searches of many problems in parallel, on any executor (see `session.Searches`).

The executor's processes search complete problems and store every attempt in the database of the search. This process
schedules the problems, and reads the results from the database.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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

_LOOK_S = 0.5  # interval at which running tasks are checked
_RENEW_S = 60.0  # interval at which the search renews its entry in the database


@dataclass(frozen=True)
class FleetProgress:
    """The progress of a search over many problems."""

    workers: int
    problems: int
    done: int
    failed: int  # finished problems without a record
    running: tuple[Unit, ...]
    configs: int  # attempts since the search started
    seconds: float


@dataclass(frozen=True)
class Workers:
    """Processes that run units, at most `capacity()` at a time. They have the GPU if the units are measured."""

    executor: Executor
    capacity: Callable[[], int]
    measured: bool = False
    db: str = ""  # URL of the database without a password; empty: workers use their own environment
    processes: int | None = None  # maximum number of compiler and checker processes per worker
    show: Callable[[FleetProgress], None] = lambda _: None


def run(request: CampaignRequest, workers: Workers, stopped: Callable[[], bool] = lambda: False) -> Campaign:
    """Run the searches of a request on `workers`. When `stopped()` returns True, no further problem starts.

    If the unit of a problem fails, only that problem is affected: its outcome has no record and states the reason.
    Raises UsageError if a worker has different code or a different database.
    """
    with opened(request, workers) as searches:
        return campaign(request.searches, searches, _unwatched, stopped, request.terms)


@contextmanager
def opened(request: CampaignRequest, workers: Workers) -> Iterator["Fleet"]:
    """Provide the context in which `run` searches. While it is open, workers find the search alive in the database."""
    with Store.open(request.db) as store, Compiler(1) as compiler, Checker(1) as checker:
        if any(search.retry for search in request.searches):
            forgive(request.gpu, store)
        with _living(store) as (name, renew):
            yield Fleet(request, workers, store, (compiler, checker), name, renew)


@dataclass(frozen=True)
class _Task:
    """A unit that can start once the units at the positions `after` have finished."""

    make: Callable[[], Unit]
    after: frozenset[int] = frozenset()


class Fleet:
    """See `session.Searches`. Results are read back from the store."""

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
        """Return the outcome of each problem by position, without problems that were not started."""
        begun: dict[Wave, int] = {}

        def make(request: SearchRequest, wave: Wave) -> Unit:
            if wave not in begun:
                begun[wave] = self._store.last_study()
            return unit_of(replace(request, history_until=begun[wave]), self._settings, stage=0)

        order = waves(requests)
        tasks = [
            _Task(
                lambda request=request, wave=wave: make(request, wave),  # type: ignore[misc]
                frozenset(i for i, one in enumerate(order) if one.family == wave.family and one.number < wave.number),
            )
            for request, wave in zip(requests, order, strict=True)
        ]
        return self._run(tasks, stopped)

    def search_all(
        self,
        requests: Sequence[SearchRequest],
        watch: Watch,  # noqa: ARG002  # part of the protocol
        stopped: Callable[[], bool],
    ) -> list[Outcome]:
        """Return the outcomes in the order of the requests, without problems that were not started."""
        results = self.results(requests, stopped)
        outcomes = []
        for position, result in sorted(results.items()):
            self._results[requests[position].problem] = result
            outcomes.append(self._outcome(requests[position], result))
        return outcomes

    def extend_all(self, wanted: Wanted, watch: Watch) -> list[Outcome]:  # noqa: ARG002  # part of the protocol
        return self._go_on(wanted, "tried")

    def check_all(self, wanted: Wanted, watch: Watch) -> list[Outcome]:  # noqa: ARG002  # part of the protocol
        return self._go_on(wanted, "judged")

    def _go_on(self, wanted: Wanted, what: str) -> list[Outcome]:
        """Try configs of other problems on searched problems, each on the GPU on which the problem is measured."""
        self._stage += 1
        given_up = {problem for problem, result in self._results.items() if result.error}
        positions = [i for i, (one, configs) in enumerate(wanted) if configs and one.request.problem not in given_up]
        tasks = [_Task(lambda i=i: self._later(*wanted[i], what)) for i in positions]  # type: ignore[misc]
        outcomes = [outcome for outcome, _ in wanted]
        for number, result in self._run(tasks, lambda: False).items():
            outcome = outcomes[positions[number]]
            if not result.error:
                kept = self._results[outcome.request.problem]
                kept = replace(result, reused=kept.reused, seconds=kept.seconds, why_stopped=kept.why_stopped)
                self._results[outcome.request.problem] = kept
                outcomes[positions[number]] = self._outcome(outcome.request, kept)
        return outcomes

    def _later(self, outcome: Outcome, configs: Sequence[Instance], what: str) -> Unit:
        named = tuple((config.implementation.name, to_fields(config.config)) for config in configs)
        device = self._results[outcome.request.problem].device
        record = record_lines.to_line(outcome.record) if outcome.record else ""
        more: dict[str, Any] = {"stage": self._stage, "device": device, "record": record, what: named}
        return unit_of(outcome.request, self._settings, **more)

    def _run(self, tasks: Sequence[_Task], stopped: Callable[[], bool]) -> dict[int, UnitResult]:
        """Return the results by position; those of all tasks unless the search was stopped."""
        waiting, done = dict(enumerate(tasks)), dict[int, UnitResult]()
        running: dict[Future[UnitResult], tuple[int, Unit]] = {}
        try:
            while running or (waiting and not stopped()):
                if not stopped():
                    self._start(waiting, running, done)
                finished, _ = wait(running, timeout=_LOOK_S, return_when=FIRST_COMPLETED)
                if not running:
                    time.sleep(_LOOK_S)
                for future in finished:
                    position, _ = running.pop(future)
                    done[position] = _result(future)
                    del future  # Dask does not recompute a result without references when its worker is lost
                self._show(len(tasks), done, [unit for _, unit in running.values()])
                self._renew()
        except BaseException:
            for future in running:
                future.cancel()
            raise
        return done

    def _start(
        self,
        waiting: dict[int, _Task],
        running: dict[Future[UnitResult], tuple[int, Unit]],
        done: dict[int, UnitResult],
    ) -> None:
        ready = (position for position, task in waiting.items() if task.after <= done.keys())
        for position in list(ready)[: max(0, self._workers.capacity() - len(running))]:
            unit = waiting.pop(position).make()
            try:
                running[self._workers.executor.submit(perform, unit)] = position, unit
            except RuntimeError as error:  # an executor without living processes accepts no tasks
                done[position] = UnitResult(error=f"{type(error).__name__}: {error}")

    def _show(self, problems: int, done: Mapping[int, UnitResult], running: Sequence[Unit]) -> None:
        failed = sum(not result.record for result in done.values())
        self._workers.show(
            FleetProgress(
                self._workers.capacity(),
                problems,
                len(done),
                failed,
                tuple(running),
                self._store.count_attempts(self._first_row),
                time.monotonic() - self._began,
            )
        )

    def _outcome(self, request: SearchRequest, result: UnitResult) -> Outcome:
        """Return the stored results of a problem, as a local search would return them."""
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
    """Return the error of a failed unit, which affects only its problem; raise it if the request itself is wrong."""
    try:
        return future.result()
    except UsageError:
        raise
    except CancelledError as error:
        return UnitResult(error=f"cancelled: {error}".rstrip(": "))
    except Exception as error:
        return UnitResult(error=f"{type(error).__name__}: {error}")


@contextmanager
def _living(store: Store) -> Iterator[tuple[str, Callable[[], None]]]:
    """Provide the name of a live search, and a function that renews its entry in the database."""
    name, holder, renewed_s = uuid4().hex, Holder.current(), time.monotonic()

    def renew() -> None:
        nonlocal renewed_s
        if time.monotonic() - renewed_s > _RENEW_S:
            store.renew_claims(holder)
            renewed_s = time.monotonic()

    store.claim(CAMPAIGNS, [name], holder)
    try:
        yield name, renew
    finally:
        store.release(CAMPAIGNS, [name], holder)


@contextmanager
def _unwatched(_: SearchRequest) -> Iterator[Callable[[object], None]]:
    yield lambda _: None
