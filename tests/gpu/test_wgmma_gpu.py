"""flash_attention/wgmma on a Hopper device: first what the emulator cannot know, panel by panel, then whole kernels.

To be run first where a device has sm_90a; a failure names the columns that are wrong, and so the panel's width.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from test_flash_attention_wgmma import CASES
from wgmma_questions import QUESTIONS, Question, equal_weights, one_column, wrong_columns, wrong_lse

from tuner import gpu, operators
from tuner.arrays import FRAMEWORKS
from tuner.binding import bind
from tuner.cubin import Cubin
from tuner.device import Code
from tuner.dtype import DType
from tuner.gpu_device import Physical
from tuner.nvrtc import Options, compile
from tuner.operator import to_fields
from tuner.operators.flash_attention.operator import Problem
from tuner.policy import MeasurementPolicy
from tuner.render import render
from tuner.trial import Task
from tuner.worker import Worker

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not gpu.available() or not gpu.current_gpu().arch.has_wgmma, reason="needs a device of sm_90a"),
]

OPERATOR = operators.load("flash_attention")
WGMMA = operators.implementation("flash_attention", "wgmma")
by_question = pytest.mark.parametrize("question", QUESTIONS, ids=lambda each: each.name)


@cache
def compiled(problem: Any, config: Any) -> Cubin:
    cubin = compile(render(OPERATOR, WGMMA, problem, config), Options("sm_90a"))
    assert isinstance(cubin, Cubin), cubin
    return cubin


def answered(question: Question, arrays: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """(o, lse) of one launch on the device."""
    import cupy

    device = {name: cupy.asarray(arrays[name]) for name in "qkv"}
    facts = {name: FRAMEWORKS["cupy"].facts(name, device[name]) for name in "qkv"}
    binding = bind(OPERATOR, OPERATOR.call(*device.values()), facts)
    plan, cubin = WGMMA.plan(question.problem, question.config), compiled(question.problem, question.config)
    call = gpu.Kernel(OPERATOR, binding, plan, cubin, FRAMEWORKS["cupy"], 0)
    o, lse = call(device, {"softmax_scale": arrays["softmax_scale"]})
    return o.get(), lse.get()


@by_question
def test_values_are_found_in_every_column_of_every_panel(question: Question) -> None:
    """MN-major strides, N that ends inside a panel, swizzles of 32 and 64 bytes, stores that cut columns off."""
    arrays = equal_weights(question.problem)
    o, _ = answered(question, arrays)
    assert wrong_columns(arrays, o) == []


@pytest.mark.parametrize("D", sorted({each.head_dim for each in QUESTIONS}))
def test_scores_are_found_in_every_column_of_every_panel(D: int) -> None:
    """K-major operands that start inside a swizzle's row; boxes wider than the tensor."""
    question = next(each for each in QUESTIONS if each.head_dim == D)
    given = {column: one_column(question.problem, column) for column in range(D)}
    wrong = [c for c, arrays in given.items() if wrong_lse(arrays, c, answered(question, arrays)[1])]
    assert wrong == []


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker(Physical()) as started:
        yield started


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("D", CASES)
def test_what_the_emulator_verified_is_right_on_the_device(worker: Worker, D: int, causal: bool) -> None:
    """Every edge case, with outputs poisoned and guarded, and the same bits twice."""
    problem, config = Problem(D, DType.BF16, causal, batch=1, heads=2, seq_q=300), CASES[D]
    code = Code("flash_attention", "wgmma", to_fields(problem), to_fields(config), compiled(problem, config).image)
    found = worker.time(Task(code, MeasurementPolicy(limit_s=5.0), timed=False))
    assert found.fell is None, found.fell
    assert found.verdict is not None and found.verdict.ok, found.verdict
