"""kda by segments whose blocks prepare their own chunks: as exact as whole, chosen for short keys and few heads."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.claims import assert_right, assert_right_at, drawn
from tuner import operators
from tuner.arch import ARCHES, gpu
from tuner.evaluate.check.checker import CHECKED
from tuner.evaluate.predict.cost import uncompiled
from tuner.operators.kda.problem import Precision, Problem
from tuner.operators.kda.segmented_fused.config import Config
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance

OPERATOR = operators.load("kda")
KERNEL = operators.implementation("kda", "segmented_fused")
H200 = gpu("H200")

SMALL = Problem(key_dim=32, value_dim=32, use_initial_state=True, output_final_state=True)
RAW = {"use_qk_l2norm_in_kernel": True, "use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True}
SOFTPLUS = {"use_gate_in_kernel": True, "use_dt_bias": True}
BASE = Config(
    C=16,
    BV=32,
    rows=16,
    stages=4,
    partials=1,
    prep_groups=4,
    producers=4,
    segments=3,
    map_columns=64,
    map_rows=16,
    merge_columns=4,
)
NORMALISED = replace(SMALL, key_dim=64, value_dim=64, use_qk_l2norm_in_kernel=True, gate_dtype=DType.FP32)
# A covering set: each value of every tunable, and what maps do not share with outputs.
CASES = {
    "normalised_fp32_gate": (NORMALISED, replace(BASE, segments=5)),
    "chunks_of_32": (
        NORMALISED,
        replace(BASE, C=32, rows=32, map_rows=32, map_columns=32, stages=2, producers=1, partials=2, segments=5),
    ),
    "columns_of_one_kind_a_block_more_segments_than_chunks_raw_fp16_without_first_state": (
        replace(SMALL, use_initial_state=False, dtype=DType.FP16, **RAW),
        replace(BASE, BV=16, map_columns=16, stages=7, producers=7, segments=9, merge_columns=8),
    ),
    "fp32_more_warps_that_scan_raw_lengths_read_again": (
        replace(SMALL, key_dim=48, dtype=DType.FP32, **RAW),
        replace(BASE, map_columns=80, prep_groups=8, stages=2, producers=2),
    ),
    "packed_softplus_states_v_first": (
        replace(SMALL, key_dim=64, use_cu_seqlens=True, state_v_first=True, **SOFTPLUS),
        replace(BASE, prep_groups=2, map_columns=32, segments=5),
    ),
}
# Chunks for every segment, the last of them short; fewer than segments, a batch, and heads that value heads share.
PLACES = (
    ({"seq_len": 77, "heads": 1, "value_heads": 1}, "weak_gate"),
    ({"batch": 2, "seq_len": 19, "heads": 2, "value_heads": 4}, "gate_spikes"),
)
PACKED = (
    ({"seq_len": 1, "heads": 1, "value_heads": 1, "boundaries": 2}, "weak_gate"),
    ({"seq_len": 130, "heads": 2, "value_heads": 4, "boundaries": 5}, "strong_gate"),
)


def default(problem: Problem, **choices: Any) -> Config:
    return replace(KERNEL.default(problem, ARCHES["sm_90a"]), **choices)


@pytest.mark.parametrize("case", CASES)
def test_segments_are_right(case: str) -> None:
    problem, config = CASES[case]
    assert_right_at(Instance(OPERATOR, KERNEL, problem, config), *(PACKED if problem.use_cu_seqlens else PLACES))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key_dim", "value_dim", "precision"), [(48, 48, Precision.TF32), (64, 112, Precision.DTYPE)], ids=str
)
def test_the_default_of_odd_dims_is_right(key_dim: int, value_dim: int, precision: Precision) -> None:
    dims = {"key_dim": key_dim, "value_dim": value_dim, "precision": precision}
    problem = replace(SMALL, **dims, batch=1, seq_len=141, heads=1, value_heads=1)
    instance = Instance(OPERATOR, KERNEL, problem, default(problem))
    assert_right(instance, drawn(OPERATOR, problem, "weak_gate"), CHECKED[0])


def test_each_segment_but_the_first_is_walked_by_both_launches_at_most() -> None:
    problem = Problem(key_dim=64, value_dim=64, batch=2, heads=16, seq_len=4096)
    maps, merge, scan = KERNEL.work(problem, default(problem), H200)
    assert maps.ctas == scan.ctas == 128  # four of five segments of 32 heads
    assert maps.chain == scan.chain == 1 + 52
    assert merge.chain == 3


def test_short_keys_of_few_heads_in_tf32_are_predicted_to_gain_most() -> None:
    problem = Problem(key_dim=64, value_dim=64, batch=2, heads=16, seq_len=4096, precision=Precision.TF32)
    costs = {}
    for implementation in operators.implementations("kda"):
        if implementation.refusal(problem, H200.arch) is None:
            config = implementation.default(problem, H200.arch)
            costs[implementation.name] = uncompiled(
                implementation.plan(problem, config), implementation.work(problem, config, H200), H200
            ).cost
    assert min(costs, key=costs.__getitem__) == "segmented_fused"
    assert costs["segmented_fused"] < 0.75 * min(cost for name, cost in costs.items() if name != "segmented_fused")
