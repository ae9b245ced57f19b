"""Implementations that race each other: which may go on."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.recorded import OPERATOR, PROBLEM, SM_80
from tuner import operators
from tuner.search.lanes import Lane, Method, Race, lane
from tuner.spec.instance import Instance

NAIVE, MMA_SYNC = (operators.implementation(OPERATOR.name, name) for name in ("naive", "mma_sync"))
METHOD = Method("gp", seed=0, tries=100)
ENOUGH = 8  # tries after which a lane where nothing works is closed


@pytest.fixture
def race() -> Race:
    return Race([at_the_start(NAIVE), at_the_start(MMA_SYNC)])


def at_the_start(implementation: Any, prior: Callable[[Instance], float] | None = None) -> Lane:
    arch = SM_80.arch
    default = Instance.default(OPERATOR, implementation, PROBLEM, arch)
    return lane(default, implementation.space(PROBLEM, arch), prior, METHOD)


def tell(race: Race, name: str, value: float | None, *, flawed: bool = False, tries: int = ENOUGH) -> None:
    """Results of a lane, all of this value."""
    for index in range(tries):
        race.lanes[name].tell(race.lanes[name].space[index], value, flawed=flawed)


def test_a_lane_that_is_far_behind_gets_no_more_tries(race: Race) -> None:
    tell(race, "naive", 50.0)
    tell(race, "mma_sync", 20.0)
    race.judge()
    assert {each.implementation.name for each in race.ask(4)} == {"mma_sync"}
    assert "over 2 × the best of all" in race.lanes["naive"].closed_because


def test_what_has_flaws_puts_nothing_behind_that_has_none(race: Race) -> None:
    tell(race, "naive", 50.0)
    tell(race, "mma_sync", 20.0, flawed=True)
    race.judge()
    assert race.lanes["naive"].open and race.lanes["mma_sync"].open


def test_where_all_has_flaws_the_values_decide(race: Race) -> None:
    tell(race, "naive", 50.0, flawed=True)
    tell(race, "mma_sync", 20.0, flawed=True)
    race.judge()
    assert not race.lanes["naive"].open and race.lanes["mma_sync"].open


def dealt(race: Race, count: int) -> Counter[str]:
    return Counter(each.implementation.name for each in race.ask(count))


@pytest.mark.parametrize(("tries", "is_open"), [(1, True), (7, True), (9, False)])
def test_the_more_was_tried_the_less_may_a_lane_be_behind(race: Race, tries: int, is_open: bool) -> None:
    tell(race, "naive", 20.0, tries=tries)
    tell(race, "mma_sync", 10.0)
    race.judge()
    assert race.lanes["naive"].open is is_open


def test_tries_go_where_most_is_promised_and_some_to_what_is_little_behind(race: Race) -> None:
    tell(race, "naive", 11.0)
    tell(race, "mma_sync", 10.0)
    assert dealt(race, 12) == {"mma_sync": 8, "naive": 4}


def test_a_lane_that_may_just_catch_up_waits_until_the_best_has_had_more_tries(race: Race) -> None:
    tell(race, "naive", 19.0)
    tell(race, "mma_sync", 10.0)
    race.judge()
    assert race.lanes["naive"].open and dealt(race, 16) == {"mma_sync": 16}


@pytest.mark.parametrize(("flawed", "shares"), [(5.0, (4, 4)), (20.0, (8, 0))], ids=["faster", "slower"])
def test_what_has_flaws_gets_no_more_tries_than_the_best_that_has_none(
    race: Race, flawed: float, shares: tuple[int, int]
) -> None:
    tell(race, "naive", flawed, flawed=True)
    tell(race, "mma_sync", 10.0)
    found = dealt(race, 8)
    assert (found["mma_sync"], found["naive"]) == shares


def test_a_best_lane_whose_space_is_exhausted_is_still_what_others_have_to_beat(race: Race) -> None:
    tell(race, "naive", 11.0)
    tell(race, "mma_sync", 10.0)
    race.lanes["mma_sync"].close("its space is exhausted")
    race.lanes["naive"].sampler.expected_improvement = 0.05
    assert race.expected_improvement() == 0.0


def test_before_anything_works_predictions_deal_the_tries_and_each_default_is_tried() -> None:
    race = Race([at_the_start(NAIVE, lambda _: 500.0), at_the_start(MMA_SYNC, lambda _: 10.0)])
    asked = race.ask(8)
    defaults = [each.implementation.default(PROBLEM, SM_80.arch) == each.config for each in asked]
    assert Counter(each.implementation.name for each in asked) == {"mma_sync": 7, "naive": 1}
    assert sum(defaults) == 2


def test_fewer_tries_than_implementations_go_to_those_that_are_predicted_best() -> None:
    race = Race([at_the_start(NAIVE, lambda _: 500.0), at_the_start(MMA_SYNC, lambda _: 10.0)])
    assert dealt(race, 1) == {"mma_sync": 1}


@pytest.mark.parametrize(("predicted", "more"), [(500.0, 0), (10.0, 8)], ids=["far behind", "alike"])
def test_a_lane_whose_default_fails_is_tried_on_unless_it_is_predicted_far_behind(predicted: float, more: int) -> None:
    race = Race([at_the_start(NAIVE, lambda _: predicted), at_the_start(MMA_SYNC, lambda _: 10.0)])
    tell(race, "naive", None, tries=1)
    tell(race, "mma_sync", 10.0)
    race.judge()
    assert race.lanes["naive"].open and dealt(race, 8)["naive"] == more


def test_a_lane_where_nothing_works_is_closed_and_not_before_it_was_tried(race: Race) -> None:
    tell(race, "mma_sync", 10.0)
    tell(race, "naive", None, tries=ENOUGH - 1)
    race.judge()
    assert race.lanes["naive"].open
    race.lanes["naive"].tell(race.lanes["naive"].space[ENOUGH], None, flawed=True)
    race.judge()
    assert not race.lanes["naive"].open


@pytest.mark.parametrize(
    ("value", "expected", "gain"),
    [(20.0, 0.3, 0.01), (11.0, 0.3, 0.23), (11.0, None, 0.01)],
    ids=["it stays behind", "it may pass", "it was tried too little for a model"],
)
def test_what_is_expected_of_a_race_is_a_better_best_of_all(
    race: Race, value: float, expected: float | None, gain: float
) -> None:
    tell(race, "naive", value)
    tell(race, "mma_sync", 10.0)
    race.lanes["naive"].sampler.expected_improvement = expected
    race.lanes["mma_sync"].sampler.expected_improvement = 0.01
    assert race.expected_improvement() == pytest.approx(gain)


def test_nothing_is_said_of_a_race_whose_best_lane_has_no_model(race: Race) -> None:
    tell(race, "naive", 20.0)
    tell(race, "mma_sync", 10.0)
    race.lanes["naive"].sampler.expected_improvement = 0.3
    assert race.expected_improvement() is None
