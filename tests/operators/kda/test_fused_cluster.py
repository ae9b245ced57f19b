"""kda in clusters whose blocks prepare chunks in turn, each for all: as exact as alone, and made once."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.claims import BOTH_WAYS, assert_right, assert_right_on_tails, drawn
from tuner import operators
from tuner.arch import ARCHES, gpu
from tuner.evaluate.check.checker import Job
from tuner.evaluate.check.on_ptx import check_ptx
from tuner.evaluate.predict.cost import uncompiled
from tuner.operators.kda.fused_cluster.config import Config
from tuner.operators.kda.fused_cluster.work import cluster_bytes
from tuner.operators.kda.problem import Precision, Problem
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance, InstanceFields
from tuner.spec.problem import to_fields

OPERATOR = operators.load("kda")
KERNEL = operators.implementation("kda", "fused_cluster")
H200 = gpu("H200")

SMALL = Problem(key_dim=32, value_dim=64, use_initial_state=True, output_final_state=True)
BASE = Config(C=16, BV=16, cluster=4, rows=16, stages=8, partials=1, prep_groups=4, producers=2)
# Every tunable away from its default at least once.
CASES = {
    "four_blocks_packed": (replace(SMALL, use_cu_seqlens=True), BASE),
    "chunk32_rows32_two_partials": (
        replace(SMALL, state_v_first=True),
        Config(C=32, BV=32, cluster=2, rows=32, stages=2, partials=2, prep_groups=8, producers=1),
    ),
    "two_pairs_a_head_of_fp16_with_several_warps_a_group": (
        replace(SMALL, key_dim=48, dtype=DType.FP16, use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True),
        replace(BASE, cluster=2, stages=4, prep_groups=8),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_clusters_are_right(case: str) -> None:
    assert_right_on_tails(Instance(OPERATOR, KERNEL, *CASES[case]))


def test_the_declared_work_is_what_happens() -> None:
    problem, config = replace(SMALL, batch=1, seq_len=149, heads=1, value_heads=2), BASE
    arrays = drawn(OPERATOR, problem, "weak_gate")
    counters = assert_right(Instance(OPERATOR, KERNEL, problem, config), arrays, BOTH_WAYS[1])[1].counters
    (work,) = KERNEL.work(problem, config, H200)
    assert work.mma == counters.mma_m16n8k16
    assert work.barriers == counters.barriers
    assert work.l2_bytes == counters.global_read_bytes + counters.global_write_bytes
    assert work.cluster_bytes == cluster_bytes(problem, config) == counters.cluster_bytes


@pytest.mark.slow
def test_the_compilers_ptx_computes_the_same() -> None:
    job = Job(InstanceFields("kda", "fused_cluster", to_fields(SMALL), to_fields(BASE)))
    verdict = check_ptx(job, ARCHES["sm_90a"], most=1)
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize("heads", [32, 64])
def test_what_is_shared_is_predicted_to_save_more_than_copying_it_costs_where_keys_are_long(heads: int) -> None:
    problem = Problem(key_dim=128, value_dim=128, heads=heads, seq_len=8192)
    alone, shared = (_cost(operators.implementation("kda", name), problem) for name in ("fused", "fused_cluster"))
    assert shared < alone


def _cost(kernel: Any, problem: Problem) -> float:
    config = kernel.default(problem, H200.arch)
    return uncompiled(kernel.plan(problem, config), kernel.work(problem, config, H200), H200).cost


@pytest.mark.parametrize(
    ("fields", "arch", "why"),
    [
        ({}, "sm_89", "sm_89 has no clusters"),
        ({"precision": Precision.TF32}, "sm_90a", "use fused"),
        ({"value_dim": 16}, "sm_90a", "value_dim 16"),
        ({"value_dim": 48}, "sm_90a", "value_dim 48"),
    ],
)
def test_what_it_does_not_serve_is_refused_by_name(fields: dict[str, Any], arch: str, why: str) -> None:
    reason = KERNEL.refusal(replace(SMALL, **fields), ARCHES[arch])
    assert reason is not None and why in reason
