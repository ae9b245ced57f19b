"""flash_attention/wgmma: its space, its kernel on the emulator, and the bugs that the emulator must see in it."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tuner import emulator, operators
from tuner.arch import ARCHES, gpu
from tuner.check import CHECKED, Job, check
from tuner.dtype import DType
from tuner.emulator import Mode
from tuner.lint import Lint, lint
from tuner.nvrtc import Compiler
from tuner.operator import to_fields
from tuner.operators.flash_attention.operator import Problem
from tuner.operators.flash_attention.wgmma_config import Config, consumer_registers, register_estimate
from tuner.render import render
from tuner.result import Failed
from tuner.toolkit import Options
from tuner.verify import errors

OPERATOR = operators.load("flash_attention")
WGMMA = operators.implementation("flash_attention", "wgmma")
HOPPER = ARCHES["sm_90a"]
COMPILED = (40, 72, 128, 256)
HEAD_DIMS = (16, 40, 64, 72, 80, 96, 112, 128, 160, 192, 256)

BASE = Config(
    BN=32,
    warpgroups=2,
    stages=2,
    overlap=1,
    ping_pong=True,
    value_columns=16,
    polynomial=0,
    lazy_rescale=False,
    heavy_first=True,
)
OVER_BOTH = replace(BASE, overlap=2, ping_pong=False)
# Every tunable away from BASE at least once, and every kind of panels.
CASES = {
    16: replace(BASE, overlap=0, ping_pong=False, heavy_first=False),
    40: replace(OVER_BOTH, BN=48, value_columns=32),
    64: replace(BASE, BN=64, warpgroups=3, value_columns=64, polynomial=4),
    72: replace(BASE, value_columns=0, lazy_rescale=True),
    80: replace(BASE, BN=80, value_columns=64, stages=3),
    96: replace(BASE, BN=48, value_columns=32, warpgroups=1, ping_pong=False),
    112: replace(BASE, BN=64, value_columns=0),
    128: replace(OVER_BOTH, value_columns=64, stages=4, lazy_rescale=True),
    160: replace(OVER_BOTH, BN=48, value_columns=32),
    192: replace(BASE, BN=64, value_columns=64, ping_pong=False),
    256: replace(BASE, BN=48, value_columns=64),
}


def run(problem: Problem, config: Config, mode: Mode, kind: str = "normal", operator: Any = OPERATOR) -> Any:
    arrays = OPERATOR.inputs(problem, np.random.default_rng(0), kind)
    return arrays, *emulator.run(operator, WGMMA, problem, config, arrays, mode)


# ---- the space


@pytest.mark.parametrize("arch", [name for name in ARCHES if name != "sm_90a"])
def test_only_sm_90a_is_served_and_others_are_told_why(arch: str) -> None:
    assert WGMMA.refusal(Problem(), HOPPER) is None
    assert WGMMA.refusal(Problem(), ARCHES[arch]) == f"{arch} has no wgmma: it is an instruction of sm_90a"


def test_a_head_dim_narrower_than_a_tile_is_refused_by_value() -> None:
    assert "head_dim 8" in WGMMA.refusal(Problem(head_dim=8), HOPPER)


@pytest.mark.parametrize("D", range(16, 257, 8))
def test_every_head_dim_has_a_default_within_a_space_of_many(D: int) -> None:
    problem = Problem(head_dim=D, causal=True)
    space = WGMMA.space(problem, HOPPER)
    assert 30 < len(space) < 20_000
    assert space.refusal(WGMMA.default(problem, HOPPER)) is None


@pytest.mark.parametrize(
    ("D", "config", "reason"),
    [
        (128, replace(BASE, BN=208, value_columns=64), "O, scores and P fit the consumers' registers"),
        (256, replace(BASE, BN=64, value_columns=64, stages=3), "the tiles fit the shared memory of an SM"),
        (64, replace(BASE, warpgroups=1, value_columns=64), "ping-pong takes two warpgroups or more"),
        (64, replace(OVER_BOTH, ping_pong=True, value_columns=64), "ping-pong orders the products of overlap 1"),
    ],
)
def test_a_config_outside_the_space_is_told_the_reason(D: int, config: Config, reason: str) -> None:
    assert reason in WGMMA.space(Problem(head_dim=D, causal=True), HOPPER).refusals(config)


def test_the_register_rule_leaves_out_what_ptxas_was_seen_to_serialize() -> None:
    for D, BN, fits in ((72, 224, True), (72, 240, False), (128, 192, True), (64, 240, True), (64, 256, False)):
        assert (register_estimate(D, replace(BASE, BN=BN)) <= consumer_registers(BASE)) == fits


# ---- the kernel on the emulator


@pytest.mark.parametrize("D", HEAD_DIMS)
def test_every_head_dim_and_tunable_gives_the_right_result(D: int) -> None:
    dtype = DType.FP16 if D % 16 else DType.BF16
    position = HEAD_DIMS.index(D)
    problem = Problem(head_dim=D, dtype=dtype, causal=bool(position % 2))
    config = replace(CASES[D], heavy_first=CASES[D].heavy_first and problem.causal)
    assert WGMMA.space(problem, HOPPER).refusal(config) is None
    modes = (CHECKED[position // 2 % 2],)
    verdict = check(Job("flash_attention", "wgmma", to_fields(problem), to_fields(config), modes))
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize("kind", OPERATOR.input_kinds)
def test_hostile_inputs_come_out_right_with_lazy_scaling_and_polynomials(kind: str) -> None:
    problem = Problem(head_dim=72, causal=True, batch=1, heads=2, kv_heads=1, seq_q=230, seq_k=190)
    config = replace(BASE, lazy_rescale=True, polynomial=4)
    arrays, outputs, happened = run(problem, config, Mode(), kind)
    assert not happened.findings
    assert all(error.ok for error in errors(OPERATOR, problem, arrays, outputs))


def test_views_of_another_layout_need_no_copy() -> None:
    problem = Problem(head_dim=40, causal=True, batch=2, heads=4, kv_heads=2, seq_q=19, seq_k=35)
    arrays = OPERATOR.inputs(problem, np.random.default_rng(5), "normal")
    views = arrays | {name: arrays[name].transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3) for name in "qkv"}
    dense, _ = emulator.run(OPERATOR, WGMMA, problem, BASE, arrays, Mode())
    strided, _ = emulator.run(OPERATOR, WGMMA, problem, BASE, views, Mode())
    assert views["q"].strides != arrays["q"].strides
    assert np.array_equal(dense["o"], strided["o"])


# ---- bugs that must be seen


@dataclass(frozen=True)
class Bug:
    """`old` becomes `new` in a file; `seen` is the finding's kind, or the output that comes out wrong."""

    name: str
    file: str
    old: str
    new: str
    seen: str


CONSUMER, OVERLAP, OUTPUT = "wgmma_consumer.cuh", "wgmma_overlap.cuh", "wgmma_output.cuh"
TILE, PANELS, KERNEL = "wgmma_tile.cuh", "wgmma_panels.cuh", "wgmma.cu.jinja"
VALUES_THERE = "mbarrier_wait(barriers.values_full(values.stage), values.parity);"
STAGE_EMPTY = "mbarrier_wait(barriers.keys_empty(stage), at.parity ^ 1);"
RELEASE = "    if (threadIdx.x % 32 == 0) mbarrier_arrive(barriers.values_empty(released));\n"
WAIT = "    wgmma_wait<kInFlight>();\n    fence_registers(r_o);\n    if (!issued) return;\n"
PREPARE = "    end_basic_block(tile);\n    rows.template wait_values<0>();\n    rows.prepare(r_s);\n"
PREPARE_EARLY = "    rows.prepare(r_s);\n    end_basic_block(tile);\n    rows.template wait_values<0>();\n"
V_STRIDES = "wgmma_descriptor(address, 2 * columns * kRows, 16 * columns,"
BUGS = (
    Bug("scores_read_too_early", OVERLAP, "wait_scores<1>(r_s)", "wait_scores<2>(r_s)", "wgmma"),
    Bug("values_released_before_they_are_read", CONSUMER, WAIT + RELEASE, RELEASE + WAIT, "in_flight"),
    Bug("no_wait_for_values", CONSUMER, "mbarrier_wait(barriers.values_full(values.stage), values.parity)", "", "race"),
    Bug(
        "no_wait_for_an_empty_stage", TILE, "mbarrier_wait(barriers.keys_empty(stage), at.parity ^ 1);", "", "mbarrier"
    ),
    Bug("a_warpgroup_counts_as_one", TILE, "keys_empty(s), Tile::kConsumers / 32", "keys_empty(s), 2", "deadlock"),
    Bug("zeros_are_not_expected", TILE, "Rows::loaded_bytes(Tile::BN)", "2 * Tile::D * Tile::BN", "deadlock"),
    Bug("p_packed_while_it_is_read", OVERLAP, PREPARE, PREPARE_EARLY, "wgmma"),
    Bug("no_fence_before_the_second_product", CONSUMER, "(r_o);\n    wgmma_fence();", "(r_o);", "wgmma"),
    Bug("nobody_has_the_first_turn", OVERLAP, "if (tile > 0 && last) rows.pass_turn();", "", "deadlock"),
    Bug("no_proxy_fence_before_the_store", OUTPUT, "  fence_proxy_async();\n", "", "proxy_fence"),
    Bug("no_barrier_before_the_store", OUTPUT, "named_barrier_sync(8 + warpgroup, 128);  // O", "// O", "race"),
    Bug("no_wait_for_the_store", OUTPUT, "cp_async_bulk_wait_read<0>();", "", "outstanding"),
    Bug("strides_of_v_swapped", PANELS, V_STRIDES, "wgmma_descriptor(address, 16 * columns, 2 * columns * kRows,", "o"),
    Bug("no_stride_between_panels_of_v", PANELS, V_STRIDES, "wgmma_descriptor(address, 0, 16 * columns,", "o"),
    Bug("o_is_not_rescaled", CONSUMER, "rescale<Tile::kLazyRescale>(r_o, softmax.factor);", "", "o"),
    Bug("a_key_beyond_the_last", CONSUMER, "ahead + 1) : seq_k,", "ahead + 1) : seq_k + 1,", "lse"),
    Bug("a_key_beyond_the_diagonal", CONSUMER, "ahead + 1) : seq_k,", "ahead + 2) : seq_k,", "lse"),
    Bug("the_diagonal_is_not_masked", KERNEL, "attended / Choice::BN;", "attended / Choice::BN + 1;", "lse"),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_in_the_kernel_is_seen(bug: Bug, tmp_path: Path) -> None:
    broken = replace(OPERATOR, folder=tmp_path / "flash_attention")
    shutil.copytree(OPERATOR.folder, broken.folder)
    text = (broken.folder / bug.file).read_text()
    assert bug.old in text
    (broken.folder / bug.file).write_text(text.replace(bug.old, bug.new))
    wrong_number = bug.seen in ("o", "lse")
    causal = bug.name != "a_key_beyond_the_last"  # the diagonal hides it
    problem = Problem(head_dim=72, causal=causal, batch=1, heads=1, seq_q=130, seq_k=200)
    arrays, outputs, happened = run(problem, BASE, Mode() if wrong_number else CHECKED[0], operator=broken)
    wrong = {error.name for error in errors(OPERATOR, problem, arrays, outputs) if not error.ok}
    assert bug.seen in (wrong if wrong_number else {finding.kind for finding in happened.findings})


# ---- the declared work

LSE_BYTES = 4 * 2 * 130


@pytest.mark.parametrize("D", [40, 72, 96])
@pytest.mark.parametrize("causal", [False, True])
def test_declared_work_is_what_the_emulator_counts(D: int, causal: bool) -> None:
    problem = Problem(head_dim=D, causal=causal, batch=1, heads=2, kv_heads=1, seq_q=130, seq_k=200)
    _, _, happened = run(problem, CASES[D], Mode())
    work, counted = WGMMA.work(problem, CASES[D], gpu("H200")), happened.counters
    assert work.wgmma == counted.wgmma_m16n8k16
    assert work.l2_bytes - LSE_BYTES == counted.bulk_bytes


def test_a_product_of_values_is_exact_and_that_of_scores_is_padded_to_16() -> None:
    work = {D: WGMMA.work(Problem(head_dim=D), replace(BASE, BN=64), gpu("H200")).wgmma for D in (64, 72, 80)}
    assert work[72] / work[64] == (80 + 72) / (64 + 64)
    assert 4096 * work[80] == OPERATOR.cost(Problem(head_dim=80)).flops


# ---- machine code


@pytest.mark.slow
def test_defaults_pass_the_lint() -> None:
    jobs = []
    for i, D in enumerate(COMPILED):
        problem = Problem(head_dim=D, dtype=(DType.BF16, DType.FP16)[i % 2], causal=bool(i // 2 % 2))
        jobs.append((render(OPERATOR, WGMMA, problem, WGMMA.default(problem, HOPPER)), Options(arch="sm_90a")))
    with Compiler(workers=2) as compiler:
        for position, cubin in compiler.compile_many(jobs):
            assert not isinstance(cubin, Failed), cubin.log
            assert lint(cubin, "flash_attention_wgmma") == Lint(), COMPILED[position]
