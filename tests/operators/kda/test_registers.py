"""kda where a warp makes a chunk's scores of registers, of gates that are safe: as exact, with fewer accesses."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.claims import BOTH_WAYS, CHECKED, assert_no_spills, assert_right, assert_right_on_tails, drawn
from tuner import operators
from tuner.arch import ARCHES, gpu
from tuner.backends import emulator
from tuner.evaluate.check.checker import Job
from tuner.evaluate.check.on_ptx import check_ptx
from tuner.evaluate.predict.cost import uncompiled
from tuner.operators.kda.prep_scan.config import by_registers
from tuner.operators.kda.problem import Problem
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance, InstanceFields
from tuner.spec.problem import to_fields

pytestmark = pytest.mark.slow  # every case builds large kernels

OPERATOR = operators.load("kda")
ARCH, H200 = ARCHES["sm_90a"], gpu("H200")
NAMES = ("fused", "fused_cluster", "fused_wgmma")
SAFE = Problem(key_dim=64, value_dim=128, safe_gate=True, use_initial_state=True, output_final_state=True)
CASES = {
    "short": SAFE,
    "long_fp16_with_lengths": replace(
        SAFE, key_dim=128, dtype=DType.FP16, gate_dtype=DType.FP16, use_qk_l2norm_in_kernel=True
    ),
    "long_packed_with_another_gate": replace(SAFE, key_dim=128, gate_dtype=DType.FP16, use_cu_seqlens=True),
}


def instance(name: str, problem: Problem, **choices: Any) -> Instance:
    default = Instance.default(OPERATOR, operators.implementation("kda", name), problem, ARCH)
    return replace(default, config=replace(default.config, **choices))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", NAMES)
def test_scores_of_registers_are_right(name: str, case: str) -> None:
    assert_right_on_tails(instance(name, CASES[case]))


@pytest.mark.parametrize("kind", OPERATOR.input_kinds)
def test_they_are_right_for_every_kind_of_gate_that_is_safe(kind: str) -> None:
    problem = replace(SAFE, key_dim=128, batch=1, seq_len=77, heads=1)
    arrays = drawn(OPERATOR, problem, kind)
    arrays["g"] = np.maximum(arrays["g"].astype(np.float32), -5).astype(arrays["g"].dtype)
    assert_right(instance("fused", problem), arrays, CHECKED[0])


def test_beside_few_registers_a_warp_takes_fewer_channels_at_once() -> None:
    assert_right_on_tails(instance("fused_wgmma", replace(SAFE, key_dim=128), cluster=1, producers=8))


@pytest.mark.parametrize("K", [64, 128])
@pytest.mark.parametrize("name", NAMES)
def test_the_declared_products_are_multiplied_and_tiles_have_no_bank_conflict(name: str, K: int) -> None:
    """M, which is stored turned, has eight a chunk, and the decay four."""
    made = instance(name, replace(SAFE, key_dim=K, value_dim=64, batch=1, seq_len=149, heads=1, value_heads=1))
    counters = assert_right(made, drawn(OPERATOR, made.problem, "weak_gate"), BOTH_WAYS[1])[1].counters
    (work,) = made.implementation.work(made.problem, made.config, H200)
    assert work.mma == counters.mma_m16n8k16
    blocks = work.ctas // getattr(made.config, "cluster", 1)  # that prepare each chunk
    assert counters.bank_conflicts <= 12 * 10 * blocks


@pytest.mark.parametrize("name", NAMES)
def test_tokens_do_not_see_the_future(name: str) -> None:
    made = instance(name, replace(SAFE, key_dim=128, batch=1, seq_len=40, heads=1))
    arrays = drawn(OPERATOR, made.problem, "strong_gate")
    changed = arrays | {argument: arrays[argument].copy() for argument in ("q", "k", "v", "g", "beta")}
    for argument in ("q", "k", "v", "g", "beta"):
        changed[argument][:, 21:] = -4.5
    before, after = (emulator.run(made, variant, CHECKED[0])[0]["o"][:, :21] for variant in (arrays, changed))
    np.testing.assert_array_equal(before, after)


def test_the_compilers_ptx_computes_the_same() -> None:
    made = instance("fused", replace(SAFE, key_dim=128))
    verdict = check_ptx(
        Job(InstanceFields("kda", "fused", to_fields(made.problem), to_fields(made.config))), ARCH, most=1
    )
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize("fields", [{}, {"key_dim": 128}, {"key_dim": 128, "use_qk_l2norm_in_kernel": True}], ids=str)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_no_default_spills_and_each_is_predicted_to_gain(name: str, fields: dict[str, Any]) -> None:
    kernel, problem = operators.implementation("kda", name), replace(SAFE, heads=64, seq_len=8192, **fields)
    assert_no_spills(OPERATOR, kernel, problem, "sm_90a")
    asked = replace(problem, safe_gate=False)
    config = kernel.default(asked, ARCH)
    costs = [uncompiled(kernel.plan(p, config), kernel.work(p, config, H200), H200).cost for p in (problem, asked)]
    assert costs[0] < 0.98 * costs[1]


def test_gates_that_are_no_operands_are_summed_before() -> None:
    chunk = instance("fused", SAFE).config
    assert by_registers(SAFE, chunk)
    for fields in ({"safe_gate": False}, {"gate_dtype": DType.FP32}, {"use_gate_in_kernel": True}, {"key_dim": 32}):
        assert not by_registers(replace(SAFE, **fields), chunk)
