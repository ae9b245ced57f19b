"""kda with a warpgroup that carries the state by wgmma: as exact as mma.sync, with chunks read once for all columns."""

from dataclasses import replace
from typing import Any

import pytest
from claims import BOTH_WAYS, assert_right, assert_right_on_tails, drawn

from tuner import operators
from tuner.arch import ARCHES, gpu
from tuner.check import Job
from tuner.check_ptx import check_ptx
from tuner.dtype import DType
from tuner.nvrtc import compile
from tuner.operator import to_fields
from tuner.operators.kda.fused_wgmma_config import CARRIER_REGISTERS, CARRIERS, PRODUCER_REGISTERS, Config, threads
from tuner.operators.kda.prep_scan_config import thread_registers
from tuner.operators.kda.problem import Precision, Problem
from tuner.predict import uncompiled
from tuner.render import render
from tuner.toolkit import Options

OPERATOR = operators.load("kda")
KERNEL = operators.implementation("kda", "fused_wgmma")
ARCH = ARCHES["sm_90a"]
H200 = gpu("H200")

SMALL = Problem(key_dim=64, value_dim=128, use_initial_state=True, output_final_state=True)
PAIR, ALONE = Config(cluster=2, stages=8, producers=4), Config(cluster=1, stages=8, producers=8)
CASES = {
    "pairs_packed": (replace(SMALL, use_cu_seqlens=True), PAIR),
    "alone_v_first_with_lengths": (replace(SMALL, state_v_first=True, use_qk_l2norm_in_kernel=True), ALONE),
    "few_stages_of_long_keys_in_fp16_with_gates_and_lengths": (
        replace(
            SMALL,
            key_dim=128,
            value_dim=64,
            dtype=DType.FP16,
            use_gate_in_kernel=True,
            use_dt_bias=True,
            use_qk_l2norm_in_kernel=True,
        ),
        Config(cluster=1, stages=4, producers=4),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_warpgroup_carries_is_right(case: str) -> None:
    assert_right_on_tails(OPERATOR, KERNEL, *CASES[case])


@pytest.mark.parametrize("config", [PAIR, ALONE], ids=["pair", "alone"])
@pytest.mark.parametrize("K", [64, 128])
def test_the_declared_work_is_what_happens(K: int, config: Config) -> None:
    problem = replace(SMALL, key_dim=K, batch=1, seq_len=149, heads=1, value_heads=2)
    arrays = drawn(OPERATOR, problem, "weak_gate")
    counters = assert_right(OPERATOR, KERNEL, problem, config, arrays, BOTH_WAYS[1])[1].counters
    (work,) = KERNEL.work(problem, config, H200)
    assert work.mma == counters.mma_m16n8k16
    assert work.wgmma == counters.wgmma_m16n8k16
    assert work.barriers == counters.barriers
    assert work.l2_bytes == counters.global_read_bytes + counters.global_write_bytes
    assert work.cluster_bytes == counters.cluster_bytes
    assert counters.bank_conflicts == 0


@pytest.mark.parametrize("config", [PAIR, ALONE], ids=["pair", "alone"])
def test_the_compilers_ptx_computes_the_same(config: Config) -> None:
    job = Job("kda", "fused_wgmma", to_fields(SMALL), to_fields(config))
    verdict = check_ptx(job, ARCH, most=1)
    assert verdict.ok, verdict.reason


def test_a_block_gives_its_producers_no_more_registers_than_it_was_launched_with() -> None:
    launched = thread_registers(threads(ALONE), ARCH)
    carriers, producers = CARRIERS * CARRIER_REGISTERS, ALONE.producers * PRODUCER_REGISTERS
    assert carriers + producers <= (CARRIERS + ALONE.producers) * launched


@pytest.mark.parametrize("K", [64, 128])
def test_no_default_spills_or_waits_for_more_than_it_says(K: int) -> None:
    """ptxas says in its log where it waits for a wgmma on its own account."""
    for value_dim in (64, 128):
        problem = Problem(key_dim=K, value_dim=value_dim, use_gate_in_kernel=True, use_qk_l2norm_in_kernel=True)
        source = render(OPERATOR, KERNEL, problem, KERNEL.default(problem, ARCH))
        cubin: Any = compile(source, Options(arch=ARCH.name))
        assert cubin.entries["kda_fused_wgmma"].spills == 0
        assert "wgmma" not in cubin.log.replace("kda_fused_wgmma", "")


@pytest.mark.parametrize(("K", "producers", "fits"), [(64, 8, True), (128, 4, True), (128, 8, False)])
def test_lengths_of_long_rows_take_the_registers_of_few_producers(K: int, producers: int, fits: bool) -> None:
    problem = replace(SMALL, key_dim=K, use_qk_l2norm_in_kernel=True)
    reason = KERNEL.space(problem, ARCH).refusal(Config(cluster=1, stages=8, producers=producers))
    assert (reason is None) == fits


def test_it_is_predicted_to_cost_less_than_mma_sync_where_keys_are_long() -> None:
    problem = Problem(key_dim=128, value_dim=128, heads=64, seq_len=8192)
    others = (_cost(operators.implementation("kda", name), problem) for name in ("fused", "fused_cluster"))
    assert _cost(KERNEL, problem) < min(others)


def _cost(kernel: Any, problem: Problem) -> float:
    config = kernel.default(problem, H200.arch)
    return uncompiled(kernel.plan(problem, config), kernel.work(problem, config, H200), H200).cost


@pytest.mark.parametrize(
    ("fields", "arch", "why"),
    [
        ({}, "sm_100a", "sm_100a has no wgmma"),
        ({"precision": Precision.TF32}, "sm_90a", "others are for fused"),
        ({"key_dim": 96}, "sm_90a", "key_dim 96"),
        ({"value_dim": 96}, "sm_90a", "value_dim 96"),
    ],
)
def test_what_it_does_not_serve_is_refused_by_name(fields: dict[str, Any], arch: str, why: str) -> None:
    reason = KERNEL.refusal(replace(SMALL, **fields), ARCHES[arch])
    assert reason is not None and why in reason
