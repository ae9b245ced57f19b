"""Tests that the worst error of each output is kept."""

from tuner.evaluate.check.compare import keep_worst
from tuner.results.verdict import OutputError


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
