"""tcgen05 on a data-center Blackwell device: first what the emulator cannot know, panel by panel, then whole kernels.

To be run first where a device has sm_100a; a failure names the columns that are wrong, and so the panel's width.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.gpu import driver
from tests.operators.flash_attention.test_tcgen05 import ASKED, CASES, HEAD_DIMS, OPERATOR, TCGEN05, question
from tests.operators.flash_attention.wgmma_questions import equal_weights, one_column, wrong_columns, wrong_lse
from tuner.backends import gpu
from tuner.base.cache import Cache
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
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not gpu.available() or not gpu.current_gpu().arch.has_tcgen05, reason="needs a device that has tcgen05"
    ),
]


@cache
def compiled(problem: Any, config: Any) -> Cubin:
    source, arch = render(Instance(OPERATOR, TCGEN05, problem, config)), gpu.current_gpu().arch.name
    cubin = compile(source, Options(arch), Cache.of("cubin"))  # another run of these tests finds it there
    assert isinstance(cubin, Cubin), cubin
    return cubin


def answered(D: int, columns: int, arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The outputs of one launch on the device."""
    import cupy

    problem, config = question(D, columns)
    device = {key: cupy.asarray(array) for key, array in arrays.items() if np.size(array) > 1}
    facts = {key: FRAMEWORKS["cupy"].facts(key, array) for key, array in device.items()}
    binding = bind(OPERATOR, OPERATOR.call(**device), facts)
    numbers = on_gpu.Numbers.of(OPERATOR, binding, TCGEN05.plan(problem, config))
    kernel = on_gpu.GpuKernel(numbers, on_gpu.Functions(compiled(problem, config), 0), FRAMEWORKS["cupy"])
    outputs = kernel(device, {"softmax_scale": arrays["softmax_scale"]})
    driver.wait("flash_attention")
    return {argument.name: array.get() for argument, array in zip(OPERATOR.outputs, outputs, strict=True)}


@pytest.mark.parametrize(("D", "columns"), ASKED)
def test_values_are_found_in_every_column_of_every_panel(D: int, columns: int) -> None:
    """MN-major strides, N that ends inside a panel, P in tensor memory, stores that cut columns off."""
    arrays = equal_weights(question(D, columns)[0])
    assert wrong_columns(arrays, answered(D, columns, arrays)["o"]) == []


@pytest.mark.parametrize("D", HEAD_DIMS)
def test_scores_are_found_in_every_column_of_every_panel(D: int) -> None:
    """K-major operands that start inside a swizzle's row; boxes wider than the tensor."""
    given = {column: one_column(question(D, 16)[0], column) for column in range(D)}
    lse = {column: answered(D, 16, arrays)["lse"] for column, arrays in given.items()}
    assert [column for column in given if wrong_lse(given[column], column, lse[column])] == []


@pytest.mark.parametrize("packed", [False, True], ids=["batch", "packed"])
@pytest.mark.parametrize("D", CASES)
def test_what_the_emulator_verified_is_right_on_the_device(worker: Worker, D: int, packed: bool) -> None:
    """Every edge case, with outputs poisoned and guarded, and the same bits twice."""
    problem = Problem(D, DType.BF16, True, use_cu_seqlens=packed, batch=1, heads=2, seq_q=300, use_softcap=packed)
    code = Code(Instance(OPERATOR, TCGEN05, problem, CASES[D]).fields(), compiled(problem, CASES[D]).image)
    timing = worker.time(TimingRequest(code, MeasurementPolicy(limit_s=5.0), timed=False))
    assert timing.failure is None, timing.failure
    assert timing.verdict is not None and timing.verdict.ok, timing.verdict
