"""Tests of the sampler: its suggestions, what it learns, and when it ends."""

import logging
import math
import subprocess
import sys
from dataclasses import dataclass, make_dataclass
from itertools import islice
from typing import Any

import numpy as np
import optuna
import pytest

from tests.support.valley import COSTS, OPTIMUM, SPACE, Config, asked_one_by_one, cost, search
from tuner.errors import UsageError
from tuner.search.sampler import METHODS as ALL
from tuner.search.sampler import OPTUNA, Sampler
from tuner.search.sampler.expected_improvement import predicted_scores, representative
from tuner.search.sampler.gaussian_process import (
    Hyperparameters,
    Posterior,
    fit,
    log_expected_improvement,
    spread_after,
)
from tuner.search.sampler.observations import Observations
from tuner.spec.space import Array, Constraint, Space

METHODS = [method for method in ALL if method not in OPTUNA]  # test_optuna_samplers.py tests the others


@pytest.mark.parametrize("method", METHODS)
def test_no_config_is_asked_twice_and_the_space_is_exhausted(method: str) -> None:
    few = {**SPACE.choices, "rows": (8, 16), "columns": (8,), "threads": (32, 64, 128)}
    space = Space(Config, few, SPACE.constraints)
    sampler, asked = Sampler(space, method=method, seed=0), []
    while batch := sampler.ask(4):
        asked += batch
        for index in batch[1:]:  # one result of each batch is still out
            sampler.tell(index, cost(space[index]))
    assert sorted(asked) == list(range(len(space)))


@pytest.mark.parametrize("method", METHODS)
def test_parameters_of_a_single_choice_may_stand_first(method: str) -> None:
    space = Space(make_dataclass("Few", ["a", "b", "c"]), {"a": (1,), "b": (2,), "c": (3, 4, 5)})
    sampler = Sampler(space, method=method, seed=0)
    assert sorted(sampler.ask(2) + sampler.ask(2)) == [0, 1, 2]


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_configs(method: str) -> None:
    first, second = (search(Sampler(SPACE, method=method, seed=3), 24, batch=3) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("method", ["gp", "tpe", "categorical", "genetic"])
def test_a_method_that_learns_beats_random_draws(method: str) -> None:
    def found(method: str) -> float:
        return float(np.mean([best(search(Sampler(SPACE, method=method, seed=seed), 40)) for seed in range(4)]))

    def best(asked: list[int]) -> float:
        return OPTIMUM / min(value for index in asked if (value := COSTS[index]) is not None)

    assert found(method) > found("random") + 0.03


def test_twenty_tries_find_the_optimum_of_a_valley_under_every_seed() -> None:
    for seed in range(8):
        asked = search(Sampler(SPACE, seed=seed), 20)
        assert OPTIMUM in [COSTS[index] for index in asked], f"seed {seed}"


def test_a_length_scale_is_the_typical_one_while_results_are_few_and_theirs_when_they_are_many() -> None:
    assert _fitted_scale(results=12) > 1.0
    assert _fitted_scale(results=150) < 0.3


def _fitted_scale(results: int) -> float:
    """The length scale fitted to two waves in a row, where 1.5 is typical."""
    points = np.random.default_rng(0).random((results, 1))
    wave = np.sin(4 * np.pi * points[:, 0])
    fitted = fit(
        points, np.zeros(1, int), (wave - wave.mean()) / wave.std(), np.array([1.5]), None, 60, spread_after(results)
    )
    return float(np.exp(fitted.log_scales[0]))


def _matern(a: Array, b: Array, scales: Array) -> Array:
    """Matérn-5/2 as textbooks state it (Rasmussen and Williams 2006, equation 4.17) [len(a), len(b)]."""
    r = np.sqrt(5 * (((a[:, None] - b[None]) / scales) ** 2).sum(axis=2))
    result: Array = (1 + r + r**2 / 3) * np.exp(-r)
    return result


def test_a_posterior_that_grows_row_by_row_is_the_textbooks() -> None:
    rng, scales, noise = np.random.default_rng(0), np.array([0.5, 2.0]), 0.01
    points, pool, scores = rng.random((9, 2)), rng.random((30, 2)), rng.standard_normal(7)
    posterior = Posterior(Hyperparameters(np.log(scales), np.log(noise)), np.arange(2), pool.astype(np.float32), 9)
    for rows in (points[:4], points[4:7], points[7:]):
        posterior.append(rows.astype(np.float32))
    evaluated, tried = points[:7], points  # two are being tried: they lower the deviation, and move no mean
    known = np.linalg.inv(_matern(evaluated, evaluated, scales) + noise * np.eye(7))
    np.testing.assert_allclose(posterior.mean(scores), _matern(pool, evaluated, scales) @ known @ scores, atol=1e-3)
    across, inside = _matern(pool, tried, scales), _matern(tried, tried, scales) + noise * np.eye(9)
    left = 1 - np.einsum("ij,jk,ik->i", across, np.linalg.inv(inside), across)
    spread = (scores @ known @ scores + 2) / (7 + 2)
    np.testing.assert_allclose(posterior.deviation(scores), np.sqrt(left * spread), atol=2e-3)


def test_expected_improvement_is_what_draws_improve_by_and_never_underflows() -> None:
    draws = np.random.default_rng(0).standard_normal(400_000)
    mean, deviation = np.array([-1.0, 0.0, 2.0]), np.array([0.5, 1.0, 2.0])
    drawn = [np.maximum(0.5 - (m + s * draws), 0).mean() for m, s in zip(mean, deviation, strict=True)]
    np.testing.assert_allclose(np.exp(log_expected_improvement(mean, deviation, 0.5)), drawn, rtol=0.02)
    far = log_expected_improvement(np.arange(1.0, 60.0), np.ones(59), 0.0)
    assert np.isfinite(far).all() and (np.diff(far) < 0).all()


def test_of_very_many_results_a_prediction_learns_from_the_best_and_from_some_of_all_others() -> None:
    values = np.array([math.inf if (value := COSTS[index]) is None else value for index in range(200)])
    history = Observations(np.arange(200), values, np.zeros(0, int))
    few = history.where(representative(history, 40))
    assert len(few.tried) == 40
    assert sorted(few.values)[:20] == sorted(values)[:20] and np.isinf(few.values).any() == np.isinf(values).any()
    np.testing.assert_array_equal(predicted_scores(SPACE, history, 40), predicted_scores(SPACE, few))


def test_starts_are_asked_first_in_order() -> None:
    assert Sampler(SPACE, seed=0, starts=(40, 7, 40, 12)).ask(3) == [40, 7, 12]


def test_a_whole_space_is_tried_from_its_starts_and_what_the_prior_ranks_best() -> None:
    falling = -np.arange(len(SPACE), dtype=float)
    last = len(SPACE) - 1
    assert Sampler(SPACE, method="exhaustive", seed=0, starts=(7,), prior=falling).ask(3) == [7, last, last - 1]


def test_what_was_told_before_is_not_asked_again() -> None:
    sampler = Sampler(SPACE, method="exhaustive", seed=0)
    for index in (0, 2, 3):
        sampler.tell(index, 1.0)
    assert sampler.ask(3) == [1, 4, 5]


def test_what_was_told_before_counts_when_the_space_is_exhausted() -> None:
    space = Space(make_dataclass("Few", ["a"]), {"a": (1, 2, 3)})
    sampler = Sampler(space, method="random", seed=0)
    sampler.tell(1, 1.0)
    assert sorted(sampler.ask(3)) == [0, 2]


def test_a_search_rebuilt_from_its_results_goes_on_where_it_stopped() -> None:
    whole, resumed = Sampler(SPACE, seed=1), Sampler(SPACE, seed=1)
    done = search(whole, 30)
    for index in done:
        resumed.tell(index, COSTS[index])
    assert resumed.best == whole.best
    assert not set(search(resumed, 10)) & set(done)


def test_a_batch_spreads_out_instead_of_repeating_one_idea() -> None:
    sampler = Sampler(SPACE, seed=0)
    search(sampler, 20)
    batch = sampler.ask(8)
    assert len(set(batch)) == 8
    assert len({tuple(SPACE.codes[index]) for index in batch}) == 8


def test_failures_teach_where_not_to_go() -> None:
    sampler, failed = Sampler(SPACE, seed=0), []
    for index in islice(asked_one_by_one(sampler), 40):
        works = SPACE[index].threads <= 64
        sampler.tell(index, COSTS[index] if works else None)
        failed.append(not works)
    assert np.mean(SPACE.columns.threads <= 64) < 0.4
    assert np.mean(failed[10:]) < 0.2


def test_a_search_in_which_everything_fails_goes_on() -> None:
    sampler = Sampler(SPACE, seed=0)
    for _ in range(12):
        for index in sampler.ask(1):
            sampler.tell(index, None)
    assert sampler.best is None
    assert sampler.expected_improvement is None
    assert len(sampler.ask(5)) == 5


def test_the_best_is_the_lowest_value_told() -> None:
    sampler = Sampler(SPACE, seed=0)
    for index, value in ((5, 3.0), (9, 2.0), (1, None), (2, math.nan), (3, math.inf)):
        sampler.tell(index, value)
    assert sampler.best == (9, 2.0)


def test_telling_a_config_twice_is_an_error() -> None:
    sampler = Sampler(SPACE, seed=0)
    sampler.tell(5, 3.0)
    with pytest.raises(ValueError, match="config 5 has a value already"):
        sampler.tell(5, 2.0)


def test_the_expected_improvement_falls_as_the_search_converges() -> None:
    sampler = Sampler(SPACE, seed=0)
    search(sampler, 10)
    early = sampler.expected_improvement
    search(sampler, 70)
    late = sampler.expected_improvement
    assert early is not None
    assert late is not None
    assert 0 <= late < 0.01 < early < 1


def test_an_unknown_method_is_named_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"unknown sampler 'anneal' \(known: gp, tpe"):
        Sampler(SPACE, method="anneal", seed=0)


def test_importance_adds_up_to_one_and_knows_what_matters() -> None:
    sampler = Sampler(SPACE, method="random", seed=0)
    search(sampler, 200)
    importance = sampler.importance()
    assert set(importance) == set(SPACE.names)
    assert sum(importance.values()) == pytest.approx(1)
    assert importance["prefetch"] == min(importance.values())


def test_importance_is_empty_before_two_different_values() -> None:
    sampler = Sampler(SPACE, seed=0)
    assert sampler.importance() == {}
    sampler.tell(0, 1.0)
    sampler.tell(1, 1.0)
    assert sampler.importance() == {}


@pytest.mark.parametrize("method", METHODS)
def test_an_empty_space_asks_nothing(method: str) -> None:
    space = Space(Config, SPACE.choices, (Constraint("never", lambda c: c.rows < 0),))
    assert Sampler(space, method=method, seed=0).ask(3) == []


def test_negative_values_are_values() -> None:
    sampler = Sampler(SPACE, seed=0)
    for _ in range(15):
        for index in sampler.ask(1):
            sampler.tell(index, None if COSTS[index] is None else -float(index))
    assert sampler.best is not None
    assert sampler.expected_improvement is not None


def test_optuna_is_left_as_verbose_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    verbosity = optuna.logging.get_verbosity()
    with caplog.at_level(logging.INFO):
        search(Sampler(SPACE, method="tpe", seed=0), 12)
    assert optuna.logging.get_verbosity() == verbosity
    assert not caplog.records


def test_the_names_of_the_methods_cost_no_import_of_optuna() -> None:
    code = (
        "import sys; from tuner.search.sampler import METHODS; print('optuna' in sys.modules, 'scipy' in sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded == "False False\n"


@dataclass(frozen=True, slots=True)
class Wide:
    a: int
    b: int
    c: int
    d: int
    e: int
    f: int
    g: int


def wide(*sizes: int) -> Space[Wide]:
    return Space(Wide, {name: range(1, size + 1) for name, size in zip("abcdefg", sizes, strict=True)})


def test_a_space_of_millions_is_searched() -> None:
    space = wide(12, 12, 12, 10, 10, 4, 4)
    assert len(space) == 2_764_800
    values, sampler = _smooth(space), Sampler(space, method="categorical", seed=0)
    for index in islice(asked_one_by_one(sampler), 40):
        sampler.tell(index, float(values[index]))
    assert sampler.best is not None
    assert np.mean(values < sampler.best[1]) < 1e-3


# 10^10 configs, of which nobody makes a list.
VAST = Space(Wide, dict.fromkeys("abcdefg", range(1, 31)), (Constraint("even", lambda c: (c.a + c.b) % 2 == 0),))


@pytest.mark.parametrize("method", ["gp", "tpe", "categorical", "genetic", "random"])
def test_a_space_too_large_to_enumerate_is_searched_with_valid_distinct_configs(method: str) -> None:
    sampler, asked = Sampler(VAST, method=method, seed=0), []
    for index in islice(asked_one_by_one(sampler), 16):
        sampler.tell(index, float(_quadratic(VAST[index])))
        asked.append(index)
    assert len(set(asked)) == 16
    assert not any(VAST.refusal(VAST[index]) for index in asked)


@pytest.mark.parametrize("method", ["gp", "categorical"])
def test_a_vast_space_is_searched_beyond_the_sample_that_it_is_drawn_from(method: str) -> None:
    sampler = Sampler(VAST, method=method, seed=0)
    for index in islice(asked_one_by_one(sampler), 24):
        sampler.tell(index, float(_quadratic(VAST[index])))
    drawn = VAST.draw(131_072, np.random.default_rng(0))
    assert sampler.best is not None
    assert sampler.best[0] not in drawn


def test_a_space_that_is_not_enumerated_cannot_be_exhausted() -> None:
    with pytest.raises(UsageError, match="configs are too many for an exhaustive search: choose another sampler"):
        Sampler(VAST, method="exhaustive", seed=0)


def test_beyond_the_results_that_a_fit_can_take_the_search_goes_on_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.search.sampler.expected_improvement._MOST_RESULTS", 12)
    sampler = Sampler(SPACE, seed=0)
    asked = search(sampler, 40)
    assert len(set(asked)) == 40
    assert sampler.best is not None
    assert sampler.best[1] < 1.3 * OPTIMUM


def _quadratic(config: Wide) -> int:
    return 1 + (config.a - 7) ** 2 + (config.b - 20) ** 2 + (config.c - config.d) ** 2 + config.e


def _smooth(space: Space[Wide]) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(0)
    peaks = [rng.integers(len(values)) for values in space.choices.values()]
    return 1 + ((space.codes - np.array(peaks)) ** 2 * rng.uniform(0.1, 1, len(peaks))).sum(axis=1)
