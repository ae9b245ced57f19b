"""A search over many problems that learn from each other, and a portfolio of a few configs that serves them all."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.arch import GPU
from tuner.backends.emulator.pool import PATIENCE_S
from tuner.compiler.nvrtc import Compiler
from tuner.evaluate.check.checker import Checker
from tuner.evaluate.check.verdict_cache import VerdictCache
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.results.attempt import Evidence
from tuner.results.ranking import order, regret
from tuner.search import portfolio
from tuner.search.portfolio import Family, Portfolio, ServedProblem, Terms
from tuner.search.problem_waves import family_of
from tuner.search.session import Searches, Watch, compilers_beside_timing, evidence_for, session
from tuner.search.study import Outcome, SearchRequest, Tried
from tuner.spec.command_line import minimal_fields
from tuner.spec.instance import Instance
from tuner.spec.operator import Operator
from tuner.spec.problem import extents, statics, to_fields
from tuner.spec.space import Array
from tuner.store.kd_tree import DIGITS
from tuner.store.nearest_records import octaves
from tuner.store.sql import Store

_COLUMNS = 8  # number of good configs to compare on all problems, including every winner


@dataclass(frozen=True)
class CampaignRequest:
    """The searches of one operator's problems on one GPU, and their common options."""

    searches: tuple[SearchRequest, ...]
    terms: Terms
    policy: MeasurementPolicy
    # Number of compiling and of checking processes; None: one per core, fewer if a device is timed.
    workers: int | None = None
    check_seconds: float = PATIENCE_S  # time limit per config
    db: str | None = None  # path or URL; None: the user's database

    @property
    def operator(self) -> Operator[Any]:
        return self.searches[0].operator

    @property
    def gpu(self) -> GPU:
        return self.searches[0].gpu

    @property
    def problems(self) -> list[Any]:
        return [search.problem for search in self.searches]


@dataclass(frozen=True)
class Campaign:
    """The outcome for each problem in the given order, and a family for each kernel that several problems share."""

    outcomes: tuple[Outcome, ...]
    families: tuple[Family, ...]


def run(request: CampaignRequest, watch: Watch, stopped: Callable[[], bool]) -> Campaign:
    """Open the resources of the searches and run them; see `campaign`."""
    measured = evidence_for(request.gpu) is Evidence.MEASURED
    compilers = request.workers or (compilers_beside_timing() if measured else None)
    retry = any(search.retry for search in request.searches)
    with (
        Store.open(request.db) as store,
        Compiler(compilers) as compiler,
        Checker(request.workers, request.check_seconds, known=VerdictCache.of_user()) as checker,
        session(request.gpu, store, compiler, checker, request.policy, retry=retry) as opened,
    ):
        return campaign(request.searches, opened, watch, stopped, request.terms)


def campaign(
    requests: Sequence[SearchRequest], searches: Searches, watch: Watch, stopped: Callable[[], bool], terms: Terms
) -> Campaign:
    """Search the problems, then choose the portfolios. Results of one problem guide others; see `waves`.

    When `stopped()` returns True, it ends with the problems searched so far and without portfolios.
    """
    outcomes = searches.search_all(requests, watch, stopped)
    if stopped():
        return Campaign(tuple(outcomes), ())
    families = []
    for positions in _families(outcomes):
        if stopped():
            break
        shared, family = _share([outcomes[position] for position in positions], searches, watch, terms)
        for position, outcome in zip(positions, shared, strict=True):
            outcomes[position] = outcome
        families.append(family)
    return Campaign(tuple(outcomes), tuple(families))


def portfolios(outcomes: Sequence[Outcome], terms: Terms) -> tuple[Family, ...]:
    """Return the portfolios of problems based on existing attempts and verdicts."""
    families = []
    for positions in _families(outcomes):
        shared = [outcomes[position] for position in positions]
        columns = list(_columns(shared, terms.within))
        regrets = _regrets(shared, columns)
        for i, outcome in enumerate(shared):
            judged = {candidate.instance.key for candidate in outcome.tried if candidate.verdict}
            regrets[i, [column.key not in judged for column in columns]] = np.inf
        families.append(_family(shared, columns, regrets, portfolio.choose(regrets, terms), terms))
    return tuple(families)


def _families(outcomes: Sequence[Outcome]) -> Iterator[list[int]]:
    """Yield the positions of problems with equal static fields, if there are several."""
    grouped: dict[object, list[int]] = {}
    for position, outcome in enumerate(outcomes):
        grouped.setdefault(family_of(outcome.request.problem), []).append(position)
    return (positions for positions in grouped.values() if len(positions) > 1)


def _share(outcomes: Sequence[Outcome], searches: Searches, watch: Watch, terms: Terms) -> tuple[list[Outcome], Family]:
    """Try the best configs of each problem on all, then choose; each member is checked on every problem that it
    serves.
    """
    columns = list(_columns(outcomes, terms.within))
    shared = searches.extend_all([(outcome, outcome.bandit.untried(columns)) for outcome in outcomes], watch)
    before: list[list[Instance]] = []
    while True:
        regrets = _regrets(shared, columns)
        chosen = portfolio.choose(regrets, terms)
        open_ = [_unjudged(outcome, columns, chosen.serves[i : i + 1]) for i, outcome in enumerate(shared)]
        if not any(open_) or open_ == before:  # no evaluator gives a verdict
            return shared, _family(shared, columns, regrets, chosen, terms)
        before = open_
        shared = searches.check_all(list(zip(shared, open_, strict=True)), watch)


def _columns(outcomes: Sequence[Outcome], within: float) -> Iterable[Instance]:
    """Return distinct configs: the winners, then runners-up close to them, alternating between problems."""
    right = [_right(outcome) for outcome in outcomes]
    distinct = {candidates[0].instance.key: candidates[0].instance for candidates in right if candidates}
    for rank in range(1, max(map(len, right), default=0)):
        for candidates in right:
            if (
                len(distinct) < _COLUMNS
                and rank < len(candidates)
                and regret(candidates[rank], candidates[0]) <= within
            ):
                distinct.setdefault(candidates[rank].instance.key, candidates[rank].instance)
    return distinct.values()


def _right(outcome: Outcome) -> list[Tried]:
    """Return the configs that passed their checks: the record's config, then the best others."""
    right = [candidate for candidate in outcome.tried if candidate.right and candidate.attempt.value is not None]
    best = sorted(right, key=lambda candidate: order(candidate.attempt))
    return sorted(best, key=lambda candidate: not _is_record(outcome, candidate.instance))


def _regrets(outcomes: Sequence[Outcome], columns: Sequence[Instance]) -> Array:
    """Return the regret of each config on each problem [problems, configs]; inf if it failed, was wrong or was not
    tried.
    """
    return np.array([_row(outcome, columns) for outcome in outcomes]).reshape(len(outcomes), len(columns))


def _row(outcome: Outcome, columns: Sequence[Instance]) -> list[float]:
    known = {candidate.instance.key: candidate for candidate in outcome.tried}
    tries = [known.get(column.key) for column in columns]
    open_ = [tried for tried in tries if tried and tried.verdict is None and tried.attempt.value is not None]
    best = min(
        _right(outcome) or open_,
        key=lambda candidate: (candidate.attempt.flawed, candidate.attempt.value),
        default=None,
    )
    if best is None:
        return [float("inf")] * len(columns)
    return [regret(tried, best) if tried is not None else float("inf") for tried in tries]


def _unjudged(outcome: Outcome, columns: Sequence[Instance], serves: Sequence[int]) -> list[Instance]:
    known = {candidate.instance.key: candidate for candidate in outcome.tried}
    wanted = [columns[column] for column in serves if column >= 0]
    return [instance for instance in wanted if known[instance.key].verdict is None]


def _family(
    outcomes: Sequence[Outcome], columns: Sequence[Instance], regrets: Array, chosen: Portfolio, terms: Terms
) -> Family:
    number = {column: position for position, column in enumerate(chosen.members)}
    problem, nearest = outcomes[0].request.problem, _nearest_records(outcomes)
    return Family(
        statics={name: value for name, value in minimal_fields(problem).items() if name in statics(problem)},
        evidence=outcomes[0].evidence,
        terms=terms,
        members=tuple((columns[c].implementation.name, to_fields(columns[c].config)) for c in chosen.members),
        places=tuple(
            _place(outcomes, i, columns, regrets, number.get(chosen.serves[i]), chosen, nearest[i])
            for i in range(len(outcomes))
        ),
    )


def _place(
    outcomes: Sequence[Outcome],
    i: int,
    columns: Sequence[Instance],
    regrets: Array,
    member: int | None,
    chosen: Portfolio,
    nearest: int | None,
) -> ServedProblem:
    own = to_fields(outcomes[i].request.problem)
    served = [k for k, column in enumerate(columns) if nearest is not None and _is_record(outcomes[nearest], column)]
    unlisted = float(regrets[i, served[0]]) if served else float("inf")
    return ServedProblem(
        problem=own,
        member=member,
        regret=_known(chosen.regrets[i]) if member is not None else None,
        nearest=to_fields(outcomes[nearest].request.problem) if nearest is not None else None,
        unlisted_regret=_known(unlisted),
    )


def _nearest_records(outcomes: Sequence[Outcome]) -> list[int | None]:
    """Return, for each problem, the index of the other problem with a record and the closest sizes.

    The dispatcher falls back to its record. Of equally close problems the first one counts.
    """
    names = extents(outcomes[0].request.problem)
    points = np.array(
        [octaves(tuple(getattr(outcome.request.problem, name) for name in names)) for outcome in outcomes]
    )
    without_record = np.array([outcome.record is None for outcome in outcomes])
    nearest: list[int | None] = []
    for i, point in enumerate(points):
        distances = np.linalg.norm(points - point, axis=1).round(DIGITS)
        distances[without_record] = distances[i] = np.inf
        closest = int(distances.argmin())
        nearest.append(closest if np.isfinite(distances[closest]) else None)
    return nearest


def _is_record(outcome: Outcome, instance: Instance) -> bool:
    record = outcome.record
    if record is None or record.identity.implementation != instance.implementation.name:
        return False
    return dict(record.config) == to_fields(instance.config)


def _known(value: float) -> float | None:
    return value if np.isfinite(value) else None
