"""Tests of how an argument converts the arrays of a call, equally for every backend."""

from typing import Any, NamedTuple

import numpy as np
import pytest

from tuner import operators
from tuner.arch import ARCHES
from tuner.compiler.render import render
from tuner.errors import InputError
from tuner.spec.argument import Argument, Role, within
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance


class Sizes(NamedTuple):
    T: int
    K: int = 4
    use_bias: bool = False


STATE = Argument("state", DType.FP32, ("T", "K"))


def test_what_has_no_elements_need_not_be_there() -> None:
    array = STATE.array_from(Sizes(T=0), {})
    assert array.shape == (0, 4) and array.dtype == np.float32


def test_what_has_elements_is_missed() -> None:
    with pytest.raises(InputError, match=r"state is missing: the problem takes float32\[2, 4\]"):
        STATE.array_from(Sizes(T=2), {})


@pytest.mark.parametrize("array", [np.zeros((4, 2), np.float32), np.zeros((2, 4), np.float64)], ids=["shape", "dtype"])
def test_another_shape_or_dtype_is_refused(array: np.ndarray) -> None:
    with pytest.raises(InputError, match=r"the problem says float32\[2, 4\]"):
        STATE.array_from(Sizes(T=2), {"state": array})


@pytest.mark.parametrize(
    ("strided", "view", "kept"),
    [
        (False, np.s_[:, :4], False),
        (True, np.s_[:, :4], True),
        (True, np.s_[:, ::2], False),
        ("all", np.s_[:, ::2], True),
    ],
)
def test_strides_are_kept_where_the_kernel_takes_them(strided: bool, view: tuple[slice, ...], kept: bool) -> None:
    array = np.zeros((3, 8), np.float32)[view]
    laid_out = Argument("x", DType.FP32, ("T", "K"), strided=strided).addressable(array)
    assert (laid_out.strides == array.strides) is kept


@pytest.mark.parametrize("value", [1, 1.5, np.float32(1), np.array(1.0), True])
def test_a_number_between_its_bounds_is_within_them(value: Any) -> None:
    assert within(value, 0, 2)


@pytest.mark.parametrize("value", [0, 2, float("nan"), "1", None, 1j, np.ones(2)], ids=str)
def test_what_is_no_number_between_its_bounds_is_not_within_them(value: Any) -> None:
    assert not within(value, 0, 2)


@pytest.mark.parametrize(
    ("dtype", "role", "absent"),
    [(DType.BF16, Role.INPUT, "nullptr"), (DType.FP32, Role.SCALAR, "0.0f"), (DType.INT32, Role.SCALAR, "0")],
)
def test_an_optional_argument_has_an_expression_where_it_is_absent(dtype: DType, role: Role, absent: str) -> None:
    bias = Argument("bias", dtype, role=role, optional="use_bias")
    assert bias.expression(Sizes(T=1)) == absent and bias.expression(Sizes(T=1, use_bias=True)) == "bias"


@pytest.mark.parametrize(("packed", "softcap"), [(False, False), (True, False), (False, True)])
def test_launches_take_the_optional_arguments_that_the_problem_has(packed: bool, softcap: bool) -> None:
    operator = operators.load("flash_attention")
    implementation = operators.implementation("flash_attention", "mma_sync")
    problem = operator.problem(batch=1, use_cu_seqlens=packed, use_softcap=softcap)
    instance = Instance.default(operator, implementation, problem, ARCHES["sm_80"])
    (launch,) = instance.plan().launches
    assert ("cu_seqlens_q" in launch.arguments) is ("boundaries" in launch.arguments) is packed
    assert ("softcap" in launch.arguments) is softcap
    assert ("float softcap" in render(instance).text) is softcap
