"""flash_attention_backward/wgmma: its space, its kernels on the emulator, and the bugs that the emulator must see."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backends.ptx.test_wgmma_descriptors import k_major, mn_major, written
from tests.operators.flash_attention_backward.wgmma_backward_questions import (
    ASKED,
    QUESTIONS,
    Question,
    uniform,
    wrong_columns,
)
from tests.support.claims import assert_right_at_edges, compiled
from tests.support.injected import Bug
from tuner import operators
from tuner.arch import ARCHES, gpu
from tuner.backends import emulator
from tuner.backends.emulator import Buffer, Mode, build
from tuner.compiler.lint import Lint, lint
from tuner.compiler.render import headers, render
from tuner.compiler.source import Source
from tuner.evaluate.check.checker import CHECKED
from tuner.evaluate.check.compare import errors
from tuner.operators.flash_attention_backward.problem import Problem
from tuner.operators.flash_attention_backward.wgmma.config import (
    Config,
    kv_register_estimate,
    q_register_estimate,
    registers,
)
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance
from tuner.spec.parameters import scalars

OPERATOR = operators.load("flash_attention_backward")
WGMMA = operators.implementation("flash_attention_backward", "wgmma")
HOPPER = ARCHES["sm_90a"]
PASSES = ("flash_attention_backward_dkv", "flash_attention_backward_dq")

BASE = Config(
    BM_kv=32,
    kv_warpgroups=2,
    kv_stages=2,
    kv_split=False,
    kv_chained=True,
    BN_q=32,
    q_warpgroups=2,
    q_stages=2,
    columns=64,
)
SPLIT = replace(BASE, kv_split=True, kv_chained=False)
# Every tunable away from BASE at least once, and every width of panels.
CASES = {
    16: replace(BASE, BM_kv=16, kv_chained=False, BN_q=80, q_stages=4, columns=16),
    40: replace(BASE, BM_kv=48, kv_warpgroups=1, q_warpgroups=1, columns=32),
    64: replace(BASE, kv_warpgroups=3, kv_stages=3, BN_q=64, q_warpgroups=3),
    72: replace(BASE, BM_kv=64, kv_stages=4, BN_q=48, q_stages=3, columns=16),
    96: replace(BASE, BM_kv=64, BN_q=96, columns=32),
    128: replace(BASE, BM_kv=64, kv_chained=False, kv_stages=3, BN_q=112),
    160: replace(SPLIT, kv_stages=3, columns=32),
    256: replace(SPLIT, BM_kv=64, BN_q=48),
}


def run(problem: Problem, config: Config, mode: Mode, kind: str = "normal", operator: Any = OPERATOR) -> Any:
    drawn = OPERATOR.inputs(problem, np.random.default_rng(0), kind)
    arrays = drawn | scalars(OPERATOR, problem, drawn)
    return arrays, *emulator.run(Instance(operator, WGMMA, problem, config), arrays, mode)


def test_other_architectures_and_narrow_heads_are_refused_by_value() -> None:
    assert WGMMA.refusal(Problem(), HOPPER) is None
    assert WGMMA.refusal(Problem(), ARCHES["sm_120a"]) == "sm_120a has no wgmma instructions: sm_90a has them"
    assert "head_dim 8" in WGMMA.refusal(Problem(head_dim=8), HOPPER)


@pytest.mark.parametrize("D", range(16, 257, 8))
def test_every_head_dim_has_a_default_within_a_space_of_many(D: int) -> None:
    problem = Problem(head_dim=D, causal=True)
    space = WGMMA.space(problem, HOPPER)
    assert 50 < len(space) < 30_000
    assert space.refusal(WGMMA.default(problem, HOPPER)) is None


@pytest.mark.parametrize(
    ("D", "config", "reason"),
    [
        (128, replace(BASE, BM_kv=64), "sums, scores and products of dK and dV fit the registers"),
        (128, replace(BASE, BN_q=128), "sums, scores and products of dQ fit the registers"),
        (256, replace(SPLIT, BM_kv=64, kv_stages=3), "a block of dK and dV fits the shared memory of an SM"),
        (128, replace(SPLIT, kv_warpgroups=3), "two warpgroups share the keys of a split"),
        (128, replace(SPLIT, kv_chained=True), "only a block that sums both dK and dV can be chained"),
        (64, SPLIT, "a split is worthwhile only for D > 96"),
    ],
)
def test_a_config_outside_the_space_is_told_the_reason(D: int, config: Config, reason: str) -> None:
    assert reason in WGMMA.space(Problem(head_dim=D, causal=True), HOPPER).refusals(config)


def test_the_register_rules_leave_out_what_ptxas_was_seen_to_serialize() -> None:
    seen = ((64, 96, True, True), (64, 112, True, False), (64, 112, False, True), (128, 64, True, False))
    for D, BM, chained, fits in (*seen, (128, 64, False, True), (128, 80, False, False)):
        config = replace(BASE, BM_kv=BM, kv_chained=chained)
        assert (kv_register_estimate(D, D, config) <= registers(2, packed=False)) == fits
    for D, BN, fits in ((64, 144, True), (64, 160, False), (192, 80, True), (192, 96, False)):
        assert (q_register_estimate(D, replace(BASE, BN_q=BN)) <= registers(2, packed=False)) == fits


@pytest.mark.parametrize("D", CASES)
def test_gradients_are_right_for_every_make_of_tiles(D: int) -> None:
    position = list(CASES).index(D)
    sizes = {"batch": 1, "heads": 2, "kv_heads": 1, "seq_q": 130, "seq_k": 150}
    problem = Problem(D, DType.FP16 if D % 16 else DType.BF16, bool(position % 2), **sizes)
    assert WGMMA.space(problem, HOPPER).refusal(CASES[D]) is None
    arrays, outputs, happened = run(problem, CASES[D], CHECKED[position // 2 % 2])
    assert not happened.findings
    assert all(error.ok for error in errors(OPERATOR, problem, arrays, outputs))
    assert happened.counters.bank_conflicts == 0


@pytest.mark.slow
@pytest.mark.parametrize("config", [BASE, replace(SPLIT, columns=16)], ids=["both", "split"])
def test_every_edge_comes_out_right_in_every_order_of_threads(config: Config) -> None:
    problem = Problem(head_dim=104, causal=True)
    assert_right_at_edges(Instance(OPERATOR, WGMMA, problem, config), CHECKED)


@pytest.mark.parametrize("kind", OPERATOR.input_kinds)
@pytest.mark.parametrize("D", [72, 136])
def test_hostile_inputs_come_out_right_where_queries_are_more_than_keys(kind: str, D: int) -> None:
    problem = Problem(D, causal=True, batch=1, heads=4, kv_heads=2, seq_q=230, seq_k=190)
    arrays, outputs, happened = run(problem, SPLIT if D > 128 else BASE, Mode(), kind)
    assert not happened.findings
    assert all(error.ok for error in errors(OPERATOR, problem, arrays, outputs))


def test_views_of_another_layout_need_no_copy() -> None:
    problem = Problem(40, causal=True, batch=2, heads=4, kv_heads=2, seq_q=19, seq_k=35)
    arrays, dense, _ = run(problem, BASE, Mode())
    names = ("dout", "q", "k", "v", "o")
    views = {name: arrays[name].transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3) for name in names}
    strided, _ = emulator.run(Instance(OPERATOR, WGMMA, problem, BASE), arrays | views, Mode())
    assert all(np.array_equal(dense[name], strided[name]) for name in ("dq", "dk", "dv"))


@pytest.mark.parametrize("question", [question for question in QUESTIONS if question.name == "D72-P64-N16"])
def test_what_a_device_will_be_asked_has_the_answer_that_the_questions_expect(question: Question) -> None:
    problem, last = question.problem, question.head_dim - 1
    for arrays in (uniform(problem), *(ask(problem, last) for ask in ASKED)):
        result, _ = emulator.run(Instance(OPERATOR, WGMMA, problem, question.config), arrays, Mode())
        assert wrong_columns(problem, arrays, result) == {}
    for ask in ASKED:
        assert wrong_columns(problem, ask(problem, 0), result), "another question has another answer"


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.name)
def test_what_a_device_will_be_asked_is_a_config_that_a_search_may_pick(question: Question) -> None:
    assert WGMMA.space(question.problem, HOPPER).refusal(question.config) is None


TILES = {f"tile<{D}, {width}>": (D, width) for D in (16, 40, 72, 96, 128) for width in (16, 32, 64) if width < 2 * D}
WORDS, ROWS = 64, 48
TEXT = """
#include "flash_attention/panels/panels.cuh"
#include "thread.cuh"
template <int kD, int kColumns>
__device__ void tile(unsigned long long* out) {
  using P = Panels<kD, kColumns, true>;
  *out++ = P::kCount;
  for (int k = 0; k < kD; k += 16) *out++ = P::template k_major<48>(3072, k);
  for (int k = 0; k < 48; k += 16) *out++ = P::template mn_major<48>(3072, k, 0);
}
"""


@cache
def descriptors() -> dict[str, list[int]]:
    """By tile: how many panels it has, then the descriptors of scores and of sums."""
    calls = "".join(f"  {name}(out + {WORDS * i});\n" for i, name in enumerate(TILES))
    text = f'{TEXT}extern "C" __global__ void root(unsigned long long* out) {{\n  if (threadIdx.x) return;\n{calls}}}\n'
    source = Source(("root",), text, headers(text, OPERATOR.folder, "host"), "host")
    with Buffer.of("out", np.zeros(WORDS * len(TILES), np.uint64), writable=True) as out:
        build(source, checked=False).launch("root", (1, 1, 1), 32, 0, [out], Mode())
        rows = out.view(np.uint64, (len(TILES), WORDS)).tolist()
    return dict(zip(TILES, rows, strict=True))


@pytest.mark.parametrize("name", TILES)
def test_scores_and_sums_read_what_tma_wrote_of_one_tile(name: str) -> None:
    D, width = TILES[name]
    count, *words = descriptors()[name]
    memory = written(D, ROWS, [(width, width * p, 2 * ROWS * width * p) for p in range(count)])
    steps = -(-D // 16)
    for step, row, col in product(range(steps), range(ROWS), range(16)):
        assert memory[k_major(words[step], row, col)] == (row, 16 * step + col)
    for step, col, row in product(range(ROWS // 16), range(D), range(16)):
        assert memory[mn_major(words[steps + step], col, row)] == (16 * step + row, col)


SUMS, STEPS, PASS = "wgmma/sums.cuh", "panels/rows.cuh", "panels/pass.cuh"
STORE, SIGHT, KERNEL = "panels/store.cuh", "panels/sight.cuh", "wgmma/kernel.cu.jinja"
NEXT_HEAD = ", g_values += head_values"
FIRST_TILE = "max(key0 - reach, 0) / Pass::kTile"
OWN_BARRIER = "Pass::kSplit ? 8 : 1 + rows.warpgroup, kReaders"
EMPTY = "mbarrier_wait(barriers.empty(role, at.stage), at.parity ^ 1);"
DRAINED = replace(BASE, kv_chained=False)
BUGS = (
    Bug("scores_read_too_early", SUMS, "wait<1>(r_s)", "wait<2>(r_s)", "wgmma"),
    Bug("products_read_too_early", SUMS, "wait<1>(r_product)", "wait<2>(r_product)", "dk"),
    Bug("q_released_too_early", SUMS, "wait<Pass::kChained>", "wait<1>", "in_flight", DRAINED),
    Bug("p_rounded_while_it_is_read", SUMS, "wait<0>(r_second)", "wait<1>(r_second)", "wgmma", SPLIT),
    Bug("no_wait_for_a_tile", STEPS, "    await(kRole, at);\n", "", "in_flight"),
    Bug("values_released_before_all_lanes_have_read", STEPS, "__syncwarp();", ";", "race"),
    Bug("shift_taken_for_delta", STEPS, "kind * N + n * 8", "n * 8", "dk"),
    Bug("no_wait_for_an_empty_stage", PASS, EMPTY, "", "mbarrier"),
    Bug("values_of_the_first_head_for_all", PASS, NEXT_HEAD, "", "dk"),
    Bug("a_query_before_the_diagonal", SIGHT, "bound[0] = mine - reach;", "bound[0] = mine - reach - 1;", "dk"),
    Bug("a_key_behind_the_diagonal", SIGHT, "mine + reach + 1)", "mine + reach + 2)", "dq"),
    Bug("no_proxy_fence_before_the_store", STORE, "  fence_proxy_async();\n", "", "proxy_fence"),
    Bug("stored_over_what_the_other_half_reads", STORE, OWN_BARRIER, "1 + rows.warpgroup, 128", "race", SPLIT),
    Bug("the_first_tile_is_left_out", KERNEL, FIRST_TILE, f"{FIRST_TILE} + (key0 > 0)", "dk"),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_in_a_kernel_is_seen(bug: Bug, tmp_path: Path) -> None:
    problem = Problem(head_dim=104, causal=True, batch=1, heads=2, kv_heads=1, seq_q=150, seq_k=170)
    arrays, outputs, happened = run(problem, bug.config or BASE, CHECKED[0], operator=bug.put_into(OPERATOR, tmp_path))
    wrong = {error.name for error in errors(OPERATOR, problem, arrays, outputs) if not error.ok}
    assert bug.seen in wrong | {finding.kind for finding in happened.findings}


@pytest.mark.parametrize("D", [40, 72, 160])
@pytest.mark.parametrize("causal", [False, True])
def test_declared_work_is_what_the_emulator_counts(D: int, causal: bool) -> None:
    problem = Problem(head_dim=D, causal=causal, batch=2, heads=2, kv_heads=1, seq_q=130, seq_k=200)
    _, _, happened = run(problem, CASES[D], Mode())
    _, *passes = WGMMA.work(problem, CASES[D], gpu("H200"))
    assert sum(work.wgmma for work in passes) == happened.counters.wgmma_m16n8k16
    plain = (
        32 * 64 * CASES[D].q_warpgroups * WGMMA.plan(problem, CASES[D]).launches[2].grid[0] * 2 * 2
    )  # shifts, deltas
    assert sum(work.l2_bytes for work in passes) - plain == happened.counters.bulk_bytes


def test_a_split_computes_scores_twice_and_all_else_once() -> None:
    problem = Problem(head_dim=128, heads=8, seq_q=1024)
    both, split = (WGMMA.work(problem, config, gpu("H200"))[1].wgmma for config in (BASE, SPLIT))
    assert split / both == 5 / 4


def test_the_products_of_both_passes_are_seven_where_the_mathematics_needs_five() -> None:
    problem = Problem(head_dim=64, batch=1, heads=1, seq_q=1536)
    executed = sum(work.wgmma for work in WGMMA.work(problem, WGMMA.default(problem, HOPPER), gpu("H200"))) * 4096
    assert executed / OPERATOR.cost(problem).flops == pytest.approx(7 / 5, rel=0.05)


@pytest.mark.slow
def test_defaults_pass_the_lint() -> None:
    """`python benchmarks/toolkits.py --configs 12` checks every head_dim and more configs."""
    for problem in _asked():
        cubin = compiled(render(Instance.default(OPERATOR, WGMMA, problem, HOPPER)), "sm_90a")
        assert [lint(cubin, entry) for entry in PASSES] == [Lint(), Lint()]


def _asked() -> Iterator[Problem]:
    for D in (40, 64, 128, 256):
        yield Problem(head_dim=D, dtype=DType.FP16 if D == 40 else DType.BF16, causal=D != 128, kv_heads=4)
