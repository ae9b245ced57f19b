"""Tests of drawing large inputs: tensors in parts, and the forward pass of a large backward problem."""

import os

import ml_dtypes
import numpy as np
import pytest

from tuner import operators
from tuner.operators.flash_attention_backward import cases
from tuner.spec.draw import normal, random_tensor

LARGE = (3, 1 << 14, 96)  # more elements than are drawn at once, and no multiple of a part


def test_a_small_tensor_is_what_the_generator_itself_gives() -> None:
    expected = np.random.default_rng(3).standard_normal((5, 8)).astype(np.float16)
    assert np.array_equal(normal(np.random.default_rng(3), (5, 8), np.float16), expected)


def test_a_large_tensor_is_normal_and_no_part_is_another() -> None:
    result = normal(np.random.default_rng(3), LARGE, ml_dtypes.bfloat16).astype(np.float32)
    assert result.shape == LARGE
    assert abs(result.mean()) < 0.005
    assert result.std() == pytest.approx(1, abs=0.005)
    rows = result.reshape(-1, LARGE[-1])
    assert len(np.unique(rows[:, :4], axis=0)) > 0.99 * len(rows)


def test_a_large_tensor_is_the_same_on_one_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    side_by_side = normal(np.random.default_rng(3), LARGE, np.float32)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert np.array_equal(normal(np.random.default_rng(3), LARGE, np.float32), side_by_side)


def test_rows_are_made_whole() -> None:
    result = random_tensor(
        np.random.default_rng(3), LARGE, np.float32, lambda _, part: np.broadcast_to(np.arange(96.0), part)
    )
    assert np.array_equal(result, np.broadcast_to(np.arange(96, dtype=np.float32), LARGE))


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_expected_o_and_lse_follow_the_number_of_attended_keys(causal: bool) -> None:
    operator = operators.load("flash_attention_backward")
    problem = operator.problem(head_dim=64, causal=causal, batch=1, heads=2, seq_q=512)
    exact = operator.inputs(problem, np.random.default_rng(0), "normal")
    attended = np.arange(1, 513) if causal else np.full(512, 512)
    expected = cases._expected(problem, exact, np.random.default_rng(1), attended)
    for queries in (slice(64, 128), slice(384, 512)):  # the first queries attend too few keys for an average
        error = expected["lse"][..., queries] - exact["lse"][..., queries]
        assert abs(error.mean()) < 0.05 and error.std() < 0.2
        spread, exact_spread = (array.astype(np.float64)[:, queries].std() for array in (expected["o"], exact["o"]))
        assert spread == pytest.approx(exact_spread, rel=0.1)


def test_gradients_of_a_large_problem_are_drawn_without_its_forward_pass() -> None:
    """64 heads of 4096 queries: minutes of products in float64."""
    operator = operators.load("flash_attention_backward")
    problem = operator.problem(head_dim=8, causal=True, batch=4, heads=16, seq_q=4096)
    arrays = operator.inputs(problem, np.random.default_rng(0), "normal")
    assert arrays["lse"].shape == (4, 16, 4096)
    assert all(np.isfinite(arrays[name].astype(np.float32)).all() for name in ("o", "lse", "dout"))
