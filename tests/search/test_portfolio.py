"""Tests of portfolios: which configs are chosen, what each problem loses, and that all members are checked."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from tests.support.recorded import OPERATOR, SM_80, Recorded
from tests.support.simulated_device import Simulation
from tuner.compiler.nvrtc import Compiler
from tuner.errors import UsageError
from tuner.evaluate.check.checker import Checker
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.evaluate.measure.worker import Worker
from tuner.evaluate.measurer import Setup
from tuner.results.attempt import Attempt, Evidence
from tuner.search import many_problems, study
from tuner.search.portfolio import Family, ServedProblem, Terms, choose
from tuner.search.session import Session, measured
from tuner.search.study import Progress, SearchRequest
from tuner.spec.instance import Instance
from tuner.spec.problem import canonical
from tuner.store.sql import Store

INF = float("inf")


def test_the_smallest_set_that_keeps_to_the_regret_is_chosen() -> None:
    regrets = np.array([[0.0, 0.3, 0.04], [0.3, 0.0, 0.04], [0.2, 0.0, 0.05]])
    result = choose(regrets, Terms(most=3, within=0.05))
    assert (result.members, result.serves, result.regrets) == ((2,), (2, 2, 2), (0.04, 0.04, 0.05))


def test_each_problem_is_served_by_the_member_that_is_best_for_it() -> None:
    regrets = np.array([[0.0, 0.3, 0.04], [0.3, 0.0, 0.04]])
    result = choose(regrets, Terms(most=2, within=0.01))
    assert (result.members, result.serves) == ((0, 1), (0, 1))


def test_with_too_few_configs_the_largest_regret_is_as_small_as_it_can_be() -> None:
    regrets = np.array([[0.0, 0.5, 0.2], [0.5, 0.0, 0.2], [0.1, 0.1, 0.3]])
    result = choose(regrets, Terms(most=1, within=0.01))
    assert result.members == (2,)
    assert max(result.regrets) == 0.3


def test_a_problem_that_nothing_works_for_is_served_by_none_and_the_others_still_are() -> None:
    result = choose(np.array([[INF, INF], [0.0, INF], [INF, 0.0]]), Terms())
    assert result.serves == (-1, 0, 1)
    assert result.regrets == (INF, 0.0, 0.0)


def test_nothing_to_choose_from_is_an_empty_portfolio() -> None:
    result = choose(np.zeros((3, 0)), Terms())
    assert (result.members, result.serves) == ((), (-1, -1, -1))


def test_the_worst_regret_is_not_known_where_that_of_a_problem_is_not() -> None:
    def worst(*regrets: float | None) -> float | None:
        places = tuple(ServedProblem({"T": place}, 0, regret, None, None) for place, regret in enumerate(regrets))
        return Family({}, Evidence.PREDICTED, Terms(), (), places).worst

    assert worst(0.04, 0.1) == 0.1
    assert worst(0.04, None) is None


@pytest.mark.parametrize("seed", range(5))
def test_no_set_of_the_size_is_better(seed: int) -> None:
    regrets = np.random.default_rng(seed).random((7, 9)) ** 2
    result = choose(regrets, Terms(most=3, within=0.0))
    least = min(regrets[:, list(combination)].min(axis=1).max() for combination in combinations(range(9), 3))
    assert max(result.regrets) == least


def test_of_very_many_configs_a_greedy_set_still_covers_what_it_can() -> None:
    regrets = np.full((6, 120), 0.5)
    for problem in range(6):
        regrets[problem, 20 * problem] = 0.0
    result = choose(regrets, Terms(most=6, within=0.05))
    assert result.members == tuple(20 * problem for problem in range(6))


def test_a_portfolio_of_no_config_is_refused() -> None:
    with pytest.raises(UsageError, match="give at least 1"):
        Terms(most=0)


class RecordedSession(Session):
    """Searches recorded costs. `cost(problem)` gives the cost of its configs, `right` what passes the checks where."""

    def __init__(
        self,
        store: Store,
        cost: Callable[[Any], Callable[[Any], float]],
        right: Callable[[Any, Any], bool] = lambda *_: True,
    ) -> None:
        def evaluator_of(request: SearchRequest) -> Recorded:
            problem = request.problem
            recorded = Recorded(cost(problem), lambda config: right(problem, config), problem=problem)
            return self.evaluators.setdefault(problem, recorded)

        super().__init__(store, evaluator_of)
        self.store = store
        self.evaluators: dict[Any, Recorded] = {}


@contextmanager
def unwatched(_: SearchRequest) -> Iterator[Callable[[Progress], None]]:
    yield lambda _: None


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.open(":memory:") as opened:
        yield opened


def sized(length: int, head_dim: int = 64) -> Any:
    return OPERATOR.problem(head_dim=head_dim, seq_q=length, seq_k=length)


def wide_when_long(problem: Any) -> Callable[[Any], float]:
    """Up to 1024 queries a small tile wins, beyond a large one; by little up to the middle."""
    best = 64 if problem.seq_q <= 1024 else 128
    return lambda config: 100.0 + abs(config.BM - best) + abs(config.BN - 64) + config.warps


def run(
    session: RecordedSession, lengths: Sequence[int], terms: Terms, stopped: Callable[[], bool] = lambda: False
) -> Any:
    requests = [
        SearchRequest(
            OPERATOR, sized(length), SM_80, implementation="mma_sync", budget=60, method="categorical", history=False
        )
        for length in lengths
    ]
    return many_problems.campaign(requests, session, unwatched, stopped, terms)


LENGTHS = (256, 512, 4096, 8192)


def test_every_problem_gets_its_record_and_two_configs_serve_all_four(store: Store) -> None:
    result = run(RecordedSession(store, wide_when_long), LENGTHS, Terms(most=3, within=0.01))
    for outcome in result.outcomes:
        assert store.record(OPERATOR.name, canonical(outcome.request.problem), SM_80.name) == outcome.record
    (family,) = result.families
    assert [config["BM"] for _, config in family.members] in ([64, 128], [128, 64])
    assert [family.members[place.member][1]["BM"] for place in family.places] == [64, 64, 128, 128]
    assert family.worst is not None
    assert family.worst <= 0.01


def test_a_member_was_tried_and_judged_on_each_problem_that_it_serves(store: Store) -> None:
    result = run(RecordedSession(store, wide_when_long), LENGTHS, Terms(most=1, within=0.01))
    (family,) = result.families
    assert len(family.members) == 1
    _, config = family.members[0]
    for outcome in result.outcomes:
        (tried,) = [candidate for candidate in outcome.tried if dict(candidate.attempt.config) == dict(config)]
        assert tried.attempt.value is not None
        assert tried.verdict is not None and tried.verdict.ok


def test_a_config_that_is_wrong_on_a_problem_does_not_serve_it(store: Store) -> None:
    session = RecordedSession(store, wide_when_long, lambda problem, config: problem.seq_q != 8192 or config.BM <= 64)
    result = run(session, LENGTHS, Terms(most=1, within=0.01))
    (family,) = result.families
    assert [config["BM"] for _, config in family.members] == [64]
    assert [place.member for place in family.places] == [0, 0, 0, 0]
    assert all(outcome.record is not None for outcome in result.outcomes)


def test_what_a_problem_would_lose_without_a_record_is_by_its_nearest_neighbour(store: Store) -> None:
    result = run(RecordedSession(store, wide_when_long), LENGTHS, Terms())
    (family,) = result.families
    assert [place.nearest["seq_q"] for place in family.places] == [512, 256, 8192, 4096]
    assert max(place.unlisted_regret for place in family.places) < 0.02


def test_a_config_of_a_neighbour_that_is_better_becomes_the_record(store: Store) -> None:
    session = RecordedSession(store, wide_when_long)
    requests = [
        SearchRequest(OPERATOR, sized(length), SM_80, implementation="mma_sync", budget=budget, history=False)
        for length, budget in ((512, 80), (1024, 1))
    ]
    campaign = many_problems.campaign(requests, session, unwatched, lambda: False, Terms())
    first, second = campaign.outcomes
    assert second.record is not None and first.record is not None
    assert second.record.config == first.record.config
    assert store.record(OPERATOR.name, canonical(sized(1024)), SM_80.name) == second.record


class Spilling(Recorded):
    """The larger a tile the cheaper, and the default's spills registers."""

    def attempt(self, instance: Instance) -> Attempt:
        made = super().attempt(instance)
        assert made.resources is not None
        return replace(made, resources=replace(made.resources, spill_bytes=16 if instance.config.BM == 128 else 0))


def test_a_config_without_flaws_becomes_the_record_though_the_flawed_one_is_cheaper(store: Store) -> None:
    evaluator = Spilling(lambda config: 1000.0 - config.BM, problem=sized(512))
    request = SearchRequest(OPERATOR, sized(512), SM_80, implementation="mma_sync", budget=1, history=False)
    outcome = study.search(request, store, evaluator)
    assert outcome.record is not None and outcome.record.config["BM"] == 128
    (default,) = (candidate.instance for candidate in outcome.tried)
    smaller = replace(default, config=replace(default.config, BM=64))
    result = study.extend(outcome, store, evaluator, [smaller])
    assert result.record is not None and result.record.config["BM"] == 64
    assert store.record(OPERATOR.name, canonical(evaluator.problem), SM_80.name) == result.record


def test_a_config_with_flaws_serves_no_problem_that_has_one_without(store: Store) -> None:
    outcomes = []
    for length in (512, 1024):
        evaluator = Spilling(lambda config: 1000.0 - config.BM, problem=sized(length))
        request = SearchRequest(OPERATOR, sized(length), SM_80, implementation="mma_sync", budget=1, history=False)
        searched = study.search(request, store, evaluator)
        (default,) = (candidate.instance for candidate in searched.tried)
        smaller = replace(default, config=replace(default.config, BM=64))
        outcomes.append(study.extend(searched, store, evaluator, [smaller]))
    (family,) = many_problems.portfolios(outcomes, Terms())
    assert [config["BM"] for _, config in family.members] == [64]


def test_a_config_without_a_verdict_on_a_problem_does_not_serve_it(store: Store) -> None:
    first, second = run(RecordedSession(store, wide_when_long), (256, 512), Terms()).outcomes
    unjudged = replace(second, tried=tuple(replace(candidate, verdict=None) for candidate in second.tried))
    (family,) = many_problems.portfolios([first, unjudged], Terms())
    assert [place.member for place in family.places] == [0, None]


def test_problems_of_different_kernels_have_portfolios_of_their_own(store: Store) -> None:
    requests = [
        SearchRequest(OPERATOR, sized(length, head_dim), SM_80, implementation="mma_sync", budget=8, history=False)
        for head_dim in (64, 72)
        for length in (512, 1024)
    ]
    requests.append(SearchRequest(OPERATOR, sized(512, 40), SM_80, implementation="mma_sync", budget=8))
    campaign = many_problems.campaign(
        requests, RecordedSession(store, wide_when_long), unwatched, lambda: False, Terms()
    )
    assert [family.statics["head_dim"] for family in campaign.families] == [64, 72]
    assert len(campaign.outcomes) == 5


def test_an_interrupted_campaign_keeps_the_problems_that_were_searched(store: Store) -> None:
    session = RecordedSession(store, wide_when_long)
    result = run(session, LENGTHS, Terms(), lambda: len(session.evaluators) == 2)
    assert len(result.outcomes) == 2
    assert result.families == ()


def test_what_is_stored_gives_the_same_portfolio_without_trying_anything(store: Store) -> None:
    session = RecordedSession(store, wide_when_long)
    result = run(session, LENGTHS, Terms(most=3, within=0.01))
    recalled = [
        study.recall(SearchRequest(OPERATOR, sized(length), SM_80, implementation="mma_sync"), store, evaluator)
        for length, evaluator in zip(LENGTHS, session.evaluators.values(), strict=True)
    ]
    (again,) = many_problems.portfolios(recalled, Terms(most=3, within=0.01))
    (family,) = result.families
    assert [place.regret for place in again.places] == [place.regret for place in family.places]


@pytest.mark.slow
def test_on_a_device_members_are_timed_and_judged_on_the_problems_that_they_serve() -> None:
    simulation = Simulation("sm_80", noise=0.005, lies=0, throttled=0)
    policy = MeasurementPolicy(warm_up_us=100, limit_s=0.5)
    requests = [
        SearchRequest(OPERATOR, OPERATOR.problem(head_dim=16, batch=1, heads=1, seq_q=length), SM_80, budget=3)
        for length in (64, 128)
    ]
    requests = [replace(request, implementation="naive") for request in requests]
    with Store.open(":memory:") as store, Compiler(1) as compiler, Checker(1), Worker(simulation) as worker:
        session = Session(store, measured(SM_80, compiler, Setup(worker, policy)))
        campaign = many_problems.campaign(requests, session, unwatched, lambda: False, Terms(most=1))
    (family,) = campaign.families
    ((_, config),) = family.members
    assert family.evidence is Evidence.MEASURED
    for outcome in campaign.outcomes:
        assert outcome.record is not None
        assert outcome.record.measurement is not None
        (tried,) = [candidate for candidate in outcome.tried if dict(candidate.attempt.config) == dict(config)]
        assert tried.attempt.measurement is not None
        assert tried.verdict is not None and tried.verdict.where == "simulated"
