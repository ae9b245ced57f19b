"""Samples, screening and the final race, on times whose truth is known."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from math import inf

import numpy as np
import pytest

from tuner.errors import UsageError
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.evaluate.measure.race_timing import Rules, decide
from tuner.evaluate.measure.samples import (
    Sample,
    State,
    effective,
    estimate,
    interval,
    screen,
    typical,
    undisturbed,
    usual,
)

POLICY = MeasurementPolicy()
CALM = State(sm_mhz=1980, processes=1)


def noisy(time_us: float, rng: np.random.Generator, noise: float = 0.01) -> Callable[[], Sample]:
    return lambda: Sample(time_us * float(np.exp(noise * rng.standard_normal())), CALM)


def race(truth: list[float], rng: np.random.Generator, rounds: int = 30, noise: float = 0.01) -> np.ndarray:
    """Times with noise of each launch, and a drift that all contenders of a round share."""
    drift = np.cumsum(rng.normal(0, 0.01, rounds))[:, None]
    return np.array(truth) * np.exp(drift + noise * rng.standard_normal((rounds, len(truth))))


def rules(n: int) -> Rules:
    return Rules(tuple((i,) for i in range(n)))


def test_the_interval_of_a_median_holds_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    for n in (3, 12, 30):
        results = [interval(rng.normal(0, 0.02, n)) for _ in range(400)]
        held = sum(result.low <= 0 <= result.high for result in results) / 400
        assert held >= 0.93, (n, held)


def alike(n: int, correlation: float, rng: np.random.Generator) -> np.ndarray:
    """Noise of 2 %, of which neighbours share so much."""
    results = [float(rng.standard_normal())]
    while len(results) < n:
        results.append(correlation * results[-1] + np.sqrt(1 - correlation**2) * float(rng.standard_normal()))
    return 0.02 * np.array(results)


@pytest.mark.parametrize("correlation", [0.3, 0.6, 0.9])
def test_values_that_go_with_their_neighbours_do_not_narrow_an_interval(correlation: float) -> None:
    rng = np.random.default_rng(0)
    for n in (30, 100):
        results = [interval(alike(n, correlation, rng)) for _ in range(200)]
        held = sum(result.low <= 0 <= result.high for result in results) / 200
        assert held >= 0.88, (n, held)


def test_a_series_counts_as_the_independent_values_that_say_as_much() -> None:
    rng = np.random.default_rng(0)
    for correlation in (0.0, 0.5, 0.9):
        result = effective(np.array([alike(400, correlation, rng) for _ in range(50)]).T).mean() / 400
        assert result == pytest.approx((1 - correlation) / (1 + correlation), rel=0.2)
    assert effective(np.zeros((30, 2))) == pytest.approx([30, 30], rel=0.1)
    assert effective(np.array([[0.0], [1.0], [2.0]])).tolist() == [3]  # too few to tell


def ticking(time_us: float, rng: np.random.Generator) -> list[float]:
    """Times of launches by a clock that steps: each begins somewhere between two steps."""
    launches, tick_us = 32, 0.5
    begin = rng.uniform(0, tick_us, launches)
    ticks = np.floor((begin + time_us * np.exp(0.002 * rng.standard_normal(launches))) / tick_us)
    return list(tick_us * ticks)


def test_kernels_that_differ_by_less_than_a_step_of_the_clock_are_told_apart() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        times = [[typical(ticking(time_us, rng)) for time_us in (5.0, 5.15)] for _ in range(POLICY.rounds)]
        assert np.mean(times, axis=0) == pytest.approx([5.0, 5.15], rel=0.01)
        assert decide(times, Rules(((2,), (1,))), seed).winner == 0


def test_launches_that_something_held_up_are_no_part_of_a_sample() -> None:
    assert typical([5.0, 5.5, 5.0, 5.5, 90.0]) == pytest.approx(5.25)
    assert typical([500.0, 510.0, 505.0, 900.0]) == pytest.approx(505.0)


def test_one_lying_sample_moves_a_median_little() -> None:
    assert estimate([100.0, 101, 99, 100, 20]).mid == pytest.approx(100, rel=0.01)


def test_an_estimate_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no value"):
        estimate([])


@pytest.mark.parametrize(
    "state",
    [State(1980, 0x40, 90, 1), State(1500, 0, 60, 1), State(1980, 0, 60, 2)],
    ids=["throttled", "clock dropped", "another process"],
)
def test_a_disturbed_sample_is_rejected(state: State) -> None:
    samples = [*(Sample(100, CALM) for _ in range(4)), Sample(130, state)]
    assert undisturbed(samples, usual([CALM])) == tuple(samples[:4])


def test_a_throttle_that_is_always_on_is_how_the_device_runs() -> None:
    hot = State(1200, 0x40, 90, 1)
    samples = [Sample(100, hot)] * 3
    assert undisturbed(samples, usual([hot] * 5)) == tuple(samples)


def test_a_device_that_tells_nothing_loses_no_sample() -> None:
    samples = [Sample(100)] * 3
    assert undisturbed(samples, usual([State()])) == tuple(samples)


def test_disturbed_samples_are_repeated() -> None:
    hot = State(1980, 0x40, 90, 1)
    turns = count()
    kept = screen(lambda: Sample(100, hot if next(turns) % 3 == 0 else CALM), lambda: CALM, POLICY, inf)
    assert len(kept) == POLICY.screening[-1][0]
    assert all(attempt.state == CALM for attempt in kept)


def screened(truth: np.ndarray, seed: int) -> tuple[int, float]:
    """(samples drawn, regret of choosing by them) over a space."""
    rng, best, total, values = np.random.default_rng(seed), inf, 0, []
    for time_us in truth:
        kept = screen(noisy(float(time_us), rng, 0.02), lambda: CALM, POLICY, best)
        values.append(estimate([attempt.time_us for attempt in kept]).mid)
        best, total = min(best, values[-1]), total + len(kept)
    return total, float(truth[int(np.argmin(values))] / truth.min() - 1)


def test_a_kernel_whose_every_sample_is_disturbed_is_given_up() -> None:
    drawn: list[Sample] = []

    def throttled() -> Sample:
        drawn.append(Sample(50.0, State(throttle=0x40)))
        return drawn[-1]

    policy = MeasurementPolicy()
    assert screen(throttled, State, policy, float("inf")) == ()
    assert len(drawn) == 2 * policy.screening[-1][0]


def test_screening_saves_most_launches_of_a_steep_space() -> None:
    for seed in range(5):
        truth = 100 * np.exp(np.random.default_rng(seed).exponential(0.8, 100))
        total, regret = screened(truth, seed)
        assert total <= 0.4 * 100 * POLICY.screening[-1][0], total
        assert regret < 0.02


def test_screening_loses_less_than_a_percent_on_a_flat_space() -> None:
    regrets = [screened(100 * (1 + 0.05 * np.random.default_rng(seed).random(100)), seed)[1] for seed in range(20)]
    assert np.mean(regrets) < 0.01, regrets


def test_a_planted_best_wins_19_of_20_races() -> None:
    truth = [100.0, 104, 103, 106, 110, 103]
    won = [decide(race(truth, np.random.default_rng(seed)), rules(6), seed).winner == 0 for seed in range(20)]
    assert sum(won) >= 19


def test_a_race_of_equals_names_the_one_with_the_fewest_resources() -> None:
    keys = ((2,), (1,), (3,))
    for seed in range(20):
        standing = decide(race([100, 100, 100], np.random.default_rng(seed)), Rules(keys), seed)
        assert standing.winner == 1


def test_two_equal_kernels_are_told_apart_in_at_most_1_of_20_races() -> None:
    standings = [decide(race([100, 100], np.random.default_rng(seed)), rules(2), seed) for seed in range(20)]
    assert sum(not all(one.tied for one in standing.contenders) for standing in standings) <= 1


def test_below_what_a_launch_takes_nothing_is_decided() -> None:
    times = race([2.0, 2.1, 2.6], np.random.default_rng(0))
    keys = ((2,), (1,), (0,))
    assert decide(times, Rules(keys)).winner == 0
    standing = decide(times, Rules(keys, floor_us=2.2))
    assert standing.winner == 1
    assert [contender.tied for contender in standing.contenders] == [True, True, False]
    assert standing.contenders[0].time_us.mid == pytest.approx(2.0, rel=0.05)  # what was measured is told


def test_a_tie_is_not_settled_in_favour_of_what_is_slower_than_the_default() -> None:
    times = race([100.0, 100.6], np.random.default_rng(0), rounds=60, noise=0.001)
    assert decide(times, Rules(((2,), (1,)), default=None)).winner == 1
    assert decide(times, Rules(((2,), (1,)), default=0)).winner == 0


def test_a_clear_race_is_sure_of_itself_and_a_tight_one_is_not() -> None:
    clear = decide(race([100, 120], np.random.default_rng(0)), rules(2))
    assert clear.flip_probability == 0
    assert clear.regret_bound == 0
    assert clear.contenders[1].ratio.low > 1.15
    tight = decide(race([101.2, 100], np.random.default_rng(1), rounds=10, noise=0.03), Rules(((0,), (1,))))
    assert tight.flip_probability > 0.01
    assert tight.regret_bound > 0


def test_the_policy_that_changes_times_is_in_the_name_and_the_one_that_does_not_is_not() -> None:
    assert len({policy.name for policy in (POLICY, replace(POLICY, l2="warm"), replace(POLICY, launch="graph"))}) == 3
    assert MeasurementPolicy(rounds=99).name == POLICY.name


def test_a_device_that_captures_no_graph_is_timed_eager_under_the_name_of_eager_times() -> None:
    wanted = MeasurementPolicy(launch="graph")
    assert wanted.on({"no_graph": ""}) == wanted
    assert wanted.on({"no_graph": "the driver is too old"}).name == POLICY.name


def test_a_sample_has_as_many_launches_as_fill_it_and_at_least_one() -> None:
    policy = MeasurementPolicy(sample_us=1000.0, most_launches=32)
    assert [policy.launches(time_us) for time_us in (5000.0, 250.0, 1.0, 0.0)] == [1, 4, 32, 32]


def test_a_policy_that_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="rounds is 0"):
        MeasurementPolicy(rounds=0)
    with pytest.raises(UsageError, match="'hot'"):
        MeasurementPolicy(l2="hot")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="'lazy'"):
        MeasurementPolicy(launch="lazy")  # type: ignore[arg-type]
