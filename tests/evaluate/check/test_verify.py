"""Judging outputs."""

import numpy as np
import pytest

from tuner import operators
from tuner.evaluate.check.compare import Expected, compare, distance, errors
from tuner.spec.operator import Tolerance

EXACT = np.linspace(-2.0, 2.0, 64)


def test_an_equal_output_has_no_error() -> None:
    assert distance(EXACT.astype(np.float32), EXACT.astype(np.float32)) == (0.0, 0.0)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_never_passes(wrong: float) -> None:
    actual = EXACT.copy()
    actual[3] = wrong
    assert not compare("o", actual, EXACT, EXACT, Tolerance(1.0)).ok
    assert distance(actual, EXACT) == (np.inf, np.inf)


def test_infinities_must_be_where_the_reference_has_them() -> None:
    exact = np.array([-np.inf, 1.0])
    assert compare("lse", np.array([-np.inf, 1.0]), exact, exact, Tolerance(1e-6)).ok
    assert not compare("lse", np.array([0.0, 1.0]), exact, exact, Tolerance(1e-6)).ok
    assert not compare("lse", np.array([np.inf, 1.0]), exact, exact, Tolerance(1e-6)).ok


def test_the_limit_grows_with_what_rounding_alone_costs() -> None:
    rounded = EXACT + 1e-2
    off = EXACT + 1.1e-2
    assert compare("o", off, EXACT, rounded, Tolerance(1e-6)).ok
    assert not compare("o", EXACT + 1.3e-2, EXACT, rounded, Tolerance(1e-6)).ok


def test_one_large_error_among_many_small_ones_is_seen() -> None:
    exact = np.ones(100_000)
    actual = exact.copy()
    actual[7] = 1.5
    error = compare("o", actual, exact, exact, Tolerance(1e-2))
    assert error.rmse_ratio < error.limit
    assert not error.ok


def test_a_wrong_shape_is_wrong() -> None:
    assert distance(EXACT[:-1], EXACT) == (np.inf, np.inf)


def test_an_all_zero_reference_is_compared_absolutely() -> None:
    zero = np.zeros(4)
    assert compare("o", zero, zero, zero, Tolerance(1e-3)).ok
    assert not compare("o", zero + 1, zero, zero, Tolerance(1e-3)).ok
    assert distance(zero + 1, zero) == (1.0, 1.0)


def test_what_sums_leave_of_terms_that_cancel_is_no_error_where_all_is_zero() -> None:
    zero, left = np.zeros(4), np.full(4, 1.5e-5)
    assert compare("dq", left, zero, zero, Tolerance(5e-3)).ok
    assert not compare("dq", left, zero, zero, Tolerance(1e-5)).ok
    assert not compare("dq", 100 * left, zero, zero, Tolerance(5e-3)).ok


def test_what_is_left_of_zeros_is_judged_alike_in_few_elements_and_in_many() -> None:
    for count in (4, 1 << 20):
        zero, left = np.zeros(count), np.full(count, 3e-6)
        assert compare("dk", left, zero, zero, Tolerance(1e-5)).ok
        assert not compare("dk", 4 * left, zero, zero, Tolerance(1e-5)).ok


def test_an_output_that_the_problem_does_not_have_is_not_listed() -> None:
    operator = operators.load("kda")
    problem = operator.tails(operator.problem())[0]
    arrays = operator.inputs(problem, np.random.default_rng(0), "weak_gate")
    assert [error.name for error in errors(operator, problem, arrays, operator.reference(problem, arrays))] == ["o"]


def test_the_reference_has_no_error_and_its_rounded_results_have_some() -> None:
    operator = operators.load("kda")
    problem = operator.tails(operator.problem())[0]
    arrays = operator.inputs(problem, np.random.default_rng(0), "weak_gate")
    (right,) = errors(operator, problem, arrays, operator.reference(problem, arrays))
    (rounded,) = errors(operator, problem, arrays, operator.rounded(problem, arrays))
    assert right.rmse_ratio == 0.0 < rounded.rmse_ratio


def test_elements_of_an_output_that_should_have_none_are_wrong() -> None:
    none = {"o": np.zeros(0)}
    (error,) = Expected(none, none, {"o": Tolerance(1.0)}).errors({"o": EXACT})
    assert not error.ok
