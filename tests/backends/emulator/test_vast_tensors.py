"""Tests of tensors whose rows, heads and batches are more than 2^32 elements apart: all offsets are computed in 64
bits.
"""

import mmap
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.claims import example, first_arch
from tuner import operators
from tuner.backends import emulator
from tuner.compiler.render import render
from tuner.evaluate.check.compare import errors
from tuner.spec.argument import Role
from tuner.spec.instance import Instance
from tuner.spec.layout import Layout, Region
from tuner.spec.parameters import scalars

Array = np.ndarray[Any, Any]

APART = 2**31 + 64  # elements from a head, the innermost of a tensor's outer dims, to the next
NO_RESERVE = 0x4000  # MAP_NORESERVE: untouched pages use no memory
SIZES = {"batch": 2, "heads": 4, "kv_heads": 2, "seq_q": 33, "seq_k": 35}
PROBLEMS = {
    **dict.fromkeys(("flash_attention", "flash_attention_backward"), SIZES),
    "streaming_attention": {**SIZES, "slots": 35},
    "streaming_attention_backward": {**SIZES, "window": 9, "sinks": 4},
}


def vast(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Zeros: APART lie between neighbours in the last dim but one, and more in the dims outside of it."""
    strides = [dtype.itemsize]
    for extent in (APART, *shape[-2:0:-1]):
        strides.insert(0, strides[0] * extent)
    span = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) + dtype.itemsize
    memory = mmap.mmap(-1, span, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    return np.ndarray(shape, dtype, memory, strides=tuple(strides))


def far_apart(operator: Any, problem: Any, given: Mapping[str, Any]) -> dict[str, Array]:
    """Return the arguments of an operator in memory: strided tensors are vast, others dense."""
    results = {}
    for argument in operator.arguments:
        if argument.role is not Role.SCALAR:
            shape, dtype = argument.shape(problem), argument.dtype_of(problem).numpy
            spread = argument.strided and 0 not in shape and len(shape) > 1
            results[argument.name] = vast(shape, dtype) if spread else np.zeros(shape, dtype)
            if argument.supplied:
                results[argument.name][...] = given[argument.name]
    return results


def launch(operator: Any, kernel: Any, problem: Any, config: Any, arrays: Mapping[str, Any], given: Any) -> None:
    plan = kernel.plan(problem, config)
    # Built as test_operators.py has it built.
    built = emulator.build(render(Instance(operator, kernel, problem, config), "host"), checked=True)
    plan_memory = {space.name: np.zeros(space.shape, space.dtype.numpy) for space in plan.workspaces}
    regions = [Region(name, array.dtype, array.shape, array.strides) for name, array in arrays.items()]
    layout = Layout(operator, problem, tuple(regions), scalars(operator, problem, given))
    addresses = {name: array.__array_interface__["data"][0] for name, array in (plan_memory | dict(arrays)).items()}
    for step, values in layout.launches(plan, addresses):
        run = built.run(step, values, emulator.Mode())
        assert not run.findings, run.findings


def problem_of(operator: Any, kernel: Any) -> Any:
    served = example(operator, kernel)
    sizes = PROBLEMS.get(operator.name)
    return operator.tails(served)[-1] if sizes is None else replace(served, **sizes)


KERNELS = [(name, kernel.name) for name in operators.names() for kernel in operators.implementations(name)]


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("name", "implementation"), KERNELS, ids=["/".join(pair) for pair in KERNELS])
def test_offsets_do_not_wrap_at_32_bits(name: str, implementation: str) -> None:
    operator, kernel = operators.load(name), operators.implementation(name, implementation)
    problem, served = problem_of(operator, kernel), example(operator, kernel)
    given = operator.inputs(problem, np.random.default_rng(0), operator.input_kinds[0])
    arrays = far_apart(operator, problem, given)
    launch(operator, kernel, problem, kernel.default(served, first_arch(kernel, served)), arrays, given)
    outputs = {argument.name: np.ascontiguousarray(arrays[argument.name]) for argument in operator.written}
    messages = errors(operator, problem, given, outputs)
    assert all(message.ok for message in messages), [message.reason for message in messages]
