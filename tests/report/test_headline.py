"""Tests of the headline: gains over an untuned call and the winner's default, then cheaper but flawed configs."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.recorded import OPERATOR, PROBLEM, SM_80, Recorded
from tuner import operators
from tuner.base.canonical_json import decode
from tuner.dispatcher.config_choice import refusal
from tuner.report import summary
from tuner.report.headline import Baseline, Flawed, Headline, _shipped_gain, headline, untuned_call
from tuner.report.winner_rows import winner_rows
from tuner.results.attempt import Evidence
from tuner.search import study
from tuner.spec.problem import from_fields
from tuner.store import record_lines
from tuner.store.locations import SHIPPED
from tuner.store.sql import Store


def spaced(text: str) -> str:
    """With ordinary spaces: a number and its unit have one that does not break."""
    return " ".join(text.split())


UNTUNED, DEFAULT = Baseline("mma_sync", 0.536, False), Baseline("wgmma", 0.15, False)


def test_the_gain_over_an_untuned_call_comes_before_that_over_the_own_default() -> None:
    sentence = spaced(Headline(Evidence.PREDICTED, UNTUNED, DEFAULT, None).gain)
    assert sentence == (
        "Predicted gain: 54 % over an untuned call, which runs mma_sync's default, 15 % over wgmma's own default."
    )


def test_an_untuned_config_without_a_value_is_not_taken_for_a_gain() -> None:
    sentence = spaced(Headline(Evidence.MEASURED, replace(UNTUNED, gain=None), DEFAULT, None).gain)
    assert sentence.startswith("Measured gain: unknown over an untuned call, which runs mma_sync's default, 15 %")


def test_an_untuned_call_that_runs_a_record_that_ships_is_said_to() -> None:
    sentence = spaced(Headline(Evidence.PREDICTED, replace(UNTUNED, shipped=True), DEFAULT, None).gain)
    assert sentence.startswith(
        "Predicted gain: 54 % over an untuned call, which runs a record of mma_sync that ships, 15 %"
    )


def test_an_untuned_call_runs_the_record_that_ships_for_its_problem() -> None:
    records = record_lines.read(SHIPPED / OPERATOR.name / "sm_80.jsonl")
    shipped = [record for record in records if refusal(record) is None]
    if not shipped:
        pytest.skip("no record that ships is of today's source: `make records` searches them again")
    problem = from_fields(OPERATOR.problem, decode(shipped[0].identity.problem))
    untuned = untuned_call(study.SearchRequest(OPERATOR, problem, SM_80))
    assert untuned is not None and untuned.record == shipped[0]


def test_a_record_that_ships_and_was_not_tried_is_compared_by_its_own_prediction() -> None:
    shipped = next(record_lines.read(SHIPPED / OPERATOR.name / "sm_80.jsonl"))
    assert shipped.prediction is not None
    better = shipped.prediction.cost / 1.25
    assert _shipped_gain(shipped, shipped, better) == pytest.approx(0.25)
    other = replace(shipped, identity=replace(shipped.identity, policy="another model"))
    assert _shipped_gain(shipped, other, better) is None


def test_a_winner_that_an_untuned_call_runs_gains_nothing() -> None:
    same = Baseline("mma_sync", 0.0, True)
    assert Headline(Evidence.PREDICTED, same, same, None).gain == "An untuned call already runs this config."


@pytest.mark.parametrize(
    ("evidence", "count", "sentence"),
    [
        (Evidence.PREDICTED, 1, "One config is predicted 5.4 % cheaper but flawed (spills 52 bytes): time it first."),
        (
            Evidence.PREDICTED,
            3,
            "3 configs are predicted up to 5.4 % cheaper but flawed (spills 52 bytes): time them first.",
        ),
        (Evidence.MEASURED, 1, "One config is measured 5.4 % faster but flawed (spills 52 bytes)."),
    ],
)
def test_what_is_cheaper_but_flawed_is_named(evidence: Evidence, count: int, sentence: str) -> None:
    first = Headline(evidence, None, None, Flawed(count, 0.054, ("spills 52 bytes",)))
    assert spaced(first.warning) == sentence


def test_the_headline_of_a_search_compares_with_what_the_dispatcher_runs_untuned(tmp_path: Path) -> None:
    default = operators.implementation(OPERATOR.name, "mma_sync").default(PROBLEM, SM_80.arch)
    evaluator = Recorded(lambda c: 3.0 if c == default else 2.0)
    with Store.open(tmp_path / "tuner.db") as store:
        outcome = study.search(
            study.SearchRequest(OPERATOR, PROBLEM, SM_80, budget=4, implementation="mma_sync"), store, evaluator
        )
    first = headline(outcome)
    assert first is not None and first.untuned == Baseline("mma_sync", pytest.approx(0.5), False)
    assert dict(winner_rows(outcome))["gain"] == first.gain
    assert summary.data(outcome)["gain"]["over_untuned"] == pytest.approx(0.5)
    assert summary.report_data(outcome).gain == first.gain
