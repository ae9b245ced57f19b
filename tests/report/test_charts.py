"""Geometry of a report's figures."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.report.report_factory import CHOICES, report_data
from tuner.report import axes, charts
from tuner.report.data import ReportData
from tuner.report.standing import Entry, standing


def ranked(data: ReportData) -> tuple[Entry, ...]:
    return standing(data.attempts, data.evidence, data.record)


def points(path: str) -> int:
    return path.count("M")


def test_each_attempt_is_a_dot_a_triangle_or_a_cross() -> None:
    data = report_data(200)
    chart = charts.convergence(data.attempts, ranked(data), data.evidence)
    assert points(chart.dots) + points(chart.above) == len(ranked(data))
    assert points(chart.crosses) == sum(attempt.failure is not None for attempt in data.attempts)


def test_a_value_far_beyond_the_winner_is_drawn_at_the_top_edge() -> None:
    data = report_data(30)
    entries = ranked(data)
    slow = replace(entries[-1], value=50 * entries[0].value)
    chart = charts.convergence(data.attempts, (*entries[:-1], slow), data.evidence)
    assert chart.n_above == 1


def test_all_marks_lie_inside_the_drawing() -> None:
    data = report_data(200)
    chart = charts.convergence(data.attempts, ranked(data), data.evidence)
    marks = chart.dots + chart.crosses + chart.above
    at = [(float(x), float(y)) for x, y in re.findall(r"M([-\d.]+) ([-\d.]+)", marks)]
    assert all(0 <= x <= charts.WIDTH and 0 <= y <= chart.frame.height for x, y in at)


def test_predicted_costs_have_ticks_in_multiples_and_times_in_numbers() -> None:
    for measured, pattern in ((False, r"[\d.]+×"), (True, r"[\d.]+")):
        data = report_data(60, measured=measured)
        chart = charts.convergence(data.attempts, ranked(data), data.evidence)
        assert chart.y_ticks
        assert all(re.fullmatch(pattern, tick.label) for tick in chart.y_ticks)


def test_parallel_coordinates_have_an_axis_for_each_parameter_that_varies() -> None:
    chart = charts.parallel(ranked(report_data(200)), report_data(1).evidence)
    assert chart
    assert [axis.label for axis in chart.axes] == [*CHOICES, "relative cost"]


def test_a_single_parameter_is_still_a_figure() -> None:
    data = report_data(60)
    attempts = [replace(a, config={"BT": a.config["BT"], "n": 1}) for a in data.attempts if a.failure is None]
    chart = charts.parallel(standing(attempts, data.evidence, None), data.evidence)
    assert chart
    assert [axis.label for axis in chart.axes] == ["BT", "relative cost"]


def test_nothing_varies_in_a_search_of_one() -> None:
    data = report_data(1)
    assert charts.parallel(ranked(data), data.evidence) is None


def test_many_lines_are_sampled_but_the_best_tenth_never() -> None:
    data = report_data(570)
    entries = ranked(data)
    chart = charts.parallel(entries, data.evidence)
    assert chart
    assert points(chart.best) == chart.n_best == -(-len(entries) // 10)
    assert points(chart.rest) <= charts.LINES


def test_a_parameter_that_some_configs_lack_has_a_place_for_none() -> None:
    data = report_data(20)
    first = data.attempts[0]
    other = replace(first, config={"BT": 128})
    chart = charts.parallel(standing([*data.attempts, other], data.evidence, None), data.evidence)
    assert chart
    assert [axis.label for axis in chart.axes if "none" in [tick.label for tick in axis.ticks]] == list(CHOICES)[1:]


def test_profiles_are_shares_of_the_winners_cost() -> None:
    entries = ranked(report_data(40))
    profile = charts.profile(entries[:3])
    winner = entries[0].attempt.prediction
    assert profile
    assert winner
    assert profile.rows[0][profile.terms.index("tensor")] == pytest.approx(float(winner.terms["tensor"]) / winner.cost)


def test_terms_of_a_model_that_is_no_more_have_no_meaning_to_tell() -> None:
    profile = charts.Profile(terms=("L2", "what nobody knows"), rows=((0.5, 0.5),), largest=0.5)
    assert profile.meanings == {"L2": "bytes between L2 and the SMs"}


@pytest.mark.parametrize("values", [[1.0, 1.0], [1.0, 1.004], [3.0, 4.1], [0.2, 9.0], [250.0, 900.0], [0.0, 1.0], []])
def test_an_axis_has_between_two_and_ten_ticks_apart_from_each_other(values: list[float]) -> None:
    axis = axes.value_axis(values, 200.0, 20.0)
    places = sorted(tick.at for tick in axis.ticks)
    assert 2 <= len(places) <= 10
    assert all(after - before >= 20 for before, after in pairwise(places))


@pytest.mark.parametrize("n", [1, 2, 8, 9, 37, 128, 500, 100_000])
def test_tries_are_numbered_from_one_in_round_steps(n: int) -> None:
    ticks = axes.whole_ticks(n)
    assert ticks[0] == 1
    assert ticks[-1] <= n
    assert len(ticks) <= 10
