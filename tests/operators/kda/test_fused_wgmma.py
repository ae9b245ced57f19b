"""kda with warpgroups that carry the state by wgmma: as exact as mma.sync, with chunks read once for 64 columns."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.claims import BOTH_WAYS, assert_right, assert_right_on_tails, compiled, drawn
from tuner import operators
from tuner.arch import ARCHES, gpu
from tuner.compiler.render import render
from tuner.evaluate.check.checker import Job
from tuner.evaluate.check.on_ptx import check_ptx
from tuner.evaluate.predict.cost import uncompiled
from tuner.operators.kda.fused_wgmma.config import (
    CARRIER_REGISTERS,
    WARP,
    Config,
    carriers,
    few,
    producer_registers,
    threads,
)
from tuner.operators.kda.problem import Precision, Problem
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance, InstanceFields
from tuner.spec.problem import to_fields

OPERATOR = operators.load("kda")
KERNEL = operators.implementation("kda", "fused_wgmma")
ARCH = ARCHES["sm_90a"]
H200 = gpu("H200")

SMALL = Problem(key_dim=64, value_dim=128, use_initial_state=True, output_final_state=True)
PAIR, ALONE = Config(64, cluster=2, stages=8, producers=4), Config(64, cluster=1, stages=8, producers=8)
WIDE = Config(128, cluster=1, stages=8, producers=4)
EACH = pytest.mark.parametrize("config", [PAIR, ALONE, WIDE], ids=["pair", "alone", "wide"])
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
        Config(64, cluster=1, stages=4, producers=4),
    ),
    "long_keys_with_lengths_beside_gates_in_fp32": (
        replace(SMALL, key_dim=128, value_dim=64, gate_dtype=DType.FP32, use_qk_l2norm_in_kernel=True),
        Config(64, cluster=1, stages=4, producers=4),
    ),
    "wide_packed_with_gates_in_fp32": (
        replace(SMALL, key_dim=128, gate_dtype=DType.FP32, use_cu_seqlens=True, safe_gate=True),
        WIDE,
    ),
    "pairs_of_wide_v_first": (replace(SMALL, value_dim=256, state_v_first=True), replace(WIDE, cluster=2)),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_warpgroup_carries_is_right(case: str) -> None:
    assert_right_on_tails(Instance(OPERATOR, KERNEL, *CASES[case]))


@EACH
@pytest.mark.parametrize("K", [64, 128])
def test_the_declared_work_is_what_happens(K: int, config: Config) -> None:
    problem = replace(SMALL, key_dim=K, batch=1, seq_len=149, heads=1, value_heads=2)
    arrays = drawn(OPERATOR, problem, "weak_gate")
    counters = assert_right(Instance(OPERATOR, KERNEL, problem, config), arrays, BOTH_WAYS[1])[1].counters
    (work,) = KERNEL.work(problem, config, H200)
    assert work.mma == counters.mma_m16n8k16
    assert work.wgmma == counters.wgmma_m16n8k16
    assert work.barriers == counters.barriers
    assert work.l2_bytes == counters.global_read_bytes + counters.global_write_bytes
    assert work.cluster_bytes == counters.cluster_bytes
    assert counters.bank_conflicts == 0


@pytest.mark.slow
@EACH
def test_the_compilers_ptx_computes_the_same(config: Config) -> None:
    job = Job(InstanceFields("kda", "fused_wgmma", to_fields(SMALL), to_fields(config)))
    verdict = check_ptx(job, ARCH, most=1)
    assert verdict.ok, verdict.reason


def test_a_block_gives_its_producers_no_more_registers_than_it_was_launched_with() -> None:
    moving = [config for config in KERNEL.space(replace(SMALL, value_dim=256), ARCH) if not few(config)]
    assert {config.columns for config in moving} == {64, 128}
    for config in moving:
        launched = ARCH.registers_for(threads(config))
        moved = carriers(config) * CARRIER_REGISTERS + config.producers * producer_registers(config)
        assert moved <= threads(config) // WARP * launched


@pytest.mark.parametrize("K", [64, 128])
@pytest.mark.slow
def test_no_default_spills_or_waits_for_more_than_it_says(K: int) -> None:
    """ptxas says in its log where it waits for a wgmma on its own account."""
    lengths, many = {"use_qk_l2norm_in_kernel": True}, {"heads": 256}
    others: tuple[dict[str, Any], ...] = ({"value_dim": 64}, {}, {"gate_dtype": DType.FP32, "safe_gate": True}, many)
    for fields in (*(lengths | other for other in others), many):
        problem = Problem(**{"key_dim": K, "value_dim": 128, "use_gate_in_kernel": True, **fields})
        source = render(Instance.default(OPERATOR, KERNEL, problem, ARCH))
        cubin = compiled(source, ARCH.name)
        assert cubin.entries["kda_fused_wgmma"].spills == 0
        assert "wgmma" not in cubin.log.replace("kda_fused_wgmma", "")


def test_what_would_spill_is_refused() -> None:
    raw = {"key_dim": 128, "value_dim": 128, "use_qk_l2norm_in_kernel": True, "use_gate_in_kernel": True}
    problem = Problem(**raw, gate_dtype=DType.FP32)
    assert "set safe_gate or use fused" in str(KERNEL.refusal(problem, ARCH))
    assert KERNEL.refusal(replace(problem, safe_gate=True), ARCH) is None
    assert KERNEL.refusal(replace(problem, gate_dtype=DType.BF16), ARCH) is None


@pytest.mark.parametrize(
    ("K", "columns", "producers", "fits"),
    [(64, 64, 8, True), (64, 128, 4, True), (128, 64, 4, True), (128, 64, 8, False), (128, 128, 4, False)],
)
def test_lengths_of_long_rows_take_the_registers_of_few_warps(K: int, columns: int, producers: int, fits: bool) -> None:
    problem = replace(SMALL, key_dim=K, use_qk_l2norm_in_kernel=True)
    reason = KERNEL.space(problem, ARCH).refusal(Config(columns, cluster=1, stages=8, producers=producers))
    assert (reason is None) == fits


def test_blocks_are_wide_where_narrow_ones_are_more_than_the_sms() -> None:
    """Each prepares a chunk once for all of its columns, and no block waits for another to end."""
    few, many = (Problem(key_dim=128, value_dim=128, heads=heads, seq_len=8192, safe_gate=True) for heads in (66, 96))
    assert [KERNEL.default(problem, ARCH).columns for problem in (few, many)] == [64, 128]
    assert KERNEL.default(replace(many, safe_gate=False), ARCH).columns == 64, "decays of any size would spill"
    assert _cost(KERNEL, many) < _cost(KERNEL, many, columns=64, cluster=2)


def test_it_is_predicted_to_cost_less_than_mma_sync_where_keys_are_long() -> None:
    problem = Problem(key_dim=128, value_dim=128, heads=64, seq_len=8192)
    others = (_cost(operators.implementation("kda", name), problem) for name in ("fused", "fused_cluster"))
    assert _cost(KERNEL, problem) < min(others)


def _cost(kernel: Any, problem: Problem, **choices: int) -> float:
    config = replace(kernel.default(problem, H200.arch), **choices)
    return uncompiled(kernel.plan(problem, config), kernel.work(problem, config, H200), H200).cost


@pytest.mark.parametrize(
    ("fields", "arch", "why"),
    [
        ({}, "sm_100a", "sm_100a has no wgmma"),
        ({"precision": Precision.TF32}, "sm_90a", "use fused"),
        ({"key_dim": 96}, "sm_90a", "key_dim 96"),
        ({"value_dim": 96}, "sm_90a", "value_dim 96"),
    ],
)
def test_what_it_does_not_serve_is_refused_by_name(fields: dict[str, Any], arch: str, why: str) -> None:
    reason = KERNEL.refusal(replace(SMALL, **fields), ARCHES[arch])
    assert reason is not None and why in reason
