"""Tests of the arms of a search: which ones stay open, and how tries are distributed."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.recorded import OPERATOR, PROBLEM, SM_80
from tuner import operators
from tuner.search.bandit import Arm, Bandit, Method, prepared
from tuner.spec.instance import Instance

NAIVE, MMA_SYNC = (operators.implementation(OPERATOR.name, name) for name in ("naive", "mma_sync"))
METHOD = Method("gp", seed=0, tries=100)
SOME = 8  # tries of an arm


@pytest.fixture
def bandit() -> Bandit:
    return Bandit([at_the_start(NAIVE), at_the_start(MMA_SYNC)])


def at_the_start(implementation: Any, prior: Callable[[Instance], float] | None = None) -> Arm:
    arch = SM_80.arch
    default = Instance.default(OPERATOR, implementation, PROBLEM, arch)
    return prepared(default, implementation.space(PROBLEM, arch), prior, METHOD)


def tell(bandit: Bandit, name: str, value: float | None, *, flawed: bool = False, tries: int = SOME) -> None:
    """Results of an arm, all of this value."""
    for index in range(tries):
        bandit.arms[name].observe(bandit.arms[name].space[index], value, flawed=flawed)


def test_an_arm_that_is_far_behind_gets_no_more_tries(bandit: Bandit) -> None:
    tell(bandit, "naive", 50.0)
    tell(bandit, "mma_sync", 20.0)
    bandit.drop_bad_arms()
    assert {trial.implementation.name for trial in bandit.ask(4)} == {"mma_sync"}
    assert "over 2 × the best of all" in bandit.arms["naive"].closed_because


def test_what_has_flaws_puts_nothing_behind_that_has_none(bandit: Bandit) -> None:
    tell(bandit, "naive", 50.0)
    tell(bandit, "mma_sync", 20.0, flawed=True)
    bandit.drop_bad_arms()
    assert bandit.arms["naive"].open and bandit.arms["mma_sync"].open


def test_where_all_has_flaws_the_values_decide(bandit: Bandit) -> None:
    tell(bandit, "naive", 50.0, flawed=True)
    tell(bandit, "mma_sync", 20.0, flawed=True)
    bandit.drop_bad_arms()
    assert not bandit.arms["naive"].open and bandit.arms["mma_sync"].open


def dealt(bandit: Bandit, count: int) -> Counter[str]:
    return Counter(trial.implementation.name for trial in bandit.ask(count))


@pytest.mark.parametrize(("tries", "is_open"), [(1, True), (7, True), (9, False)])
def test_the_more_was_tried_the_less_may_an_arm_be_behind(bandit: Bandit, tries: int, is_open: bool) -> None:
    tell(bandit, "naive", 20.0, tries=tries)
    tell(bandit, "mma_sync", 10.0)
    bandit.drop_bad_arms()
    assert bandit.arms["naive"].open is is_open


def test_tries_go_where_most_is_promised_and_some_to_what_is_little_behind(bandit: Bandit) -> None:
    tell(bandit, "naive", 11.0)
    tell(bandit, "mma_sync", 10.0)
    assert dealt(bandit, 12) == {"mma_sync": 8, "naive": 4}


def test_an_arm_that_may_just_catch_up_waits_until_the_best_has_had_more_tries(bandit: Bandit) -> None:
    tell(bandit, "naive", 19.0)
    tell(bandit, "mma_sync", 10.0)
    bandit.drop_bad_arms()
    assert bandit.arms["naive"].open and dealt(bandit, 16) == {"mma_sync": 16}


@pytest.mark.parametrize(("flawed", "shares"), [(5.0, (4, 4)), (20.0, (8, 0))], ids=["faster", "slower"])
def test_what_has_flaws_gets_no_more_tries_than_the_best_that_has_none(
    bandit: Bandit, flawed: float, shares: tuple[int, int]
) -> None:
    tell(bandit, "naive", flawed, flawed=True)
    tell(bandit, "mma_sync", 10.0)
    result = dealt(bandit, 8)
    assert (result["mma_sync"], result["naive"]) == shares


def test_a_best_arm_whose_space_is_exhausted_is_still_what_others_have_to_beat(bandit: Bandit) -> None:
    tell(bandit, "naive", 11.0)
    tell(bandit, "mma_sync", 10.0)
    bandit.arms["mma_sync"].close("its space is exhausted")
    bandit.arms["naive"].sampler.expected_improvement = 0.05
    assert bandit.expected_improvement() == 0.0


def test_before_anything_works_predictions_deal_the_tries_and_each_default_is_tried() -> None:
    bandit = Bandit([at_the_start(NAIVE, lambda _: 500.0), at_the_start(MMA_SYNC, lambda _: 10.0)])
    asked = bandit.ask(8)
    defaults = [ask.implementation.default(PROBLEM, SM_80.arch) == ask.config for ask in asked]
    assert Counter(ask.implementation.name for ask in asked) == {"mma_sync": 7, "naive": 1}
    assert sum(defaults) == 2


def test_fewer_tries_than_implementations_go_to_those_that_are_predicted_best() -> None:
    bandit = Bandit([at_the_start(NAIVE, lambda _: 500.0), at_the_start(MMA_SYNC, lambda _: 10.0)])
    assert dealt(bandit, 1) == {"mma_sync": 1}


@pytest.mark.parametrize(("predicted", "more"), [(500.0, 0), (10.0, 8)], ids=["far behind", "alike"])
def test_an_arm_whose_default_fails_is_tried_on_unless_it_is_predicted_far_behind(predicted: float, more: int) -> None:
    bandit = Bandit([at_the_start(NAIVE, lambda _: predicted), at_the_start(MMA_SYNC, lambda _: 10.0)])
    tell(bandit, "naive", None, tries=1)
    tell(bandit, "mma_sync", 10.0)
    bandit.drop_bad_arms()
    assert bandit.arms["naive"].open and dealt(bandit, 8)["naive"] == more


def test_an_arm_where_nothing_works_is_closed_and_not_before_it_was_tried(bandit: Bandit) -> None:
    tell(bandit, "mma_sync", 10.0)
    arm, still_open = bandit.arms["naive"], []
    for index in range(2 * SOME):
        arm.observe(arm.space[index], None, flawed=True)
        bandit.drop_bad_arms()
        still_open.append(arm.open)
    closed = still_open.index(False)
    assert closed > 3 and not any(still_open[closed:])
    assert dealt(bandit, 4) == {"mma_sync": 4}


@pytest.mark.parametrize(
    ("value", "expected", "gain"),
    [(20.0, 0.3, 0.01), (11.0, 0.3, 0.23), (11.0, None, 0.01)],
    ids=["it stays behind", "it may pass", "it was tried too little for a model"],
)
def test_what_is_expected_of_a_bandit_is_a_better_best_of_all(
    bandit: Bandit, value: float, expected: float | None, gain: float
) -> None:
    tell(bandit, "naive", value)
    tell(bandit, "mma_sync", 10.0)
    bandit.arms["naive"].sampler.expected_improvement = expected
    bandit.arms["mma_sync"].sampler.expected_improvement = 0.01
    assert bandit.expected_improvement() == pytest.approx(gain)


def test_nothing_is_said_of_a_bandit_whose_best_arm_has_no_model(bandit: Bandit) -> None:
    tell(bandit, "naive", 20.0)
    tell(bandit, "mma_sync", 10.0)
    bandit.arms["naive"].sampler.expected_improvement = 0.3
    assert bandit.expected_improvement() is None
