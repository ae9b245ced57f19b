"""Tests of the memory layout of a call's tensors, equal for every backend."""

from typing import Any

import numpy as np
import pytest

from tuner.spec.argument import Argument, Role
from tuner.spec.dtype import DType
from tuner.spec.layout import Layout, Region, workspaces
from tuner.spec.operator import Operator
from tuner.spec.plan import Launch, Plan, Workspace

ROWS = np.arange(24, dtype=np.float32).reshape(4, 6)
PLAN = Plan((Launch("add", (1, 1, 1), 32, 0),), {}, (Workspace("sums", DType.FP32, (3,)),))


class Sizes:
    T, K = 4, 3
    scale = 2.0


@pytest.fixture
def operator() -> Operator[Any]:
    arguments = (
        Argument("x", DType.FP32, ("T", "K"), strided=True),
        Argument("bias", DType.FP32, ("K",)),
        Argument("y", DType.FP32, ("T", "K"), Role.OUTPUT),
        Argument("scale", DType.FP32, role=Role.SCALAR, default=lambda problem: problem.scale),
    )
    return Operator("add", "", Sizes, arguments, lambda problem, arrays: {})  # noqa: ARG005


@pytest.mark.parametrize(
    ("array", "before", "nbytes"),
    [
        (ROWS, 0, 96),
        (ROWS[:, :4], 0, 4 * (3 * 6 + 4)),  # its end is that of the last element
        (ROWS[::-1], 72, 96),
        (ROWS[::-2, ::-1], 4 * (12 + 5), 72),
        (np.broadcast_to(ROWS[0], (4, 6)), 0, 24),
        (ROWS[:0], 0, 0),
        (ROWS[::-1, :0], 0, 0),
    ],
)
def test_a_region_reaches_from_its_lowest_element_to_its_highest(array: Any, before: int, nbytes: int) -> None:
    region = Region("x", array.dtype, array.shape, array.strides)
    assert (region.before, region.nbytes) == (before, nbytes)
    memory = np.full(nbytes, 0xFF, np.uint8)
    region.view(memory)[...] = array
    assert np.array_equal(region.view(memory), array)
    assert region.located(4096)[:2] == (4096 + before, array.shape)


def test_strides_are_kept_where_a_kernel_takes_them_and_memory_is_not_dense(operator: Operator[Any]) -> None:
    arrays = {"x": ROWS[:, :3], "bias": ROWS[0, ::2]}
    own, dense = (Layout.of(operator, Sizes, arrays, dense=dense).tensors for dense in (False, True))
    assert [(array.name, array.strides, array.writable) for array in own] == [
        ("x", (24, 4), False),
        ("bias", (4,), False),
        ("y", (12, 4), True),
    ]
    assert [axis.strides for axis in dense] == [(12, 4), (4,), (12, 4)]
    for x, bias, y in (own, dense):
        assert (
            np.array_equal(x.initial, ROWS[:, :3]) and np.array_equal(bias.initial, ROWS[0, ::2]) and y.initial is None
        )


def test_a_launch_is_passed_addresses_strides_scalars_and_null_for_what_is_not_there(operator: Operator[Any]) -> None:
    layout = Layout.of(operator, Sizes, {"x": ROWS[:, :3], "bias": ROWS[0, :3], "scale": 5})
    assert [(workspace.name, workspace.nbytes, workspace.initial) for workspace in workspaces(PLAN)] == [
        ("sums", 12, None)
    ]
    ((launch, values),) = layout.launches(PLAN, {"x": 512, "y": 1024, "sums": 2048})
    assert launch is PLAN.launches[0]
    assert values == [512, 6, 0, 1024, 5.0, 2048]
    assert [value.dtype for value in values] == [np.uint64, np.int64, np.uint64, np.uint64, np.float32, np.uint64]
