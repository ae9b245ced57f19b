"""Tests of the first screen of a report: its answers, and that it claims no more than is known."""

from dataclasses import replace
from functools import partial

import pytest

from tests.report.report_factory import report_data
from tuner.report import ReportData
from tuner.report.brief import brief
from tuner.report.data import UNDECLARED
from tuner.report.section import sections
from tuner.results.attempt import Attempt, Measurement


def told(data: ReportData) -> dict[str, str]:
    (section,) = sections([data])
    return {answer.question: answer.text for answer in brief(section)}


def raced(data: ReportData) -> ReportData:
    """The same search after a final race."""
    assert data.record is not None
    settled = Measurement(50.0, 49.8, 50.3, 40, regret_bound=0.012, flip_probability=0.04)
    return replace(data, record=replace(data.record, measurement=settled))


def test_a_prediction_is_said_to_be_one_and_how_to_time_it() -> None:
    result = told(report_data(40))
    assert list(result) == ["What won", "By how much", "How sure", "Why", "What next"]
    assert result["How sure"].endswith("That it is the best is a prediction: no device has timed it.")
    assert "(predicted)" in result["By how much"]
    assert "time" not in result["By how much"]
    assert "such as --gpu 'H100'" in result["What next"]


def test_a_final_race_says_how_sure_its_winner_is() -> None:
    result = told(raced(report_data(40, measured=True)))
    assert "at most 1.2\u00a0% slower than the fastest contender" in result["How sure"]
    assert "would name another in 4.0\u00a0% of cases" in result["How sure"]
    assert "time" in result["By how much"]
    assert result["What won"].startswith("mma_sync in 50.00 µs, ")
    assert "prediction" not in result["How sure"]


def test_a_budget_that_is_spent_says_how_to_look_further() -> None:
    data = report_data(40, measured=True)
    assert "--budget 80 looks further" in told(data)["What next"]
    assert "further" not in told(replace(data, search=replace(data.search, budget=128)))["What next"]
    whole = replace(data, spaces=(replace(data.spaces[0], valid=40),))
    assert "further" not in told(whole)["What next"]


def test_a_winner_is_told_by_what_is_not_its_default() -> None:
    data = report_data(40)
    assert data.record is not None and data.default is not None
    changed = [name for name, value in data.record.config.items() if data.default.config[name] != value]
    assert f"mma_sync, {len(changed)} of 8 parameters not the default: {changed[0]}=" in told(data)["What won"]


def test_a_winner_of_many_changes_names_the_first_five() -> None:
    data = report_data(40)
    assert data.default is not None
    other = replace(data.default, config=dict.fromkeys(data.default.config, "other"))
    text = told(replace(data, default=other))["What won"]
    assert text.startswith("mma_sync, 8 of 8 parameters not the default: ") and text.endswith(" ….")
    assert text.count("=") == 5


def test_a_winner_that_machine_code_alone_ranks_is_said_to_be() -> None:
    assert "machine code alone" not in told(report_data(40))["How sure"]
    assert "by machine code alone" in told(replace(report_data(40), work=(UNDECLARED,)))["How sure"]


def test_configs_that_a_prediction_hardly_tells_apart_are_counted() -> None:
    data = report_data(40)
    least = min(attempt.prediction.cost for attempt in data.attempts if attempt.prediction)
    alike = replace(data, attempts=tuple(map(partial(nearer, least), data.attempts)))
    (section,) = sections([alike])
    others = [entry.relative for entry in section.entries[1:]]
    near = sum(other <= 1.01 for other in others)
    assert 1 < near < len(others)
    told_of = f" {near} of {len(others)} others are within 1.0\u00a0% of the winner."
    assert told(alike)["By how much"].endswith(told_of)
    assert "within" not in told(report_data(40, measured=True))["By how much"]


def nearer(least: float, attempt: Attempt) -> Attempt:
    """A twentieth as far from the least cost."""
    if attempt.prediction is None:
        return attempt
    cost = least + (attempt.prediction.cost - least) / 20
    return replace(attempt, prediction=replace(attempt.prediction, cost=cost))


@pytest.mark.parametrize(
    ("margin", "text"), [(0.0, "the runner-up ties"), (0.031, "the runner-up costs 3.1\u00a0% more")]
)
def test_a_margin_is_told_beside_that_of_the_default(margin: float, text: str) -> None:
    data = report_data(40)
    assert data.record is not None
    result = told(replace(data, record=replace(data.record, margin=margin)))
    assert result["By how much"] == f"The default config costs 9.6\u00a0% more, {text} (predicted)."
    assert "the default config differs by shared memory +9.4\u00a0%, " in result["Why"]


def test_without_anything_to_compare_with_only_what_binds_is_told() -> None:
    assert told(report_data(1))["Why"] == "It is bound by tensor (predicted)."


@pytest.mark.parametrize("n", [0, 1])
def test_what_is_unknown_is_left_out(n: int) -> None:
    result = told(report_data(n))
    assert "By how much" not in result
    assert result.get("What won", "mma_sync, its default config.") == "mma_sync, its default config."


def test_a_cheaper_config_that_only_ties_says_why_it_does_not_lead() -> None:
    data, first = report_data(12), report_data(12).attempts[0]
    assert data.record is not None and first.prediction is not None and first.resources is not None
    cost, machine_code = 0.9995 * first.prediction.cost, replace(first.resources, sass_digest="other")
    cheaper = replace(first, config={**first.config, "BT": 32}, resources=machine_code)
    cheaper = replace(cheaper, prediction=replace(first.prediction, cost=cost))
    result = replace(data, attempts=[cheaper, first], record=replace(data.record, config=first.config), verdicts={})
    (section,) = sections([result])
    assert [finalist.entry.attempt for finalist in section.finalists] == [first, cheaper]
    assert "so little decides nothing" in section.finalists[1].remarks[0]
