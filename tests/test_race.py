"""Implementations that race each other: which may go on."""

from typing import Any

import pytest
from recorded import OPERATOR, PROBLEM, SM_80

from tuner import operators
from tuner.race import Lane, Method, Race, lane

NAIVE, MMA_SYNC = (operators.implementation(OPERATOR.name, name) for name in ("naive", "mma_sync"))
METHOD = Method("gp", seed=0, tries=100)
ENOUGH = 8  # tries of a lane, after which it may be closed


@pytest.fixture
def race() -> Race:
    return Race([at_the_start(NAIVE), at_the_start(MMA_SYNC)])


def at_the_start(implementation: Any) -> Lane:
    arch = SM_80.arch
    return lane(
        implementation, implementation.space(PROBLEM, arch), implementation.default(PROBLEM, arch), None, METHOD
    )


def tell(race: Race, name: str, value: float, *, flawed: bool = False) -> None:
    """As many results of a lane as it needs to be judged, all of this value."""
    for index in range(ENOUGH):
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
