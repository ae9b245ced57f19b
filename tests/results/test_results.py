"""Results as values and as data."""

import json
import math
from dataclasses import replace

import pytest

from tuner.evaluate.check.compare import keep_worst
from tuner.results.attempt import Attempt, Failed, Identity, Lint, Prediction, Resources, Stage
from tuner.results.codec import attempt_from, to_data, verdict_from
from tuner.results.ranking import order
from tuner.results.verdict import OutputError, Verdict

IDENTITY = Identity("op", "impl", "{}", "sm_90a", "0" * 16, "-arch=sm_90a", "nvrtc 13.4", "predicted/1")
GOOD = OutputError("o", 1e-4, 1e-3, 1e-3, 1e-2)


def test_an_attempt_survives_json_with_every_part_present_or_absent() -> None:
    whole = Attempt(
        IDENTITY,
        {"BM": 64, "swizzle": True},
        failure=Failed(Stage.LIMIT, "too large", "log"),
        resources=Resources(128, 0, 4096, 128, 2, "registers", "ab", Lint(("a branch",), ("calls",))),
        prediction=Prediction(1.5, {"tensor": 1.0}, "tensor", "predicted/1"),
        seconds=0.5,
    )
    for attempt in (whole, Attempt(IDENTITY, {})):
        assert attempt_from(json.loads(json.dumps(to_data(attempt)))) == attempt


def test_a_row_from_before_the_rules_on_machine_code_is_read_without_them() -> None:
    data = to_data(Attempt(IDENTITY, {}, resources=Resources(128, 8, 4096, 128, 2, "registers", "ab")))
    del data["resources"]["lint"]
    found = attempt_from(data).resources
    assert found is not None and found.lint is None
    assert found.flaws == ("8 bytes of registers are spilled",)


def test_what_breaks_a_rule_stands_behind_what_is_clean_however_little_it_costs() -> None:
    def tried(cost: float, lint: Lint) -> Attempt:
        used = Resources(128, 0, 4096, 128, 2, "registers", "ab", lint)
        return Attempt(IDENTITY, {}, resources=used, prediction=Prediction(cost, {}, "tensor", "predicted/1"))

    broken, clean = tried(1.0, Lint(("serialized",))), tried(2.0, Lint(unchecked=("calls",)))
    assert sorted([broken, clean], key=lambda each: order(each, each.value or 0.0)) == [clean, broken]


def test_a_failed_attempt_has_no_value() -> None:
    prediction = Prediction(1.5, {}, "tensor", "predicted/1")
    assert Attempt(IDENTITY, {}, prediction=prediction).value == 1.5
    assert Attempt(IDENTITY, {}, failure=Failed(Stage.COMPILE, "no"), prediction=prediction).value is None


def test_a_verdict_is_ok_only_when_something_was_compared_and_nothing_found() -> None:
    assert Verdict((GOOD,)).ok
    assert not Verdict(()).ok
    assert not Verdict((GOOD,), ("RACE: …",)).ok
    assert not Verdict((OutputError("o", math.nan, 0.0, 1e-3, 1e-2),)).ok


def test_a_verdict_says_in_one_line_why_it_is_not_ok() -> None:
    assert Verdict((OutputError("o", 0.5, 0.1, 1e-3, 1e-2),)).reason.startswith("o: RMSE ratio 0.5 (limit 0.001)")
    assert Verdict((GOOD,), ("RACE: …",)).reason == "RACE: …"


CANCELS = OutputError("dk", 0.99, 2e-3, 1.19, 8e-3, 5e-3, "heads=1 seq_q=70 window=1 one_hot")


def test_where_terms_cancel_the_numbers_are_relative_to_them_and_decide_as_before() -> None:
    assert CANCELS.cancels
    assert CANCELS.allowed == 5e-3
    assert math.isclose(CANCELS.error / CANCELS.allowed, CANCELS.badness()[1])
    assert not replace(CANCELS, rmse_ratio=1.2).ok
    words = "dk: RMSE ratio 0.00504 of terms that cancel (limit 0.005), largest error 0.002 (limit 0.008)"
    assert replace(CANCELS, rmse_ratio=1.2).reason == f"{words}, on {CANCELS.case}"


@pytest.mark.parametrize("limit", [9e-3, math.inf])
def test_where_no_terms_cancel_the_numbers_are_the_result_s_own(limit: float) -> None:
    error = replace(CANCELS, rmse_ratio=4e-3, limit=limit)
    assert (error.cancels, error.error, error.allowed) == (False, 4e-3, limit)


def test_a_case_is_told_by_what_the_problem_has_otherwise() -> None:
    assert CANCELS.case_on({"heads": 16, "seq_q": 70, "window": 1, "causal": True}) == "heads=1 one_hot"


def test_an_error_from_before_cases_were_kept_is_read_and_keeps_its_text() -> None:
    old = OutputError("o", 0.09, 0.1, 0.11, 0.4)
    data = to_data(Verdict((old,)))
    assert list(data["errors"][0]) == ["name", "rmse_ratio", "max_abs", "limit", "max_limit"]
    (read,) = verdict_from(data).errors
    assert (read, read.error, read.allowed, read.case) == (old, 0.09, 0.11, "")


@pytest.mark.parametrize("name", ["usual_limit", "case"])
def test_an_error_whose_case_or_usual_limit_is_of_another_type_is_refused(name: str) -> None:
    data = to_data(Verdict((CANCELS,)))
    data["errors"][0][name] = []
    with pytest.raises(TypeError, match=name):
        verdict_from(data)


def test_a_verdict_survives_json() -> None:
    verdict = Verdict((GOOD, CANCELS), ("finding",), ("T=1",))
    assert verdict_from(json.loads(json.dumps(to_data(verdict)))) == verdict


def test_a_wrong_case_is_not_hidden_by_a_right_one_with_a_larger_rmse() -> None:
    one_element = OutputError("o", 0.001, 5.0, 0.01, 1.0)
    rounding = OutputError("o", 0.009, 0.5, 0.01, 1.0)
    worst: dict[str, OutputError] = {}
    keep_worst(worst, [rounding, one_element, rounding])
    assert worst == {"o": one_element}


def test_integers_which_have_no_room_for_an_error_are_compared_too() -> None:
    right, wrong = OutputError("index", 0.0, 0.0, 0.0, 0.0), OutputError("index", 0.5, 1.0, 0.0, 0.0)
    worst: dict[str, OutputError] = {}
    keep_worst(worst, [wrong, right])
    assert worst == {"index": wrong}
