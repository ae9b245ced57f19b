"""kda with operands in tf32 and in fp32: what the problem says of them, and the chunked kernels that multiply so."""

from dataclasses import replace
from typing import Any

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
from tuner.evaluate.predict.cost import uncompiled
from tuner.operators.kda.fused.config import Config as FusedConfig
from tuner.operators.kda.operator import kda
from tuner.operators.kda.prep_scan.config import Config
from tuner.operators.kda.problem import Precision, Problem
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance

OPERATOR = operators.load("kda")
PREP_SCAN, FUSED = (operators.implementation("kda", name) for name in ("prep_scan", "fused"))
CHUNKED = pytest.mark.parametrize("implementation", [PREP_SCAN, FUSED], ids=["prep_scan", "fused"])

FP32 = Problem(
    key_dim=64,
    value_dim=64,
    dtype=DType.FP32,
    gate_dtype=DType.FP32,
    beta_dtype=DType.FP32,
    use_initial_state=True,
    output_final_state=True,
)
TF32 = replace(FP32, precision=Precision.TF32)
RAW = {"use_qk_l2norm_in_kernel": True, "use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True}
GATED = {"use_gate_in_kernel": True, "use_dt_bias": True, "use_lower_bound": True, "safe_gate": True}
BASE = Config(C=16, BV=32, rows=16, stages=3, loader=True, partials=2, ahead=0, prep_groups=2, prep_min_ctas=1)
# Covering sets: both ways to multiply with chunks of 16 and of 32, tensors of every dtype, with and without keys ahead.
CASES = {
    "fp32_chunks_of_16": (FP32, BASE),
    "fp32_raw_chunks_of_32_without_loader": (
        replace(FP32, **RAW),
        replace(BASE, C=32, loader=False, stages=2, prep_groups=4),
    ),
    "fp16_tensors_in_fp32_packed_gated_keys_ahead_dims_without_full_swizzle": (
        replace(
            FP32,
            key_dim=48,
            value_dim=48,
            dtype=DType.FP16,
            gate_dtype=DType.FP16,
            precision=Precision.FP32,
            use_cu_seqlens=True,
            **GATED,
        ),
        replace(BASE, BV=48, ahead=4, prep_groups=8),
    ),
    "tf32_rows32_keys_ahead_without_loader": (TF32, replace(BASE, rows=32, loader=False, stages=4, ahead=4)),
    "bf16_tensors_in_tf32_raw_chunks_of_32_v_first": (
        replace(TF32, value_dim=32, dtype=DType.BF16, beta_dtype=DType.BF16, state_v_first=True, **RAW),
        replace(BASE, C=32, BV=16, partials=1, prep_groups=4),
    ),
}
FUSED_BASE = FusedConfig(C=16, BV=32, rows=16, stages=4, partials=1, prep_groups=2, producers=2)
FUSED_CASES = {
    "fp32_raw_chunks_of_32_one_producer": (
        replace(FP32, **RAW),
        replace(FUSED_BASE, C=32, stages=2, prep_groups=4, producers=1),
    ),
    "tf32_three_producers": (TF32, replace(FUSED_BASE, BV=64, stages=3, producers=3)),
    "fp16_tensors_in_tf32_gated_rows32_v_first": (
        replace(TF32, value_dim=32, dtype=DType.FP16, state_v_first=True, **GATED),
        replace(FUSED_BASE, rows=32, partials=2),
    ),
}
# Each way to multiply in each kernel.
MULTIPLIED = {
    "prep_scan_fp32": (PREP_SCAN, *CASES["fp32_chunks_of_16"]),
    "prep_scan_tf32": (PREP_SCAN, *CASES["tf32_rows32_keys_ahead_without_loader"]),
    "fused_fp32": (FUSED, *FUSED_CASES["fp32_raw_chunks_of_32_one_producer"]),
    "fused_tf32": (FUSED, *FUSED_CASES["tf32_three_producers"]),
}
# More chunks than rings have slots, the last of them short; a batch, and heads of q that value heads share.
PLACES = (
    ({"seq_len": 77, "heads": 1, "value_heads": 1}, "weak_gate"),
    ({"batch": 2, "seq_len": 19, "heads": 2, "value_heads": 4}, "gate_spikes"),
)
PACKED_PLACES = (({"seq_len": 130, "heads": 2, "value_heads": 4, "boundaries": 7}, "strong_gate"),)


def test_operands_are_bf16_for_tensors_of_16_bits_and_fp32_for_those_of_32_unless_given() -> None:
    assert [Problem(dtype=dtype).operands for dtype in (DType.BF16, DType.FP16, DType.FP32)] == ["bf16", "bf16", "fp32"]
    assert [Problem(precision=precision).operands for precision in Precision] == ["bf16", "tf32", "fp32"]


@pytest.mark.slow
def test_fused_takes_split_operands_as_wide_as_no_register_is_spilled() -> None:
    served = [FUSED.refusal(replace(FP32, key_dim=K), ARCHES["sm_90a"]) is None for K in (160, 192)]
    assert served == [True, False]


def test_fp32_operands_of_fp32_tensors_are_one_problem_however_they_are_asked_for() -> None:
    assert replace(FP32, precision=Precision.FP32) == FP32


def test_an_unknown_precision_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="precision fp8: kda supports dtype, tf32, fp32"):
        Problem(precision="fp8")


def test_a_call_says_the_precision() -> None:
    assert kda(*[object()] * 5, precision="tf32").statics["precision"] == "tf32"
    assert kda(*[object()] * 5).statics["precision"] == "dtype"


def test_the_tolerance_follows_the_precision() -> None:
    limits = [OPERATOR.tolerance(problem)["o"].absolute for problem in (Problem(), TF32, FP32)]
    assert limits == [5e-3, 1e-3, 1e-5]


def test_the_rounded_reference_rounds_operands_to_tf32() -> None:
    problem = replace(TF32, seq_len=77, heads=1, value_heads=1)
    arrays = drawn(OPERATOR, problem, "weak_gate")
    ratio, _ = distance(OPERATOR.rounded(problem, arrays)["o"], OPERATOR.reference(problem, arrays)["o"])
    assert 1e-4 < ratio < 1e-3


@pytest.mark.parametrize("case", CASES)
def test_prep_scan_is_right(case: str) -> None:
    problem, config = CASES[case]
    places = PACKED_PLACES if problem.use_cu_seqlens else PLACES
    assert_right_at(Instance(OPERATOR, PREP_SCAN, problem, config), *places)


@pytest.mark.parametrize("case", FUSED_CASES)
def test_fused_is_right(case: str) -> None:
    assert_right_at(Instance(OPERATOR, FUSED, *FUSED_CASES[case]), *PLACES)


@pytest.mark.parametrize("case", MULTIPLIED)
@pytest.mark.parametrize("kind", OPERATOR.input_kinds)
def test_operands_are_exact_enough_for_every_kind_of_input(case: str, kind: str) -> None:
    implementation, problem, config = MULTIPLIED[case]
    problem = replace(problem, seq_len=77, heads=1, value_heads=1)
    assert_right(Instance(OPERATOR, implementation, problem, config), drawn(OPERATOR, problem, kind), CHECKED[0])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", [name for name in CASES if "packed" not in name])
def test_mma_bytes_and_barriers_are_as_declared_and_no_banks_conflict(case: str) -> None:
    problem, config = CASES[case]
    instance = Instance(OPERATOR, PREP_SCAN, replace(problem, seq_len=45, heads=1, value_heads=2), config)
    for work, counters in declared_and_counted(instance, gpu("H200"), "weak_gate"):
        assert work.mma == work.tf32 == counters.mma_m16n8k8_tf32 / 2
        assert work.barriers == counters.barriers
        assert work.l2_bytes == global_bytes(counters)
        assert counters.bank_conflicts == 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", FUSED_CASES)
def test_fused_declares_its_mma_bytes_and_barriers(case: str) -> None:
    problem, config = FUSED_CASES[case]
    problem = replace(problem, seq_len=90, heads=1, value_heads=2)
    ((work, counters),) = declared_and_counted(Instance(OPERATOR, FUSED, problem, config), gpu("H200"), "weak_gate")
    assert work.mma == work.tf32 == counters.mma_m16n8k8_tf32 / 2
    assert work.barriers == counters.barriers
    assert work.l2_bytes == global_bytes(counters)


@pytest.mark.parametrize("name", ["prep_scan", "fused", "segmented"])
def test_tf32_is_predicted_slower_than_bf16_and_at_half_the_rate_of_its_products(name: str) -> None:
    implementation, h200 = operators.implementation("kda", name), gpu("H200")
    bf16, tf32 = Problem(heads=4, seq_len=65536), Problem(heads=4, seq_len=65536, precision=Precision.TF32)
    config = implementation.default(tf32, h200.arch)
    fast, slow = (
        uncompiled(implementation.plan(precision, config), implementation.work(precision, config, h200), h200)
        for precision in (bf16, tf32)
    )
    assert slow.terms["tensor"] == pytest.approx(2 * float(fast.terms["tensor"]), rel=1e-4)
    assert slow.cost > fast.cost


@pytest.mark.parametrize("name", ["naive", "recurrent", "prep_scan"])
def test_a_gate_that_hardly_closes_costs_no_digits_over_a_thousand_tokens(name: str) -> None:
    problem = replace(FP32, key_dim=16, value_dim=16, heads=1, value_heads=4, seq_len=1024, use_initial_state=False)
    arrays = drawn(OPERATOR, problem, "strong_gate")
    arrays |= {"g": np.full_like(arrays["g"], -1e-4), "beta": np.full_like(arrays["beta"], 0.05)}
    kernel = operators.implementation("kda", name)
    outputs, _ = emulator.run(Instance.default(OPERATOR, kernel, problem, ARCHES["sm_90a"]), arrays, PLAIN[0])
    assert distance(outputs["o"], OPERATOR.reference(problem, arrays)["o"])[0] < 4e-6


@pytest.mark.parametrize(
    ("implementation", "problem", "arch"),
    [(PREP_SCAN, TF32, "sm_120a"), (PREP_SCAN, FP32, "sm_80"), (FUSED, TF32, "sm_80"), (FUSED, FP32, "sm_120a")],
    ids=["prep_scan_tf32", "prep_scan_fp32", "fused_tf32", "fused_fp32"],
)
@pytest.mark.slow
def test_defaults_of_128_dims_compile_for_the_oldest_or_the_newest_arch_without_spills(
    implementation: Any, problem: Problem, arch: str
) -> None:
    assert_no_spills(OPERATOR, implementation, replace(problem, key_dim=128, value_dim=128), arch)


@pytest.mark.parametrize(
    "options",
    [{"use_initial_state": False, "state_v_first": True}, {"use_initial_state": True, "output_final_state": True}],
    ids=["left_v_first", "given_and_left"],
)
@pytest.mark.slow
def test_a_state_of_fp32_operands_and_192_dims_does_not_spill(options: dict[str, Any]) -> None:
    wide = replace(FP32, key_dim=192, value_dim=192, dtype=DType.BF16, precision=Precision.FP32)
    assert_no_spills(OPERATOR, PREP_SCAN, replace(wide, **options), "sm_80")


@CHUNKED
def test_keys_too_wide_for_two_chunks_in_shared_memory_are_refused_with_the_bytes(implementation: Any) -> None:
    reason = implementation.refusal(replace(TF32, key_dim=256), ARCHES["sm_86"])
    assert reason is not None
    assert "key_dim 256 in tf32 are 105472 bytes" in reason
    assert implementation.refusal(replace(TF32, key_dim=256), ARCHES["sm_90a"]) is None


@CHUNKED
@pytest.mark.parametrize("key_dim", range(16, 257, 16))
def test_whatever_is_not_refused_has_a_default(implementation: Any, key_dim: int) -> None:
    for problem in (replace(TF32, key_dim=key_dim), replace(FP32, key_dim=key_dim)):
        for arch in ARCHES.values():
            if implementation.refusal(problem, arch) is None:
                assert implementation.space(problem, arch).refusal(implementation.default(problem, arch)) is None
