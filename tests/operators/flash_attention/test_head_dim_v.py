"""flash_attention with values, and so outputs, of another width than queries and keys."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from tuner import operators
from tuner.arch import ARCHES, gpu
from tuner.backends import emulator
from tuner.backends.emulator import Mode
from tuner.evaluate.check.compare import errors
from tuner.operators.flash_attention.operator import Problem
from tuner.spec.command_line import minimal_fields
from tuner.spec.dtype import DType, Precision
from tuner.spec.instance import Instance

OPERATOR = operators.load("flash_attention")
HOPPER = ARCHES["sm_90a"]
MLA = Problem(head_dim=192, head_dim_v=128)
LSE_BYTES = 4 * 4 * 70


@dataclass(frozen=True)
class Case:
    implementation: str
    D: int
    DV: int
    tile: dict[str, Any]  # of its config, away from the default
    statics: dict[str, Any]

    @property
    def problem(self) -> Problem:
        sizes = {"batch": 1, "heads": 4, "kv_heads": 2, "seq_q": 70, "seq_k": 150}
        return Problem(head_dim=self.D, head_dim_v=self.DV, **self.statics, **sizes)


SMALL = {"BM": 64, "BN": 32, "warps": 4, "d_warps": 1, "smem_budget": HOPPER.smem_per_block}
TF32 = {"dtype": DType.FP32, "precision": Precision.TF32}
# Rings of an even and an odd number of slots, Q in their place, warps that share rows, O wider than the place of Q;
# panels of one width and of several, clusters.
CASES = {
    "naive": Case("naive", 24, 40, {}, {"dtype": DType.FP16}),
    "warps_that_share_rows": Case("mma_sync", 192, 128, SMALL | {"BN": 64, "d_warps": 2, "stages": 3}, {}),
    "query_in_the_ring": Case(
        "mma_sync", 40, 72, SMALL | {"q_in_registers": True, "smem_budget": 10240}, {"causal": True}
    ),
    "four_slots": Case("mma_sync", 72, 40, SMALL | {"stages": 4}, {"causal": True, "dtype": DType.FP16}),
    "splits": Case("split_keys", 40, 72, {"splits": 2, "stages": 3}, {"causal": True}),
    "rounded_on_arrival": Case("mma_tf32", 72, 40, SMALL, TF32),
    "one_panel": Case(
        "wgmma", 72, 40, {"BN": 64, "warpgroups": 2, "value_columns": 64, "cluster": 2}, {"dtype": DType.FP16}
    ),
    "many_panels": Case("wgmma", 40, 72, {"BN": 48, "warpgroups": 2, "value_columns": 0}, {"causal": True}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_values_of_another_width_give_the_right_result_for_the_declared_work(case: Case) -> None:
    kernel, problem = operators.implementation("flash_attention", case.implementation), case.problem
    config = replace(kernel.default(problem, HOPPER), **case.tile)
    arrays = OPERATOR.inputs(problem, np.random.default_rng(0), "normal")
    outputs, happened = emulator.run(Instance(OPERATOR, kernel, problem, config), arrays, Mode(checked=True))
    assert outputs["o"].shape == (1, 70, 4, case.DV)
    assert not happened.findings
    assert all(error.ok for error in errors(OPERATOR, problem, arrays, outputs))
    works, counted = kernel.work(problem, config, gpu("sm_90a")), happened.counters
    halves = counted.mma_m16n8k8 + counted.mma_m16n8k8_tf32
    assert sum(work.mma for work in works) == counted.mma_m16n8k16 + halves / 2
    assert sum(work.wgmma for work in works) == counted.wgmma_m16n8k16
    if case.implementation != "naive":  # which reads through L1
        moved = (
            counted.bulk_bytes + LSE_BYTES
            if counted.bulk_bytes
            else counted.global_read_bytes + counted.global_write_bytes
        )
        assert sum(work.l2_bytes for work in works) == moved
    assert counted.bank_conflicts == 0


def test_packed_sequences_and_a_softcap_take_values_of_another_width() -> None:
    problem = Problem(head_dim=64, head_dim_v=128, causal=True, use_cu_seqlens=True, use_softcap=True, batch=1)
    problem = replace(problem, heads=2, kv_heads=1, seq_q=70, seq_k=150, boundaries=4)
    kernel = operators.implementation("flash_attention", "wgmma")
    config = replace(kernel.default(problem, HOPPER), BN=32, warpgroups=1, ping_pong=False)
    arrays = OPERATOR.inputs(problem, np.random.default_rng(0), "normal")
    outputs, happened = emulator.run(Instance(OPERATOR, kernel, problem, config), arrays, Mode(checked=True))
    assert not happened.findings
    assert all(error.ok for error in errors(OPERATOR, problem, arrays, outputs))


def test_the_floor_counts_both_widths() -> None:
    cost = OPERATOR.cost(replace(MLA, batch=1, heads=2, kv_heads=1, seq_q=3, seq_k=5))
    assert cost.flops == 2 * (192 + 128) * 2 * 3 * 5
    assert cost.bytes == 2 * (192 + 128) * (2 * 3 + 5) + 4 * 2 * 3


def test_columns_of_values_do_not_touch_each_other() -> None:
    wide = Problem(head_dim=16, head_dim_v=40, batch=1, heads=2, seq_q=5, seq_k=7)
    arrays = OPERATOR.inputs(wide, np.random.default_rng(0), "normal")
    narrow = OPERATOR.reference(replace(wide, head_dim_v=24), arrays | {"v": arrays["v"][..., :24]})
    np.testing.assert_array_equal(OPERATOR.reference(wide, arrays)["o"][..., :24], narrow["o"])


def test_a_problem_has_one_name_whether_the_width_of_its_values_is_said_or_not() -> None:
    assert Problem(head_dim=72) == Problem(head_dim=72, head_dim_v=72)
    assert minimal_fields(Problem(head_dim=72, head_dim_v=72)) == {"head_dim": 72}
    assert minimal_fields(MLA) == {"head_dim": 192, "head_dim_v": 128}
