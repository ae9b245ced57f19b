"""Judging outputs."""

import numpy as np
import pytest

from tuner import operators
from tuner.evaluate.check.compare import Expected, compare, distance, errors
from tuner.evaluate.check.edges import edges
from tuner.evaluate.check.job import drawn
from tuner.spec.dtype import DType
from tuner.spec.problem import canonical
from tuner.spec.tolerance import Tolerance

DTYPES = [DType.BF16, DType.FP16, DType.FP32]

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


def test_what_is_wrong_where_terms_cancel_is_as_wrong_as_before() -> None:
    terms = np.random.default_rng(0).normal(size=(2, 64))
    exact = 1e-3 * terms[0]
    rounded = exact + 2e-3 * terms[1]  # as bf16 terms of size 1 leave it
    right = compare("dq", rounded, exact, rounded, Tolerance(5e-3), "T=1")
    assert right.ok
    assert right.cancels
    assert right.error < right.allowed == 5e-3 < 1 < right.limit
    for wrong in (exact + 2.5e-3 * terms[1], rounded + 2e-2 * (np.arange(64) == 7), 8 * rounded):
        error = compare("dq", wrong, exact, rounded, Tolerance(5e-3), "T=1")
        assert not error.ok
        assert error.reason.endswith(", on T=1")


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_a_result_to_its_dtype_is_no_cancelling(dtype: DType) -> None:
    exact = np.random.default_rng(0).normal(size=4096)
    rounded = exact.astype(dtype.numpy)
    error = compare("o", rounded, exact, rounded, Tolerance(1e-9))
    assert 0.5 < error.limit / error.usual_limit < 1.5
    assert (error.error, error.allowed) == (error.rmse_ratio, error.limit)


@pytest.mark.parametrize("name", operators.names())
def test_an_operator_s_errors_name_their_case_and_stay_small_where_rounding_alone_is_large(name: str) -> None:
    operator = operators.load(name)
    for edge in edges(operator, operator.problem()):
        _, expected = drawn(name, canonical(edge.problem), edge.kind)
        for error in expected.errors(expected.rounded):
            assert error.case == edge.name(operator)
            assert error.error <= error.allowed < 1 / 32


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
