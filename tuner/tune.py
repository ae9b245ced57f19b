"""A search session: seeds, budget, resume, the check of the finalists → TuningRecord."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from tuner import __version__
from tuner.arch import GPU
from tuner.errors import UsageError
from tuner.evaluate import Candidate, Evaluator, contenders
from tuner.operator import Operator, canonical, from_fields, to_fields
from tuner.race import Race, lane
from tuner.result import Attempt, Evidence, Identity, TuningRecord, Verdict, order
from tuner.store import Store, StoredAttempt

EFFORTS = {"quick": 32, "normal": 128, "full": 512}  # tries
FINALISTS = 8  # configs that get a verdict
_CHECKED_AT_MOST = 4 * FINALISTS  # … when the first ones turn out wrong
_BATCH = 16  # configs that compile side by side between two looks at the model
_SMALL_GAIN = 0.01  # relative expected improvement under which searching on does not pay
_LEAST = 24  # tries before that is believed
_TIE = 0.001  # relative difference that nothing hangs on


@dataclass(frozen=True)
class Request:
    """What to search for. `budget` is in tries and stands above `effort`; `seconds` limits the exploring."""

    operator: Operator[Any]
    problem: Any
    gpu: GPU
    effort: str = "normal"
    budget: int | None = None
    seconds: float | None = None
    seed: int = 0
    method: str = "gp"
    resume: bool = True
    implementation: str | None = None  # only this one
    command: str = ""

    def __post_init__(self) -> None:
        if self.effort not in EFFORTS:
            raise UsageError(f"unknown effort {self.effort!r} (known: {', '.join(EFFORTS)})")
        if self.budget is not None and self.budget < 1:
            raise UsageError(f"a budget of {self.budget} tries finds nothing: give at least 1")

    @property
    def tries(self) -> int:
        return self.budget if self.budget is not None else EFFORTS[self.effort]


@dataclass(frozen=True)
class Tried:
    """An attempt with the row that stores it, and its verdict once it has one."""

    row: int
    candidate: Candidate
    attempt: Attempt
    verdict: Verdict | None = None


@dataclass(frozen=True)
class Progress:
    """Where a search stands; a stream of these is all that a display needs."""

    phase: str  # "explore" or "check"
    done: int
    total: int
    failed: int
    best: Tried | None


@dataclass(frozen=True)
class Outcome:
    """What a search found, and how it went."""

    request: Request
    record: TuningRecord | None
    tried: tuple[Tried, ...]  # in order; those of earlier sessions first
    reused: int
    race: Race
    seconds: float
    why_stopped: str
    evidence: Evidence


def search(
    request: Request,
    store: Store,
    evaluator: Evaluator,
    observe: Callable[[Progress], None] = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Search one problem. Every attempt is stored as it finishes; `stopped()` turning true ends the search cleanly.

    The outcome's record is None when no config passed its checks: then nothing is promoted.
    """
    started = time.monotonic()
    race = _start(request, evaluator)
    study = _begin(store, request, evaluator.policy)
    log = _Log(store, study, race)
    try:
        reused = log.resume(request, evaluator) if request.resume else 0
        why = _explore(request, evaluator, race, log, observe, stopped)
        record = _decide(request, evaluator, log, observe)
        if record is not None:
            store.promote(record, study)
    except BaseException as error:
        store.end_study(study, f"ended by {type(error).__name__}")
        raise
    store.end_study(study, why)
    return Outcome(request, record, tuple(log.tried), reused, race, time.monotonic() - started, why, evaluator.evidence)


def recall(request: Request, store: Store, evaluator: Evaluator) -> Outcome:
    """What is stored about a problem, as the outcome of a search that tries nothing."""
    started = time.monotonic()
    race = _start(request, evaluator)
    log = _Log(store, 0, race)
    reused = log.resume(request, evaluator)
    right = _right(log.tried, request, len(log.tried))
    record = _record(right, evaluator, len(log.tried)) if right else None
    seconds = time.monotonic() - started
    return Outcome(request, record, tuple(log.tried), reused, race, seconds, "nothing was searched", evaluator.evidence)


class _Log:
    """What was tried in this search, in memory and in the store at once."""

    def __init__(self, store: Store, study: int, race: Race) -> None:
        self._store, self._study, self._race = store, study, race
        self._positions: dict[int, int] = {}
        self.tried: list[Tried] = []
        self.failed = 0
        self.best: Tried | None = None

    def add(self, candidate: Candidate, attempt: Attempt) -> None:
        (row,) = self._store.append([attempt], self._study)
        self._remember(Tried(row, candidate, attempt))

    def judge(self, tried: Tried, verdict: Verdict) -> None:
        self._store.append_verdict(tried.row, verdict)
        self.tried[self._positions[tried.row]] = replace(tried, verdict=verdict)

    def resume(self, request: Request, evaluator: Evaluator) -> int:
        """Take over what earlier sessions stored, as far as it is still true today."""
        stored = self._store.attempts(
            operator=request.operator.name, problem=canonical(request.problem), gpu=request.gpu.name
        )
        verdicts = self._store.verdicts([each.id for each in stored])
        seen: set[Identity] = set()
        for each in stored:
            candidate = self._still_true(each, evaluator)
            if candidate is not None and each.attempt.identity not in seen:
                seen.add(each.attempt.identity)
                self._remember(Tried(each.id, candidate, each.attempt, verdicts.get(each.id)))
        return len(self.tried)

    def _remember(self, tried: Tried) -> None:
        self._positions[tried.row] = len(self.tried)
        self.tried.append(tried)
        self.failed += tried.attempt.failure is not None
        self.best = next(iter(ranked([each for each in (self.best, tried) if each])), None)
        self._race.tell(tried.candidate, tried.attempt.value)

    def _still_true(self, stored: StoredAttempt, evaluator: Evaluator) -> Candidate | None:
        """The candidate of a stored attempt; None when code, compiler or policy have changed since."""
        lane = self._race.lanes.get(stored.attempt.identity.implementation)
        if lane is None or stored.attempt.config.keys() != set(lane.space.names):
            return None
        candidate = Candidate(lane.implementation, from_fields(lane.implementation.config, stored.attempt.config))
        same = self._race.knows(candidate) and evaluator.identity(candidate) == stored.attempt.identity
        return candidate if same else None


def _start(request: Request, evaluator: Evaluator) -> Race:
    r = request
    found = contenders(r.operator, r.problem, r.gpu, r.implementation)
    return Race([lane(each, r.problem, r.gpu.arch, evaluator.prior, r.method, r.seed, r.tries) for each in found])


def _begin(store: Store, request: Request, policy: str) -> int:
    return store.begin_study(
        operator=request.operator.name,
        problem=canonical(request.problem),
        gpu=request.gpu.name,
        command=request.command,
        seed=request.seed,
        method=request.method,
        effort=request.effort,
        budget=request.tries,
        versions={"tuner": __version__, "policy": policy},
    )


def _explore(
    request: Request,
    evaluator: Evaluator,
    race: Race,
    log: _Log,
    observe: Callable[[Progress], None],
    stopped: Callable[[], bool],
) -> str:
    """Ask, evaluate and tell until something says stop; returns what did."""
    started = time.monotonic()
    while True:
        if why := _reason_to_stop(request, race, len(log.tried), time.monotonic() - started, stopped):
            return why
        batch = race.ask(min(_BATCH, request.tries - len(log.tried)))
        if not batch:
            return "every config of the space was tried"
        for position, attempt in evaluator.attempts(batch):
            log.add(batch[position], attempt)
            observe(Progress("explore", len(log.tried), request.tries, log.failed, log.best))
            if stopped():
                return "interrupted"
        race.drop_hopeless()


def _reason_to_stop(request: Request, race: Race, tried: int, seconds: float, stopped: Callable[[], bool]) -> str:
    if stopped():
        return "interrupted"
    if tried >= request.tries:
        return f"the budget of {request.tries} tries is spent"
    if request.seconds is not None and seconds >= request.seconds:
        return f"the budget of {request.seconds:g} s is spent"
    gain = race.expected_improvement()
    if tried >= max(_LEAST, request.tries // 2) and gain is not None and gain < _SMALL_GAIN:
        return f"the expected improvement fell under {_SMALL_GAIN:.0%}"
    return ""


def ranked(tried: Sequence[Tried]) -> list[Tried]:
    """Those that work, best first; what spills stands behind all that does not. Equal machine code counts once."""
    working = [each for each in tried if each.attempt.value is not None and each.attempt.resources is not None]
    distinct: dict[object, Tried] = {}
    for each in sorted(working, key=lambda each: order(each.attempt, each.attempt.value or 0.0)):
        r = each.attempt.resources
        assert r is not None
        distinct.setdefault((r.sass_digest, r.threads, r.smem_bytes), each)
    return list(distinct.values())


def _decide(
    request: Request, evaluator: Evaluator, log: _Log, observe: Callable[[Progress], None]
) -> TuningRecord | None:
    """Give the best configs a verdict, going down the list until one is right; the best that is becomes the record."""
    for first in range(0, min(len(ranked(log.tried)), _CHECKED_AT_MOST), FINALISTS):
        finalists = _contest(log.tried, request)[first : first + FINALISTS]
        _judge(evaluator, log, [each for each in finalists if each.verdict is None], observe)
        if right := _right(log.tried, request, first + FINALISTS):
            return _record(right, evaluator, len(log.tried))
    return None


def _right(tried: Sequence[Tried], request: Request, count: int) -> list[Tried]:
    """Of the first `count` of the contest, those that passed their checks."""
    return [each for each in _contest(tried, request)[:count] if each.verdict and each.verdict.ok]


def _contest(tried: Sequence[Tried], request: Request) -> list[Tried]:
    """Who may become the record, best first; of those that tie with the best, the nearest to its default first."""
    found = ranked(tried)
    if not found:
        return found
    best = found[0].attempt.value or 0.0
    ties = [each for each in found if (each.attempt.value or 0.0) <= best * (1 + _TIE) and not _spills(each)]
    others = [each for each in found if each not in ties]
    return [*sorted(ties, key=lambda each: _differences(each, request)), *others]


def _differences(tried: Tried, request: Request) -> int:
    """In how many fields a config differs from its implementation's default."""
    default = to_fields(tried.candidate.implementation.default(request.problem, request.gpu.arch))
    return sum(default[name] != value for name, value in tried.attempt.config.items())


def _spills(tried: Tried) -> bool:
    return tried.attempt.resources is None or tried.attempt.resources.spill_bytes > 0


def _judge(evaluator: Evaluator, log: _Log, open_: Sequence[Tried], observe: Callable[[Progress], None]) -> None:
    wrong = 0
    for done, (position, verdict) in enumerate(evaluator.verdicts([each.candidate for each in open_]), start=1):
        log.judge(open_[position], verdict)
        wrong += not verdict.ok
        observe(Progress("check", done, len(open_), wrong, log.best))


def _record(right: Sequence[Tried], evaluator: Evaluator, tried: int) -> TuningRecord:
    winner = right[0]
    attempt, verdict = winner.attempt, winner.verdict
    assert verdict is not None and attempt.resources is not None
    return TuningRecord(
        identity=attempt.identity,
        config=attempt.config,
        evidence=evaluator.evidence,
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
    """How far the runner-up is behind the winner; 0 where there is none, or where they tie."""
    values = [each.attempt.value for each in right[:2] if each.attempt.value is not None]
    return max(values[1] / values[0] - 1, 0.0) if len(values) == 2 else 0.0
