"""Tests of priors: orders of configs from before a search, and whether they are used."""

import math
from dataclasses import make_dataclass
from itertools import combinations, islice

import numpy as np
import pytest

from tests.support.valley import COSTS, GOOD, OPTIMUM, SPACE, asked_one_by_one, search
from tuner.search.sampler import Sampler
from tuner.search.sampler.observations import Observations, Prior
from tuner.search.sampler.starts import Starts
from tuner.spec.space import Space


def started(prior: Prior, tries: int) -> tuple[Starts, Observations]:
    """What a search begins with where all works, and what came of it."""
    starts, tried = Starts(SPACE, np.random.default_rng(0), (), prior), np.zeros(0, int)
    for _ in range(tries):
        result = starts.next(Observations(tried, GOOD[tried], np.zeros(0, int)))
        tried = np.append(tried, result)
    return starts, Observations(tried, GOOD[tried], np.zeros(0, int))


def test_of_a_prior_so_many_as_asked_for_are_best_and_each_is_unlike_the_others() -> None:
    best = Prior(np.arange(len(SPACE), dtype=float)).best(4, SPACE.codes)
    assert best[0] == 0 and len(best) == 4
    assert all(np.count_nonzero(SPACE.codes[a] != SPACE.codes[b]) > 1 for a, b in combinations(best, 2))


def test_a_good_prior_starts_near_the_optimum() -> None:
    prior = GOOD**3
    sampler = Sampler(SPACE, seed=0, prior=prior)
    search(sampler, 1)
    assert sampler.best == (int(np.argmin(prior)), OPTIMUM)
    search(sampler, 15)
    assert sampler.prior_correlation is not None
    assert sampler.prior_correlation > 0.9


def test_a_wrong_prior_is_dropped() -> None:
    prior = np.array([0.0 if value is None else -value for value in COSTS])
    sampler = Sampler(SPACE, seed=0, prior=prior)
    search(sampler, 60)
    assert sampler.prior_correlation is not None
    assert sampler.prior_correlation < 0.2
    assert sampler.best is not None
    assert sampler.best[1] < 1.1 * OPTIMUM


def test_a_prior_that_the_first_results_contradict_starts_no_more_configs() -> None:
    predicted = np.array([math.inf if value is None else -value for value in COSTS])
    worst = set(np.argsort(predicted)[: len(SPACE) // 50].tolist())
    sampler, asked = Sampler(SPACE, seed=0, prior=predicted), []
    for _ in range(20):
        (index,) = sampler.ask(1)
        sampler.tell(index, COSTS[index] or 50.0)  # so that each random try says something
        asked.append(index)
    assert asked[0] in worst
    assert len(set(asked) & worst) == 4  # between them random tries, which then judge it


def test_a_prior_is_not_judged_on_what_it_chose_itself() -> None:
    prior = np.array([math.nan if value is None else value for value in COSTS])
    sampler = Sampler(SPACE, seed=0, prior=prior)
    for index in np.argsort(prior)[:30].tolist():
        sampler.tell(index, float(-prior[index]))
    assert sampler.prior_correlation is None


def test_a_prior_is_judged_only_after_five_random_tries() -> None:
    sampler = Sampler(SPACE, seed=0, prior=GOOD)
    judged = []
    for index in islice(asked_one_by_one(sampler), 9):  # four are its best
        judged.append(sampler.prior_correlation is not None)
        sampler.tell(index, GOOD[index])
    assert judged == [False] * 9 and sampler.prior_correlation == pytest.approx(1)


@pytest.mark.parametrize("measured", [True, False], ids=["times elsewhere", "a prediction"])
def test_a_model_learns_from_the_best_of_times_elsewhere_and_not_from_the_best_of_a_prediction(measured: bool) -> None:
    prior = Prior(GOOD, measured)
    starts, result = started(prior, 7)
    best = set(prior.best(4, SPACE.codes))
    assert best < set(result.tried.tolist())
    assert set(starts.shown(result).tried.tolist()) == set(result.tried.tolist()) - (set() if measured else best)


def test_a_model_sees_all_where_the_prior_does_not_hold() -> None:
    starts, result = started(Prior(-GOOD), 9)
    assert not starts.guided(result)
    assert len(starts.shown(result).tried) == 9


@pytest.mark.parametrize(("tries", "share"), [(7, 0.2), (200, 0.5), (400, 1.0)])
def test_a_believed_prior_leaves_its_best_fifth_and_more_as_tries_go(tries: int, share: float) -> None:
    prior = Prior(np.arange(len(SPACE), dtype=float))
    starts = Starts(SPACE, np.random.default_rng(0), (), prior)
    result = Observations(np.arange(tries), np.arange(tries, dtype=float), np.zeros(0, int))
    left = starts.left(np.arange(len(SPACE)), result)
    assert left.mean() == pytest.approx(share, abs=0.01) and left[: int(share * len(SPACE))].all()


def test_a_prior_that_does_not_hold_leaves_all() -> None:
    starts, result = started(Prior(-GOOD), 9)
    assert starts.left(np.arange(len(SPACE)), result).all()


def test_a_search_goes_on_where_all_is_tried_that_a_prior_leaves() -> None:
    space = Space(make_dataclass("Fields", ["a", "b"]), {"a": tuple(range(1, 9)), "b": tuple(range(1, 9))})
    sampler = Sampler(space, seed=0, prior=np.arange(64.0))
    for index in islice(asked_one_by_one(sampler), 40):
        sampler.tell(index, float(index + 1))
    assert len(set(sampler.ask(64))) == 24
    assert sampler.expected_improvement is not None


def test_a_prior_may_leave_configs_without_a_cost() -> None:
    prior = np.array([math.nan if value is None else value for value in COSTS])
    sampler = Sampler(SPACE, seed=0, prior=prior)
    search(sampler, 20)
    assert sampler.prior_correlation is not None
    assert sampler.prior_correlation > 0.9


def test_a_prior_of_the_wrong_length_is_an_error() -> None:
    with pytest.raises(ValueError, match="the prior has 3 costs"):
        Sampler(SPACE, seed=0, prior=np.ones(3))
