"""Operands of kda_backward's products: in tf32, and in fp32 split into two of tf32, for tensors of any dtype."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.claims import assert_no_spills, assert_right, assert_right_at, drawn
from tests.support.counted import declared_and_counted, global_bytes
from tuner import operators
from tuner.arch import ARCHES, gpu
from tuner.backends import emulator
from tuner.errors import UsageError
from tuner.evaluate.check.checker import CHECKED, PLAIN
from tuner.evaluate.check.compare import distance
from tuner.operators.kda.problem import Precision
from tuner.operators.kda_backward.chunked.config import Config
from tuner.operators.kda_backward.operator import kda_backward
from tuner.operators.kda_backward.problem import Problem
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance

OPERATOR = operators.load("kda_backward")
CHUNKED = operators.implementation("kda_backward", "chunked")

FP32 = Problem(
    key_dim=32,
    value_dim=32,
    dtype=DType.FP32,
    gate_dtype=DType.FP32,
    beta_dtype=DType.FP32,
    use_initial_state=True,
    use_final_gradient=True,
)
TF32 = replace(FP32, precision=Precision.TF32)
RAW = {"use_qk_l2norm_in_kernel": True, "use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True}
GATED = {"use_gate_in_kernel": True, "use_dt_bias": True}
PACKED_LAYER = {**RAW, **GATED, "use_cu_seqlens": True}  # what FLA's layer asks for
BASE = Config(
    BV=32,
    rows=16,
    stages=3,
    span=2,
    channels=16,
    slab_warps=1,
    values=16,
    prepare_warps=2,
    prepare_ctas=1,
    gradient_ctas=1,
)
# A covering set: both ways to multiply with narrow and wide slabs, one and several slabs a warp, every dtype and state.
RAW_FP32 = (replace(FP32, safe_gate=True, **RAW), BASE)
RAW_TF32 = (replace(TF32, **RAW), replace(BASE, rows=32, stages=2, span=4, channels=32, values=32))
GATED_FP32 = (
    replace(FP32, key_dim=48, value_dim=16, dtype=DType.FP16, precision=Precision.FP32, **GATED),
    replace(BASE, BV=16),
)
PRECISIONS = pytest.mark.parametrize("case", [RAW_TF32, RAW_FP32], ids=["tf32", "fp32"])
CASES = {
    "fp32_raw": RAW_FP32,
    "fp16_tensors_in_fp32_gated": GATED_FP32,
    "tf32_raw_wide_slabs": RAW_TF32,
    "bf16_tensors_in_tf32_v_first_two_slabs_a_warp": (
        replace(TF32, key_dim=144, value_dim=16, dtype=DType.BF16, beta_dtype=DType.BF16, state_v_first=True),
        replace(BASE, BV=16, slab_warps=4),
    ),
}
# More chunks than the ring has slots, the last of them short; a batch, and heads of q that value heads share.
PLACES = (
    ({"seq_len": 70, "heads": 1, "value_heads": 1}, "weak_gate"),
    ({"batch": 2, "seq_len": 19, "heads": 2, "value_heads": 4}, "gate_spikes"),
)


def test_operands_follow_the_tensors_unless_given_as_in_the_forward_call() -> None:
    assert [Problem(dtype=dtype).operands for dtype in (DType.BF16, DType.FP16, DType.FP32)] == ["bf16", "bf16", "fp32"]
    assert [Problem(precision=precision).operands for precision in Precision] == ["bf16", "tf32", "fp32"]


def test_fp32_operands_of_fp32_tensors_are_one_problem_however_they_are_asked_for() -> None:
    assert replace(FP32, precision=Precision.FP32) == FP32


def test_an_unknown_precision_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="precision fp8: kda_backward supports dtype, tf32, fp32"):
        Problem(precision="fp8")  # type: ignore[arg-type]


def test_a_call_says_the_precision() -> None:
    assert kda_backward(*[object()] * 6, precision="tf32").statics["precision"] == "tf32"


def test_the_tolerance_follows_the_precision() -> None:
    limits = [OPERATOR.tolerance(problem)["dq"].absolute for problem in (Problem(), TF32, FP32)]
    assert limits == [5e-3, 1e-3, 1e-5]


@pytest.mark.parametrize("kind", OPERATOR.input_kinds)
def test_the_chunked_form_differs_from_the_recurrence_by_the_rounding_to_tf32_only(kind: str) -> None:
    problem = replace(TF32, seq_len=77, heads=1, value_heads=2)
    arrays = OPERATOR.inputs(problem, np.random.default_rng(0), kind)
    exact, result = OPERATOR.reference(problem, arrays), OPERATOR.rounded(problem, arrays)
    for name in ("dq", "dk", "dv", "dg", "dbeta", "dh0"):
        ratio, _ = distance(result[name], exact[name])
        assert 1e-5 < ratio < 2e-3, name


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
def test_chunked_is_right(case: str) -> None:
    assert_right_at(Instance(OPERATOR, CHUNKED, *CASES[case]), *PLACES)


@pytest.mark.sampled(3)
@PRECISIONS
@pytest.mark.parametrize("kind", OPERATOR.input_kinds)
def test_chunks_are_right_for_every_kind_of_input(case: tuple[Problem, Config], kind: str) -> None:
    problem = replace(case[0], seq_len=35, heads=1, value_heads=1)
    assert_right(Instance(OPERATOR, CHUNKED, problem, case[1]), drawn(OPERATOR, problem, kind), CHECKED[0])


@pytest.mark.slow
def test_the_gate_of_a_token_that_forgets_nearly_all_keeps_its_gradient_with_fp32_operands() -> None:
    problem = replace(GATED_FP32[0], seq_len=45, heads=1, value_heads=4)
    arrays = drawn(OPERATOR, problem, "gate_spikes")
    outputs, _ = emulator.run(Instance(OPERATOR, CHUNKED, problem, GATED_FP32[1]), arrays, CHECKED[0])
    exact = OPERATOR.reference(problem, arrays)
    for name in ("dg", "dA_log"):
        assert distance(outputs[name], exact[name])[0] < 5e-5, name


@PRECISIONS
def test_mma_bytes_and_barriers_are_as_declared_and_no_banks_conflict(case: tuple[Problem, Config]) -> None:
    problem = replace(case[0], seq_len=45, heads=1, value_heads=2)
    for work, counters in declared_and_counted(Instance(OPERATOR, CHUNKED, problem, case[1]), gpu("H200"), "weak_gate"):
        assert work.mma == work.tf32 == counters.mma_m16n8k8_tf32 / 2
        assert work.barriers == counters.barriers
        assert work.l2_bytes == global_bytes(counters)
        assert counters.bank_conflicts == 0


@pytest.mark.parametrize(
    ("problem", "arch"),
    [
        (replace(TF32, key_dim=64, value_dim=64, **PACKED_LAYER), "sm_120a"),
        (replace(FP32, key_dim=128, value_dim=128), "sm_80"),
        (replace(FP32, key_dim=128, value_dim=128, **PACKED_LAYER), "sm_90a"),
    ],
    ids=["tf32_layer", "fp32", "fp32_layer"],
)
@pytest.mark.slow
def test_the_default_compiles_without_spills_where_registers_are_scarcest(problem: Problem, arch: str) -> None:
    assert_no_spills(OPERATOR, CHUNKED, problem, arch)


@pytest.mark.parametrize(
    ("problem", "arch", "named"),
    [
        (replace(TF32, key_dim=256), "sm_86", "key_dim 256 in tf32 are 105216 bytes"),
        (replace(FP32, key_dim=176), "sm_90a", "key_dim 176 and operands split for fp32 do not fit the registers"),
    ],
)
def test_what_is_too_wide_is_refused_with_what_serves_it(problem: Problem, arch: str, named: str) -> None:
    reason = CHUNKED.refusal(problem, ARCHES[arch])
    assert reason is not None
    assert named in reason
    assert "naive" in reason


@pytest.mark.parametrize("key_dim", range(16, 257, 16))
def test_whatever_is_not_refused_has_a_default(key_dim: int) -> None:
    for problem in (replace(TF32, key_dim=key_dim), replace(FP32, key_dim=key_dim)):
        for arch in ARCHES.values():
            if CHUNKED.refusal(problem, arch) is None:
                assert CHUNKED.space(problem, arch).refusal(CHUNKED.default(problem, arch)) is None


@pytest.mark.parametrize("name", ["naive", "chunked"])
def test_a_gate_that_hardly_closes_loses_no_digits_of_its_gradient(name: str) -> None:
    problem = replace(GATED_FP32[0], seq_len=125, heads=1, value_heads=2)
    arrays = drawn(OPERATOR, problem, "zero_gate")
    kernel = operators.implementation("kda_backward", name)
    config = GATED_FP32[1] if name == "chunked" else kernel.default(problem, ARCHES["sm_90a"])
    mode = CHECKED[0] if name == "chunked" else PLAIN[0]  # as the other tests build it; a longer run
    outputs, _ = emulator.run(Instance(OPERATOR, kernel, problem, config), arrays, mode)
    exact = OPERATOR.reference(problem, arrays)
    assert distance(outputs["dg"], exact["dg"])[0] < 5e-6
