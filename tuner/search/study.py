"""The search of one problem: starts, budget, resuming, a final sweep, and the check of the finalists → TuningRecord."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from tuner import __version__
from tuner.evaluate.evaluator import Evaluator
from tuner.results.attempt import Evidence
from tuner.results.final_race import FinalRace
from tuner.results.ranking import FINALISTS, order, passed, rank_candidates
from tuner.results.record import TuningRecord
from tuner.search.active_search import Progress, RunningSearch
from tuner.search.attempt_log import Log, ReusedAttempt, Tried, earlier
from tuner.search.bandit import Bandit, Method, prepared
from tuner.search.explore import SMALL_GAIN, Stop, explore
from tuner.search.history import TransferResults, transfer_results
from tuner.search.neighbour_sweep import Swept, sweep
from tuner.search.request import EFFORTS, SWEEP, SearchRequest
from tuner.spec.instance import Instance
from tuner.spec.problem import canonical
from tuner.store.sql import Store

__all__ = [
    "EFFORTS",
    "Outcome",
    "Progress",
    "SearchRequest",
    "Tried",
    "check",
    "extend",
    "recall",
    "record_of",
    "search",
]

_MOST_VERDICTS = 4 * FINALISTS  # of which every one may be negative
_PREDICTED = 2  # configs to check where costs are predicted: the winner and the runner-up, since costs have no noise


@dataclass(frozen=True)
class Outcome:
    """The results of a search and its course."""

    request: SearchRequest
    record: TuningRecord | None
    tried: tuple[Tried, ...]  # in order; those of earlier sessions first
    reused: int
    bandit: Bandit
    seconds: float
    why_stopped: str
    evidence: Evidence
    final: FinalRace | None = None  # the race that decided a measured record


def search(
    request: SearchRequest,
    store: Store,
    evaluator: Evaluator,
    observe: Callable[[Progress], None] = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Search one problem. Attempts are stored as they finish; the search ends cleanly when `stopped()` returns True.

    The outcome's record is None if no config passed its checks; then nothing is promoted.
    """
    request = replace(request)  # a new request computes its code digest from the current files
    since = store.last_attempt()
    bandit, kept = _start(request, store, evaluator)
    study = _begin(store, request, evaluator)
    run = RunningSearch(request, evaluator, bandit, Log(request, store, study, bandit, since=since), observe, stopped)
    try:
        reused = run.log.take([stored for stored in kept if _holds(stored)])
        _predict_again(run, [stored for stored in kept if stored.outdated and not stored.elsewhere])
        _time_again(run, [stored for stored in kept if stored.elsewhere])
        _introduce(run)
        if run.log.best:
            evaluator.resume(run.log.best.instance)
        why = _look(run)
        record = _decide(run)
        if record is not None:
            record = _promoted(record, store, study)
    except BaseException as error:
        store.end_study(study, f"ended by {type(error).__name__}")
        raise
    store.end_study(study, why)
    return Outcome(request, record, tuple(run.log.tried), reused, bandit, run.seconds, why, evaluator.evidence)


def recall(request: SearchRequest, store: Store, evaluator: Evaluator, after: int = 0) -> Outcome:
    """Return the stored results of a problem in rows after `after`, as the outcome of a search without tries."""
    bandit, kept = _start(replace(request, resume=True, history=False), store, evaluator, guided=False, after=after)
    run = RunningSearch(request, evaluator, bandit, Log(request, store, None, bandit))
    reused = run.log.take([stored for stored in kept if not stored.elsewhere])
    tried = tuple(run.log.tried)
    right = passed(tried)
    record = record_of(right, evaluator.evidence, len(tried)) if right else None
    return Outcome(request, record, tried, reused, bandit, run.seconds, "nothing was searched", evaluator.evidence)


def extend(
    outcome: Outcome,
    store: Store,
    evaluator: Evaluator,
    wanted: Sequence[Instance],
    observe: Callable[[Progress], None] = lambda _: None,
) -> Outcome:
    """Try more configs on a searched problem if its space contains them; a better one is promoted."""
    new = outcome.bandit.untried(wanted)
    if not new:
        return outcome
    study = _begin(store, outcome.request, evaluator)
    run = _reopened(outcome, store, evaluator, study, observe)
    before = run.log.best
    run.try_all(new, "share", len(outcome.tried) + len(new))
    better = run.log.best is not before  # by rank: a config without flaws may be slower than one with flaws
    record = _decide(run) if better else outcome.record
    if record is not None and better:
        record = _promoted(record, store, study)
    store.end_study(study, "configs of other problems were tried")
    return replace(outcome, record=record, tried=tuple(run.log.tried))


def check(
    outcome: Outcome,
    store: Store,
    evaluator: Evaluator,
    wanted: Sequence[Instance],
    observe: Callable[[Progress], None] = lambda _: None,
) -> Outcome:
    """Check tried configs of a problem; if no config was correct before, the best correct one is promoted."""
    run = _reopened(outcome, store, evaluator, None, observe)
    run.check([tried for instance in wanted if (tried := run.log.find(instance)) and tried.verdict is None])
    record, right = outcome.record, passed(run.log.tried)
    if record is None and right:
        record = _promoted(record_of(right, evaluator.evidence, len(run.log.tried)), store)
    return replace(outcome, record=record, tried=tuple(run.log.tried))


def _promoted(record: TuningRecord, store: Store, study: int | None = None) -> TuningRecord:
    """Return the stored record; a search that ends with an existing record adds none."""
    key = record.identity
    stored = store.all_records(key.operator, key.problem, key.gpu)
    newest = next((row for row in stored if row.evidence is record.evidence), None)
    if newest is not None and replace(newest, created=record.created) == record:
        return replace(record, created=newest.created)  # its config has the field order, not the sorted order
    store.promote(record, study)
    return record


def _reopened(
    outcome: Outcome, store: Store, evaluator: Evaluator, study: int | None, observe: Callable[[Progress], None]
) -> RunningSearch:
    """Return a run that continues with the knowledge of a finished one."""
    log = Log(outcome.request, store, study, outcome.bandit, outcome.tried, store.last_attempt())
    return RunningSearch(outcome.request, evaluator, outcome.bandit, log, observe)


def _start(
    request: SearchRequest, store: Store, evaluator: Evaluator, *, guided: bool = True, after: int = 0
) -> tuple[Bandit, list[ReusedAttempt]]:
    """Return the bandit at the start of a search, and the attempts of earlier sessions that it takes over.

    Ranking all spaces by the prior takes seconds, so it is done only for a `guided` search.
    """
    spaces = [implementation.space(request.problem, request.gpu.arch) for implementation in request.implementations]
    kept = earlier(request, store, evaluator, spaces, after) if request.resume else []
    transferred: Mapping[str, Sequence[TransferResults]] = {}
    if request.history:
        resumed = {stored.row for stored in kept if _holds(stored)}
        transferred = transfer_results(request, store, evaluator.policy, resumed)
    # Otherwise the arms share the tries, and no small space is enumerated completely.
    whole = sum(map(len, spaces)) <= request.tries
    method = Method(request.method, request.seed, request.tries if whole else request.tries // len(spaces))
    prior = evaluator.prior if guided else None
    # A predicting search gains nothing from earlier predictions.
    sampled = evaluator.compiled_costs if guided and evaluator.evidence is Evidence.MEASURED else None
    arms = [
        prepared(
            request.default(implementation), space, prior, method, transferred.get(implementation.name, ()), sampled
        )
        for implementation, space in zip(request.implementations, spaces, strict=True)
    ]
    return Bandit(arms), kept


def _predict_again(run: RunningSearch, outdated: Sequence[ReusedAttempt]) -> None:
    """Evaluate again, within the budget, the best configs with predictions by other Python code. Cubins are cached."""
    best_first = sorted(outdated, key=lambda candidate: order(candidate.attempt))
    batch = [stored.instance for stored in best_first[: run.left]]
    run.try_all(batch, "explore", len(run.log.tried) + len(batch))


def _holds(stored: ReusedAttempt) -> bool:
    return not (stored.outdated or stored.elsewhere)


def _time_again(run: RunningSearch, elsewhere: Sequence[ReusedAttempt]) -> None:
    """Time here, within the budget, the best configs measured on another GPU of the model."""
    worked = [stored for stored in elsewhere if stored.attempt.value is not None]
    worked.sort(key=lambda stored: order(stored.attempt))
    batch = [stored.instance for stored in worked[: min(FINALISTS, run.left)]]
    run.try_all([instance for instance in batch if not run.log.find(instance)], "explore", run.request.tries)


def _introduce(run: RunningSearch) -> None:
    """Try the default of each implementation that is new since the resumed sessions, even if the budget is used up."""
    if run.log.tried and not run.out_of_time:
        new = [arm.implementation for arm in run.bandit.arms.values() if not arm.tries]
        batch = [run.request.default(instance) for instance in new]
        run.try_all(batch, "explore", len(run.log.tried) + len(batch))


def _begin(store: Store, request: SearchRequest, evaluator: Evaluator) -> int:
    device = {"device": evaluator.device} if evaluator.device else {}
    return store.begin_study(
        operator=request.operator.name,
        problem=canonical(request.problem),
        gpu=request.gpu.name,
        command=request.command,
        seed=request.seed,
        method=request.method,
        effort=request.effort,
        budget=request.tries,
        versions={"tuner": __version__, "policy": evaluator.policy, "code": request.code, **device},
    )


def _look(run: RunningSearch) -> str:
    """Explore, then sweep around the best; repeat while tries are left and the last sweep was worthwhile."""
    done = Swept()
    while True:
        reserve = run.request.reserve(run.left)
        stop = explore(run, len(run.log.tried) + run.left - reserve)
        if stop.final:
            return _why(stop, done)
        swept = sweep(run, min(run.left, SWEEP) if stop.early else reserve)
        done = done.plus(swept)
        if run.stopped():
            return _why(Stop("interrupted"), done)
        if not run.left or run.out_of_time or (stop.early and swept.gain < SMALL_GAIN):
            return _why(stop, done)


def _why(stop: Stop, swept: Swept) -> str:
    return "; ".join(filter(None, (stop.why, str(swept))))


def _decide(run: RunningSearch) -> TuningRecord | None:
    """Give the best configs a verdict, going down the list until one is right; the best that is becomes the record.

    Where times were measured, any of the finalists may win the race, so all of them are checked.
    """
    log, measured = run.log, run.evaluator.evidence is Evidence.MEASURED
    count = FINALISTS if measured else _PREDICTED
    right: Sequence[Tried] = ()
    for _ in range(_MOST_VERDICTS // count):
        unchecked = [candidate for candidate in rank_candidates(log.tried)[:count] if candidate.verdict is None]
        run.check(unchecked)
        right = passed(log.tried, count)
        if not unchecked or len(right) >= (1 if measured else count):
            break
    return record_of(right, run.evaluator.evidence, len(log.tried)) if right else None


def record_of(right: Sequence[Tried], evidence: Evidence, tried: int) -> TuningRecord:
    """Return the record of the first of `right`, which passed their checks; the second is the runner-up."""
    attempt, verdict = right[0].attempt, right[0].verdict
    assert verdict is not None and attempt.resources is not None
    return TuningRecord(
        identity=attempt.identity,
        config=attempt.config,
        evidence=evidence,
        verdict=verdict,
        resources=attempt.resources,
        prediction=attempt.prediction,
        measurement=attempt.measurement,
        margin=_margin(right),
        tried=tried,
        tuner=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _margin(right: Sequence[Tried]) -> float:
    """Return by which fraction the runner-up is behind the winner; 0 if there is none, or if they tie."""
    values = [candidate.attempt.value for candidate in right[:2] if candidate.attempt.value is not None]
    return max(values[1] / values[0] - 1, 0.0) if len(values) == 2 else 0.0
