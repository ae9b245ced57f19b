"""kda by segments: as exact as without, and chosen where heads are few."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from claims import assert_declared, assert_no_spills, assert_right, assert_right_on_tails, drawn
from test_kda_segmented_fused import BASE as FUSED_BASE
from test_kda_segmented_fused import KERNEL as SEGMENTED_FUSED
from test_kda_segmented_once import BASE as ONCE_BASE
from test_kda_segmented_once import KERNEL as SEGMENTED_ONCE

from tuner import emulator, operators
from tuner.arch import ARCHES, gpu
from tuner.check import PLAIN
from tuner.dtype import DType
from tuner.operators.kda.problem import Precision, Problem
from tuner.operators.kda.segmented_config import Config
from tuner.predict import uncompiled
from tuner.verify import errors

OPERATOR = operators.load("kda")
SEGMENTED, PREP_SCAN, FUSED = (operators.implementation("kda", name) for name in ("segmented", "prep_scan", "fused"))
H200 = gpu("H200")

SMALL = Problem(key_dim=32, value_dim=32, use_initial_state=True, output_final_state=True)
RAW = {"use_qk_l2norm_in_kernel": True, "use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True}
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
# Every tunable away from its default at least once, and what segments do not share with other implementations.
CASES = {
    "more_segments_than_chunks": (SMALL, replace(BASE, segments=16, merge_columns=4)),
    "chunk32_rows32_no_loader": (
        SMALL,
        replace(BASE, C=32, rows=32, loader=False, stages=2, partials=1, prep_groups=4, scan_min_ctas=2),
    ),
    "keys_ahead": (replace(SMALL, key_dim=64), replace(BASE, ahead=2, stages=4, prep_min_ctas=4)),
    "raw_fp16_without_first_state": (replace(SMALL, use_initial_state=False, dtype=DType.FP16, **RAW), BASE),
    "states_v_first": (replace(SMALL, state_v_first=True), BASE),
    "packed": (replace(SMALL, use_cu_seqlens=True), BASE),
    "packed_chunk32_keys_ahead_no_loader": (
        replace(SMALL, use_cu_seqlens=True, state_v_first=True, use_initial_state=False),
        replace(BASE, C=32, loader=False, stages=4, ahead=2, segments=8, merge_columns=4),
    ),
    "fp32": (replace(SMALL, dtype=DType.FP32), BASE),
    "tf32_operands_of_bf16": (replace(SMALL, precision=Precision.TF32), replace(BASE, BV=16)),
    "smallest_dims": (replace(SMALL, key_dim=16, value_dim=16), replace(BASE, BV=16, prep_groups=8)),
    "more_keys_than_values": (replace(SMALL, key_dim=96, value_dim=48), replace(BASE, BV=48, prep_groups=4)),
}


def predicted(implementation: Any, problem: Problem) -> float:
    """Of the default config."""
    config = implementation.default(problem, H200.arch)
    plan, work = implementation.plan(problem, config), implementation.work(problem, config, H200)
    return uncompiled(plan, work, H200).cost


@pytest.mark.parametrize("case", CASES)
def test_segments_are_right(case: str) -> None:
    assert_right_on_tails(OPERATOR, SEGMENTED, *CASES[case])


@pytest.mark.parametrize("kind", ["weak_gate", "zero_gate", "equal_keys", "gate_spikes"])
def test_many_segments_are_as_exact_as_none(kind: str) -> None:
    problem = replace(SMALL, batch=1, seq_len=205, heads=1, value_heads=1, **RAW)
    arrays = OPERATOR.inputs(problem, np.random.default_rng(0), kind)
    found = {}
    for implementation, config in (
        (SEGMENTED, replace(BASE, segments=8)),
        (PREP_SCAN, PREP_SCAN.default(problem, ARCHES["sm_90a"])),
    ):
        outputs, _ = emulator.run(OPERATOR, implementation, problem, config, arrays, PLAIN[0])
        found[implementation.name] = {e.name: e for e in errors(OPERATOR, problem, arrays, outputs)}
    for name in ("o", "final_state"):
        cut, whole = found["segmented"][name], found["prep_scan"][name]
        assert cut.ok, cut
        assert cut.rmse_ratio <= 1.1 * whole.rmse_ratio


@pytest.mark.parametrize(
    ("implementation", "config"),
    [(SEGMENTED, BASE), (SEGMENTED_FUSED, FUSED_BASE)],
    ids=["segmented", "segmented_fused"],
)
def test_tokens_do_not_see_the_segments_after_them(implementation: Any, config: Any) -> None:
    problem = replace(SMALL, batch=1, seq_len=90, heads=1, value_heads=1)
    arrays = OPERATOR.inputs(problem, np.random.default_rng(0), "gate_spikes")
    changed = {name: x.copy() for name, x in arrays.items()}
    for name in ("q", "k", "v", "g", "beta"):
        changed[name][:, 41:] = -7.0
    before, after = (
        emulator.run(OPERATOR, implementation, problem, config, each, PLAIN[0])[0]["o"][:, :41]
        for each in (arrays, changed)
    )
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize(
    ("implementation", "seq_len", "segments"),
    [(SEGMENTED_FUSED, 141, 5), (SEGMENTED_ONCE, 413, 6)],
    ids=["segmented_fused", "segmented_once"],
)
@pytest.mark.parametrize("kind", OPERATOR.input_kinds)
def test_segments_are_right_for_every_kind_of_input(
    implementation: Any, seq_len: int, segments: int, kind: str
) -> None:
    problem = replace(SMALL, key_dim=64, value_dim=64, batch=1, seq_len=seq_len, heads=1, value_heads=1)
    config = replace(implementation.default(problem, ARCHES["sm_90a"]), segments=segments)
    assert_right(OPERATOR, implementation, problem, config, drawn(OPERATOR, problem, kind))


@pytest.mark.parametrize(
    ("implementation", "config"),
    [(SEGMENTED_FUSED, FUSED_BASE), (SEGMENTED_ONCE, ONCE_BASE)],
    ids=["segmented_fused", "segmented_once"],
)
def test_a_gate_that_wipes_the_state_leaves_the_maps_exact(implementation: Any, config: Any) -> None:
    problem = replace(SMALL, batch=1, seq_len=90, heads=1, value_heads=1, gate_dtype=DType.FP32)
    arrays = drawn(OPERATOR, problem, "strong_gate")
    arrays["g"][:, 5::13] = -np.inf
    assert_right(OPERATOR, implementation, problem, config, arrays)


@pytest.mark.parametrize("seq_len", [9, 45, 200])
@pytest.mark.parametrize(
    "config",
    [BASE, replace(BASE, C=32, rows=32, loader=False, ahead=2, stages=4, prep_groups=4, segments=8, merge_columns=4)],
    ids=["loader", "chunk32_keys_ahead"],
)
def test_each_launch_counts_its_mma_bytes_and_barriers(seq_len: int, config: Config) -> None:
    problem = replace(SMALL, key_dim=64, batch=1, seq_len=seq_len, heads=1, value_heads=2)
    assert_declared(OPERATOR, SEGMENTED, problem, config, H200, "weak_gate")


WIDE_CHUNKS = {"C": 32, "segments": 5, "prep_groups": 4, "stages": 2, "producers": 2}


@pytest.mark.parametrize("seq_len", [9, 45, 200])
@pytest.mark.parametrize(
    ("implementation", "choices"),
    [
        (SEGMENTED_FUSED, {}),
        (SEGMENTED_FUSED, {**WIDE_CHUNKS, "BV": 32, "map_columns": 32}),
        (SEGMENTED_ONCE, {}),
        (SEGMENTED_ONCE, WIDE_CHUNKS),
    ],
    ids=["fused", "fused_two_warps_a_group", "once", "once_two_warps_a_group"],
)
def test_what_prepares_its_own_chunks_counts_mma_bytes_and_barriers(
    seq_len: int, implementation: Any, choices: dict[str, Any]
) -> None:
    fields = {"batch": 1, "seq_len": seq_len, "heads": 1, "value_heads": 2, "use_qk_l2norm_in_kernel": True}
    problem = replace(SMALL, key_dim=64, value_dim=64, **fields)
    config = replace(implementation.default(problem, ARCHES["sm_90a"]), **choices)
    assert_declared(OPERATOR, implementation, problem, config, H200, "weak_gate")


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
def test_the_default_of_long_keys_compiles_without_spills(dim: int, fields: dict[str, Any], arch: str) -> None:
    problem = replace(SMALL, key_dim=dim, value_dim=dim, **fields)
    assert_no_spills(OPERATOR, SEGMENTED, problem, arch)


@pytest.mark.parametrize("implementation", [SEGMENTED_FUSED, SEGMENTED_ONCE], ids=lambda each: each.name)
def test_the_default_of_64_dims_with_states_compiles_without_spills(implementation: Any) -> None:
    assert_no_spills(OPERATOR, implementation, replace(SMALL, key_dim=64, value_dim=64), "sm_89")


def test_fp32_operands_of_long_keys_are_refused_with_what_serves_them() -> None:
    long = replace(SMALL, key_dim=192, **FP32)
    assert "use prep_scan" in str(SEGMENTED.refusal(long, ARCHES["sm_90a"]))
    assert PREP_SCAN.refusal(long, ARCHES["sm_90a"]) is None
