"""kda by segments: as exact as without, and chosen where heads are few."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.operators.kda.test_operator import PREP_SCAN_CASES, RAW_FP16
from tests.operators.kda.test_segmented_fused import CASES as FUSED_CASES
from tests.operators.kda.test_segmented_fused import KERNEL as SEGMENTED_FUSED
from tests.operators.kda.test_segmented_fused import PACKED, PLACES
from tests.operators.kda.test_segmented_once import CASES as ONCE_CASES
from tests.operators.kda.test_segmented_once import KERNEL as SEGMENTED_ONCE
from tests.support.claims import assert_declared, assert_no_spills, assert_right, assert_right_at, drawn
from tuner import operators
from tuner.arch import ARCHES, gpu
from tuner.backends import emulator
from tuner.evaluate.check.checker import CHECKED
from tuner.evaluate.check.compare import errors
from tuner.evaluate.predict.cost import uncompiled
from tuner.operators.kda.problem import Precision, Problem
from tuner.operators.kda.segmented.config import Config
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance

OPERATOR = operators.load("kda")
SEGMENTED, PREP_SCAN, FUSED = (operators.implementation("kda", name) for name in ("segmented", "prep_scan", "fused"))
H200 = gpu("H200")

SMALL = Problem(key_dim=32, value_dim=32, use_initial_state=True, output_final_state=True)
BASE = Config(
    C=16,
    BV=32,
    rows=16,
    stages=3,
    loader=True,
    partials=2,
    ahead=0,
    prep_groups=4,
    prep_min_ctas=1,
    segments=4,
    scan_min_ctas=1,
    merge_columns=8,
)
# A covering set: each value of every tunable, chunks of 16 and of 32, keys ahead with and without a warp that loads,
# and what segments do not share with other implementations.
CASES = {
    "chunks_of_16": (replace(SMALL, key_dim=64), BASE),
    "chunks_of_32_rows32_keys_ahead_without_loader": (
        replace(SMALL, key_dim=64),
        replace(
            BASE,
            C=32,
            rows=32,
            loader=False,
            ahead=2,
            stages=4,
            partials=1,
            segments=8,
            merge_columns=4,
            scan_min_ctas=2,
        ),
    ),
    "raw_fp16_more_segments_than_chunks": (RAW_FP16, replace(BASE, segments=8, merge_columns=4)),
    "packed_states_v_first_without_a_first_one": (
        replace(SMALL, key_dim=64, use_cu_seqlens=True, state_v_first=True, use_initial_state=False),
        replace(BASE, C=32, loader=False, stages=2),
    ),
    "fp32_more_keys_than_values_keys_ahead": (
        replace(SMALL, key_dim=48, value_dim=16, dtype=DType.FP32),
        replace(BASE, BV=16, ahead=2, stages=4, prep_groups=8, prep_min_ctas=4),
    ),
    "tf32_operands_of_bf16_smallest_dims": (
        replace(SMALL, key_dim=16, value_dim=16, precision=Precision.TF32),
        replace(BASE, BV=16, prep_groups=8),
    ),
}
FUSED_CASE, ONCE_CASE = FUSED_CASES["normalised_fp32_gate"], ONCE_CASES["normalised_fp32_gate"]
BY_SEGMENTS = pytest.mark.parametrize(
    ("implementation", "case"),
    [(SEGMENTED_FUSED, FUSED_CASE), (SEGMENTED_ONCE, ONCE_CASE)],
    ids=["segmented_fused", "segmented_once"],
)


def predicted(implementation: Any, problem: Problem) -> float:
    """Of the default config."""
    config = implementation.default(problem, H200.arch)
    plan, work = implementation.plan(problem, config), implementation.work(problem, config, H200)
    return uncompiled(plan, work, H200).cost


@pytest.mark.parametrize("case", CASES)
def test_segments_are_right(case: str) -> None:
    problem, config = CASES[case]
    assert_right_at(Instance(OPERATOR, SEGMENTED, problem, config), *(PACKED if problem.use_cu_seqlens else PLACES))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["weak_gate", "zero_gate", "equal_keys", "gate_spikes"])
def test_many_segments_are_as_exact_as_none(kind: str) -> None:
    problem = replace(RAW_FP16, batch=1, seq_len=205, heads=1, value_heads=1)
    arrays = drawn(OPERATOR, problem, kind)
    results = {}
    for implementation, (_, config) in (
        (SEGMENTED, CASES["raw_fp16_more_segments_than_chunks"]),
        (PREP_SCAN, PREP_SCAN_CASES["raw_fp16_more_keys_ahead"]),
    ):
        outputs, _ = emulator.run(Instance(OPERATOR, implementation, problem, config), arrays, CHECKED[0])
        results[implementation.name] = {e.name: e for e in errors(OPERATOR, problem, arrays, outputs)}
    for name in ("o", "final_state"):
        cut, whole = results["segmented"][name], results["prep_scan"][name]
        assert cut.ok, cut
        assert cut.rmse_ratio <= 1.1 * whole.rmse_ratio


@pytest.mark.parametrize(
    ("implementation", "case"),
    [(SEGMENTED, CASES["chunks_of_16"]), (SEGMENTED_FUSED, FUSED_CASE)],
    ids=["segmented", "segmented_fused"],
)
def test_tokens_do_not_see_the_segments_after_them(implementation: Any, case: tuple[Problem, Any]) -> None:
    problem = replace(case[0], batch=1, seq_len=90, heads=1, value_heads=1)
    arrays = drawn(OPERATOR, problem, "gate_spikes")
    changed = {name: arrays[name].copy() for name in ("q", "k", "v", "g", "beta")}
    for array in changed.values():
        array[:, 41:] = -7.0
    before, after = (
        emulator.run(Instance(OPERATOR, implementation, problem, case[1]), inputs, CHECKED[0])[0]["o"][:, :41]
        for inputs in (arrays, arrays | changed)
    )
    np.testing.assert_array_equal(before, after)


@pytest.mark.sampled(2)
@BY_SEGMENTS
@pytest.mark.parametrize("kind", OPERATOR.input_kinds)
def test_segments_are_right_for_every_kind_of_input(implementation: Any, case: tuple[Problem, Any], kind: str) -> None:
    problem = replace(case[0], batch=1, seq_len=205, heads=1, value_heads=1)
    assert_right(Instance(OPERATOR, implementation, problem, case[1]), drawn(OPERATOR, problem, kind), CHECKED[0])


@BY_SEGMENTS
def test_a_gate_that_wipes_the_state_leaves_the_maps_exact(implementation: Any, case: tuple[Problem, Any]) -> None:
    problem = replace(case[0], batch=1, seq_len=90, heads=1, value_heads=1)
    arrays = drawn(OPERATOR, problem, "strong_gate")
    arrays["g"][:, 5::13] = -np.inf
    assert_right(Instance(OPERATOR, implementation, problem, case[1]), arrays, CHECKED[0])


@pytest.mark.parametrize("seq_len", [9, 45, 200])
@pytest.mark.parametrize("case", list(CASES)[:2])
def test_each_launch_counts_its_mma_bytes_and_barriers(seq_len: int, case: str) -> None:
    problem, config = CASES[case]
    problem = replace(problem, batch=1, seq_len=seq_len, heads=1, value_heads=2)
    assert_declared(Instance(OPERATOR, SEGMENTED, problem, config), H200, "weak_gate")


@pytest.mark.parametrize("seq_len", [9, 45, 200])
@pytest.mark.parametrize("case", ["normalised_fp32_gate", "chunks_of_32"])
@pytest.mark.parametrize(
    ("implementation", "cases"),
    [(SEGMENTED_FUSED, FUSED_CASES), (SEGMENTED_ONCE, ONCE_CASES)],
    ids=["segmented_fused", "segmented_once"],
)
def test_what_prepares_its_own_chunks_counts_mma_bytes_and_barriers(
    implementation: Any, cases: dict[str, tuple[Problem, Any]], case: str, seq_len: int
) -> None:
    problem, config = cases[case]
    problem = replace(problem, batch=1, seq_len=seq_len, heads=1, value_heads=2)
    assert_declared(Instance(OPERATOR, implementation, problem, config), H200, "weak_gate")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("implementation", "cases"),
    [(SEGMENTED_FUSED, FUSED_CASES), (SEGMENTED_ONCE, ONCE_CASES)],
    ids=["segmented_fused", "segmented_once"],
)
def test_what_prepares_its_own_chunks_counts_reads_of_the_gates_parameters(
    implementation: Any, cases: dict[str, tuple[Problem, Any]]
) -> None:
    problem, config = cases["chunks_of_32"]
    gated = {"use_gate_in_kernel": True, "use_dt_bias": True, "batch": 1, "seq_len": 45, "heads": 1, "value_heads": 2}
    assert_declared(Instance(OPERATOR, implementation, replace(problem, **gated), config), H200, "weak_gate")


def test_a_chain_is_as_long_as_a_segment() -> None:
    problem = Problem(heads=4, seq_len=65536)
    config = replace(SEGMENTED.default(problem, H200.arch), segments=32)
    _, maps, merge, scan = SEGMENTED.work(problem, config, H200)
    assert maps.chain == scan.chain == 65536 / 16 / 32
    assert merge.chain == 30


def test_few_heads_and_long_sequences_are_predicted_to_gain_and_many_heads_to_lose() -> None:
    few, many = Problem(heads=4, seq_len=65536), Problem(heads=64, seq_len=8192)
    assert predicted(SEGMENTED, few) < min(predicted(PREP_SCAN, few), predicted(FUSED, few)) / 2
    assert predicted(SEGMENTED, many) > max(predicted(PREP_SCAN, many), predicted(FUSED, many))


FP32 = dict.fromkeys(("dtype", "gate_dtype", "beta_dtype"), DType.FP32)


@pytest.mark.parametrize(
    ("dim", "fields", "arch"),
    [(256, {}, "sm_80"), (192, {"precision": Precision.TF32}, "sm_90a"), (176, FP32, "sm_90a")],
    ids=["bf16", "tf32", "fp32"],
)
@pytest.mark.slow
def test_the_default_of_long_keys_compiles_without_spills(dim: int, fields: dict[str, Any], arch: str) -> None:
    problem = replace(SMALL, key_dim=dim, value_dim=dim, **fields)
    assert_no_spills(OPERATOR, SEGMENTED, problem, arch)


@pytest.mark.parametrize(
    "implementation", [SEGMENTED_FUSED, SEGMENTED_ONCE], ids=lambda implementation: implementation.name
)
@pytest.mark.slow
def test_the_default_of_64_dims_with_states_compiles_without_spills(implementation: Any) -> None:
    assert_no_spills(OPERATOR, implementation, replace(SMALL, key_dim=64, value_dim=64), "sm_89")


def test_fp32_operands_of_long_keys_are_refused_with_what_serves_them() -> None:
    long = replace(SMALL, key_dim=192, **FP32)
    assert "use prep_scan" in str(SEGMENTED.refusal(long, ARCHES["sm_90a"]))
    assert PREP_SCAN.refusal(long, ARCHES["sm_90a"]) is None


@pytest.mark.slow
def test_a_v_first_state_is_stored_without_spills_on_the_newest_arch() -> None:
    problem = replace(SMALL, key_dim=128, value_dim=128, output_final_state=True, state_v_first=True)
    assert_no_spills(OPERATOR, SEGMENTED_FUSED, problem, "sm_120a")


@pytest.mark.slow
def test_a_packed_sequence_of_wide_keys_leaves_its_state_without_spills() -> None:
    problem = replace(SMALL, key_dim=192, value_dim=192, batch=1, use_cu_seqlens=True, output_final_state=True)
    assert_no_spills(OPERATOR, SEGMENTED, replace(problem, use_initial_state=False), "sm_100a")
