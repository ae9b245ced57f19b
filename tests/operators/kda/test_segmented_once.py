"""kda by segments that are walked once and corrected by what they start from: as exact as whole, predicted to win."""

from dataclasses import replace
from typing import Any

import pytest

from tests.operators.kda.test_segmented_fused import PACKED, PLACES
from tests.support.claims import assert_right_at
from tuner import operators
from tuner.arch import ARCHES, gpu
from tuner.evaluate.predict.cost import uncompiled
from tuner.operators.kda.problem import Precision, Problem
from tuner.operators.kda.segmented_once.config import Config
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance

OPERATOR = operators.load("kda")
KERNEL = operators.implementation("kda", "segmented_once")
H200 = gpu("H200")

SMALL = Problem(key_dim=32, value_dim=32, use_initial_state=True, output_final_state=True)
RAW = {"use_qk_l2norm_in_kernel": True, "use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True}
SOFTPLUS = {"use_gate_in_kernel": True, "use_dt_bias": True}
BASE = Config(C=16, rows=16, stages=4, partials=1, prep_groups=4, producers=4, segments=3)
NORMALISED = replace(SMALL, key_dim=64, value_dim=64, use_qk_l2norm_in_kernel=True, gate_dtype=DType.FP32)
# A covering set: each value of every tunable, and what corrections meet.
CASES = {
    "normalised_fp32_gate": (NORMALISED, replace(BASE, producers=2, segments=6)),
    "chunks_of_32": (
        NORMALISED,
        replace(BASE, C=32, rows=32, stages=2, producers=1, partials=2, segments=2),
    ),
    "unequal_dims_without_states": (
        replace(SMALL, key_dim=64, value_dim=48, use_initial_state=False, output_final_state=False),
        replace(BASE, stages=2, producers=2, prep_groups=2),
    ),
    "raw_fp16_lengths_read_again_softplus_states_v_first": (
        replace(SMALL, key_dim=48, value_dim=64, dtype=DType.FP16, state_v_first=True, **RAW, **SOFTPLUS),
        replace(BASE, prep_groups=8, stages=2, producers=2, segments=8),
    ),
    "packed": (replace(SMALL, use_cu_seqlens=True), replace(BASE, segments=5, stages=7, producers=7)),
}


def default(problem: Problem, **choices: Any) -> Config:
    return replace(KERNEL.default(problem, ARCHES["sm_90a"]), **choices)


@pytest.mark.parametrize("case", CASES)
def test_segments_are_right(case: str) -> None:
    problem, config = CASES[case]
    assert_right_at(Instance(OPERATOR, KERNEL, problem, config), *(PACKED if problem.use_cu_seqlens else PLACES))


def test_each_chunk_is_walked_once() -> None:
    problem = Problem(key_dim=64, value_dim=64, batch=2, heads=16, seq_len=4096)
    walk, correct = KERNEL.work(problem, default(problem), H200)
    assert walk.ctas == 128  # four segments of 32 heads
    assert walk.chain == 1 + 64
    assert correct.ctas == 96
    assert walk.dram_bytes + correct.dram_bytes < 1.35 * OPERATOR.cost(problem).bytes


def test_short_keys_of_few_heads_are_predicted_to_gain_most() -> None:
    problem, costs = Problem(key_dim=64, value_dim=64, batch=2, heads=16, seq_len=4096), {}
    for implementation in operators.implementations("kda"):
        config = implementation.default(problem, H200.arch)
        costs[implementation.name] = uncompiled(
            implementation.plan(problem, config), implementation.work(problem, config, H200), H200
        ).cost
    assert min(costs, key=costs.__getitem__) == "segmented_once"
    assert costs["segmented_once"] < 105_000  # clocks that 0.06 ms leaves an H200
    assert costs["segmented_once"] < 0.85 * min(cost for name, cost in costs.items() if name != "segmented_once")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"precision": Precision.TF32}, "use segmented"),
        ({"key_dim": 48, "value_dim": 48}, "use segmented_fused"),
        ({"key_dim": 128, "value_dim": 128}, "use segmented_fused"),
    ],
)
def test_what_it_does_not_serve_is_refused_by_name(fields: dict[str, Any], why: str) -> None:
    reason = KERNEL.refusal(replace(SMALL, **fields), ARCHES["sm_90a"])
    assert reason is not None and why in reason
