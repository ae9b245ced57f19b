"""The largest scores for which attention on tensor cores is right, as its page states them."""

from typing import Any

import numpy as np
import pytest

from tuner import operators
from tuner.arch import ARCHES
from tuner.backends import emulator
from tuner.backends.emulator import Mode
from tuner.operators.flash_attention.operator import Problem
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance

OPERATOR = operators.load("flash_attention")
LIMITS = {DType.FP16: 1.8e8, DType.BF16: 1.4e9}


def attended(implementation: str, dtype: DType, largest: float) -> tuple[Any, Any]:
    """o, and the o that is right: all keys are equal, and scores rise by row to `largest`."""
    problem = Problem(head_dim=16, dtype=dtype, batch=1, heads=1, seq_q=128)
    arrays = OPERATOR.inputs(problem, np.random.default_rng(0), "normal")
    q, k = np.zeros_like(arrays["q"]), np.zeros_like(arrays["k"])
    q[0, :, 0, 0] = np.linspace(1, 2, problem.seq_q)
    k[..., 0] = 1
    arrays |= {"q": q, "k": k, "softmax_scale": largest / 2}
    kernel = operators.implementation("flash_attention", implementation)
    instance = Instance.default(OPERATOR, kernel, problem, ARCHES["sm_80"])
    outputs, _ = emulator.run(instance, arrays, Mode())
    return outputs["o"].astype(np.float64)[0, :, 0], arrays["v"].astype(np.float64)[0, :, 0].mean(0)


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
def test_rows_are_right_up_to_the_stated_limit_and_become_nan_far_beyond_it(dtype: DType) -> None:
    o, right = attended("mma_sync", dtype, LIMITS[dtype])
    assert np.abs(o - right).max() < 0.01
    o, _ = attended("mma_sync", dtype, 1000 * LIMITS[dtype])
    assert np.isnan(o).any()


def test_naive_has_no_such_limit() -> None:
    o, right = attended("naive", DType.BF16, 1000 * LIMITS[DType.BF16])
    assert np.abs(o - right).max() < 0.01
