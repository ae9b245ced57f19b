"""Work against the floor, and what `tuner inspect` prints of it."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.support.counted import by_launch, global_bytes
from tuner import operators
from tuner.arch import gpu
from tuner.backends import emulator
from tuner.backends.emulator import Mode
from tuner.cli.app import build
from tuner.evaluate.predict import least_work
from tuner.operators.kda.fused import implementation as fused
from tuner.spec.instance import Instance
from tuner.spec.operator import Cost

KDA = operators.load("kda")
H200 = gpu("H200")


def inspected(*arguments: str) -> Any:
    done = CliRunner().invoke(build(), ["inspect", *arguments, "--gpu", "H200", "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["prep_scan", "fused"])
def test_what_inspect_prints_is_what_the_emulator_counts(name: str) -> None:
    sizes = {"key_dim": 32, "value_dim": 32, "seq_len": 45, "heads": 1}
    options = [f"--{field.replace('_', '-')}={size}" for field, size in sizes.items()]
    *launches, together = inspected("kda", "--implementation", name, *options)["work"]
    implementation, problem = operators.implementation("kda", name), KDA.problem(**sizes)
    config = implementation.default(problem, H200.arch)
    arrays = KDA.inputs(problem, np.random.default_rng(0), "weak_gate")
    _, run = emulator.run(Instance(KDA, implementation, problem, config), arrays, Mode(checked=True))
    for shown, counted in zip(launches, by_launch(run, implementation.plan(problem, config)), strict=True):
        assert shown["mma"] == counted.mma
        assert shown["l2_bytes"] == global_bytes(counted)
    assert together["mma"] == run.counters.mma


@pytest.mark.parametrize(("name", "most"), [("fused", 1.1), ("prep_scan", 2.5)])
@pytest.mark.parametrize("dim", [64, 128])
def test_kda_stays_near_the_floor_without_a_workspace_and_below_two_and_a_half_with_one(
    name: str, most: float, dim: int
) -> None:
    problem = KDA.problem(key_dim=dim, value_dim=dim)
    implementation = operators.implementation("kda", name)
    config = implementation.default(problem, H200.arch)
    whole = least_work.total(least_work.declared(Instance(KDA, implementation, problem, config), H200))
    assert 1 <= whole.bytes_ratio <= most
    assert whole.bytes_ratio == whole.dram_bytes / KDA.cost(problem).bytes


def test_the_floor_of_kda_is_1282_bytes_a_token_and_head() -> None:
    least = KDA.cost(KDA.problem(key_dim=128, value_dim=128))
    assert least.bytes / least.items == 1282
    assert least.item == "token and head"


def test_the_serial_part_of_a_step_is_told_where_it_was_counted() -> None:
    prep, scan, _ = inspected("kda", "--implementation", "prep_scan", "--config", "partials=2,C=16")["work"]
    assert (scan["steps"], scan["step_mma"], scan["step_other"]) == (512, 128 / 16 / 2 + 1, 3)
    assert (prep["steps"], prep["step_mma"]) == (1, 0)


def test_a_step_of_fused_is_the_slower_of_preparing_a_chunk_in_turn_and_carrying_the_state_through_it() -> None:
    problem = KDA.problem(key_dim=256, value_dim=256)
    config = fused.Config(C=16, BV=64, rows=16, stages=4, partials=1, prep_groups=4, producers=1)
    steps = []
    for producers in (1, 2, 4):
        (work,) = fused.work(problem, replace(config, producers=producers), H200)
        steps.append(work.step_mma + work.step_other)
    carrying = 256 / 16 + 1 + 2
    assert steps[0] == 2 * steps[1] > 2 * carrying
    assert steps[2] == carrying


def test_every_operator_is_held_against_its_floor() -> None:
    done = CliRunner().invoke(build(), ["inspect", "flash_attention", "--gpu", "sm_80"])
    assert "declared work a query and head" in done.stdout


def test_an_operator_that_needs_no_products_has_a_floor_of_bytes_alone() -> None:
    problem = KDA.problem(key_dim=32, value_dim=32, seq_len=45, heads=1)
    implementation, bytes_only = operators.implementation("kda", "naive"), replace(KDA, cost=lambda _: Cost(0, 100))
    config = implementation.default(problem, H200.arch)
    (whole,) = least_work.declared(Instance(bytes_only, implementation, problem, config), H200)
    assert whole.mma_ratio == 0
    assert whole.bytes_ratio == whole.dram_bytes / 100


# Dense products of 16-bit operands with sums in fp32, and bandwidth, as NVIDIA's data sheets have them.
SHEETS = {
    "A100": (312e12, 2.039e12),
    "RTX 4090": (165.2e12, 1.008e12),
    "H200": (989e12, 4.8e12),
    "B200": (2.25e15, 8e12),
}


@pytest.mark.parametrize(("name", "flops", "nbytes"), [(name, *sheet) for name, sheet in SHEETS.items()])
def test_a_second_of_what_a_data_sheet_promises_is_the_whole_of_a_device(
    name: str, flops: float, nbytes: float
) -> None:
    result = least_work.rates(Cost(flops=flops, bytes=nbytes / 2), gpu(name).device, 1.0)
    assert (result.flops, result.bytes) == (flops, nbytes / 2)
    assert result.of_tensor_peak == pytest.approx(1, rel=0.05) and result.of_bandwidth == pytest.approx(0.5, rel=0.05)
