"""Tests of verdicts: when one is ok, and its text."""

import math
from dataclasses import replace

import pytest

from tuner.results.verdict import OutputError, Verdict

GOOD = OutputError("o", 1e-4, 1e-3, 1e-3, 1e-2)
CANCELS = OutputError("dk", 0.99, 2e-3, 1.19, 8e-3, 5e-3, "heads=1 seq_q=70 window=1 one_hot")


def test_a_verdict_is_ok_only_when_something_was_compared_and_nothing_found() -> None:
    assert Verdict((GOOD,)).ok
    assert not Verdict(()).ok
    assert not Verdict((GOOD,), ("RACE: …",)).ok
    assert not Verdict((OutputError("o", math.nan, 0.0, 1e-3, 1e-2),)).ok


def test_a_verdict_says_in_one_line_why_it_is_not_ok() -> None:
    assert Verdict((OutputError("o", 0.5, 0.1, 1e-3, 1e-2),)).reason.startswith("o: RMSE ratio 0.5 (limit 0.001)")
    assert Verdict((GOOD,), ("RACE: …",)).reason == "RACE: …"


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
