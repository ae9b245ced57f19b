"""wgmma on a Hopper device: first what the emulator cannot know, panel by panel, then whole kernels, forward and back.

To be run first where a device has sm_90a; a failure names the columns that are wrong, and so the panel's width.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.gpu import driver
from tests.operators.flash_attention.test_wgmma import CASES
from tests.operators.flash_attention.test_wgmma_packed import CASES as PACKED_CASES
from tests.operators.flash_attention.test_wgmma_packed import PACKED
from tests.operators.flash_attention.wgmma_questions import (
    QUESTIONS,
    Question,
    equal_weights,
    one_column,
    wrong_columns,
    wrong_lse,
)
from tests.operators.flash_attention_backward.test_wgmma import CASES as BACKWARD_CASES
from tests.operators.flash_attention_backward.test_wgmma_optional import CONFIG as PACKED_CONFIG
from tests.operators.flash_attention_backward.test_wgmma_optional import PACKED as PACKED_BACKWARD
from tests.operators.flash_attention_backward.wgmma_backward_questions import ASKED, uniform
from tests.operators.flash_attention_backward.wgmma_backward_questions import QUESTIONS as BACKWARD_QUESTIONS
from tests.operators.flash_attention_backward.wgmma_backward_questions import Question as BackwardQuestion
from tests.operators.flash_attention_backward.wgmma_backward_questions import wrong_columns as wrong_gradients
from tuner import operators
from tuner.backends import gpu
from tuner.base.cache import Cache
from tuner.bench.peers import to_torch
from tuner.compiler.cubin import Cubin
from tuner.compiler.nvrtc import Options, compile
from tuner.compiler.render import render
from tuner.dispatcher import on_gpu
from tuner.dispatcher.arrays import FRAMEWORKS
from tuner.dispatcher.binding import bind
from tuner.evaluate.measure.device import Code
from tuner.evaluate.measure.messages import TimingRequest
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.evaluate.measure.worker import Worker
from tuner.operators.flash_attention.operator import Problem
from tuner.operators.flash_attention_backward.problem import Problem as Backward
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance, InstanceFields
from tuner.spec.problem import to_fields

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not gpu.available() or not gpu.current_gpu().arch.has_wgmma, reason="needs a device of sm_90a"),
]

by_question = pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.name)
by_backward_question = pytest.mark.parametrize("question", BACKWARD_QUESTIONS, ids=lambda question: question.name)


@cache
def compiled(operator: str, problem: Any, config: Any) -> Cubin:
    source = render(Instance(operators.load(operator), operators.implementation(operator, "wgmma"), problem, config))
    cubin = compile(source, Options("sm_90a"), Cache.of("cubin"))  # another run of these tests finds it there
    assert isinstance(cubin, Cubin), cubin
    return cubin


def loaded(
    name: str, question: Question | BackwardQuestion, device: Mapping[str, Any], framework: str
) -> on_gpu.GpuKernel:
    """The kernel of a question for the arrays of a framework."""
    operator = operators.load(name)
    facts = {key: FRAMEWORKS[framework].facts(key, array) for key, array in device.items()}
    binding = bind(operator, operator.call(**device), facts)
    plan = operators.implementation(name, "wgmma").plan(question.problem, question.config)
    functions = on_gpu.Functions(compiled(name, question.problem, question.config), 0)
    return on_gpu.GpuKernel(on_gpu.Numbers.of(operator, binding, plan), functions, FRAMEWORKS[framework])


def answered(name: str, question: Question | BackwardQuestion, arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The outputs of one launch on the device."""
    import cupy

    device = {key: cupy.asarray(array) for key, array in arrays.items() if np.size(array) > 1}
    outputs = loaded(name, question, device, "cupy")(device, {"softmax_scale": arrays["softmax_scale"]})
    driver.wait(name)
    names = [argument.name for argument in operators.load(name).outputs]
    return {name: array.get() for name, array in zip(names, outputs, strict=True)}


@by_question
def test_values_are_found_in_every_column_of_every_panel(question: Question) -> None:
    """MN-major strides, N that ends inside a panel, swizzles of 32 and 64 bytes, stores that cut columns off."""
    arrays = equal_weights(question.problem)
    assert wrong_columns(arrays, answered("flash_attention", question, arrays)["o"]) == []


@pytest.mark.parametrize("D", sorted({question.head_dim for question in QUESTIONS}))
def test_scores_are_found_in_every_column_of_every_panel(D: int) -> None:
    """K-major operands that start inside a swizzle's row; boxes wider than the tensor."""
    question = next(question for question in QUESTIONS if question.head_dim == D)
    given = {column: one_column(question.problem, column) for column in range(D)}
    lse = {column: answered("flash_attention", question, arrays)["lse"] for column, arrays in given.items()}
    assert [column for column in given if wrong_lse(given[column], column, lse[column])] == []


def test_tensor_maps_are_encoded_in_a_thread_that_never_used_the_device() -> None:
    """Such as one of autograd's. torch allocates there from what it has cached, which binds no context."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch is built without CUDA")
    question = QUESTIONS[0]
    arrays = equal_weights(question.problem)
    device = to_torch({key: array for key, array in arrays.items() if np.size(array) > 1})
    call, given = loaded("flash_attention", question, device, "torch"), {"softmax_scale": arrays["softmax_scale"]}
    call(device, given)
    with ThreadPoolExecutor(1) as thread:
        o, _ = thread.submit(call, device, given).result()
    assert wrong_columns(arrays, o.float().cpu().numpy()) == []


@by_backward_question
def test_gradients_of_values_are_found_in_every_column_of_every_panel(question: BackwardQuestion) -> None:
    """Operands across the rows of tiles of 16 and 32, sums over tiles and heads, stores that cut a wide panel off."""
    arrays = uniform(question.problem)
    result = answered("flash_attention_backward", question, arrays)
    assert wrong_gradients(question.problem, arrays, result) == {}


@by_backward_question
@pytest.mark.parametrize("ask", ASKED, ids=lambda function: function.__name__)
def test_gradients_are_found_along_and_across_the_rows_of_a_tile(ask: Any, question: BackwardQuestion) -> None:
    """One column after the other of what both products read, with rounded P and dS as operands in registers."""
    wrong = {}
    for column in range(question.head_dim):
        arrays = ask(question.problem, column)
        result = answered("flash_attention_backward", question, arrays)
        wrong[column] = wrong_gradients(question.problem, arrays, result)
    assert {column: names for column, names in wrong.items() if names} == {}


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("D", CASES)
def test_what_the_emulator_verified_is_right_on_the_device(worker: Worker, D: int, causal: bool) -> None:
    """Every edge case, with outputs poisoned and guarded, and the same bits twice."""
    judged(worker, "flash_attention", Problem(D, DType.BF16, causal, batch=1, heads=2, seq_q=300), CASES[D])


@pytest.mark.parametrize("name", PACKED_CASES)
def test_packed_sequences_and_capped_scores_are_right_on_the_device(worker: Worker, name: str) -> None:
    judged(worker, "flash_attention", replace(PACKED, use_softcap=True), PACKED_CASES[name])


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("D", BACKWARD_CASES)
def test_gradients_that_the_emulator_verified_are_right_on_the_device(worker: Worker, D: int, causal: bool) -> None:
    problem = Backward(D, DType.BF16, causal, batch=1, heads=2, seq_q=300)
    judged(worker, "flash_attention_backward", problem, BACKWARD_CASES[D])


def test_gradients_of_packed_sequences_and_capped_scores_are_right_on_the_device(worker: Worker) -> None:
    judged(worker, "flash_attention_backward", replace(PACKED_BACKWARD, use_softcap=True), PACKED_CONFIG)


def judged(worker: Worker, name: str, problem: Any, config: Any) -> None:
    code = Code(
        InstanceFields(name, "wgmma", to_fields(problem), to_fields(config)), compiled(name, problem, config).image
    )
    timing = worker.time(TimingRequest(code, MeasurementPolicy(limit_s=5.0), timed=False))
    assert timing.failure is None, timing.failure
    assert timing.verdict is not None and timing.verdict.ok, timing.verdict
