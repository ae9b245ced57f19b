"""flash_attention/wgmma: its space, its kernel on the emulator, and the bugs that the emulator must see in it."""

from dataclasses import fields, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.operators.flash_attention.wgmma_questions import (
    QUESTIONS,
    Question,
    equal_weights,
    one_column,
    wrong_columns,
    wrong_lse,
)
from tests.support.claims import assert_right_at_edges, compiled
from tests.support.injected import Bug, injected
from tuner import operators
from tuner.arch import ARCHES, gpu
from tuner.backends import emulator
from tuner.backends.emulator import Mode
from tuner.compiler.lint import Lint, lint
from tuner.compiler.render import render
from tuner.evaluate.check.checker import CHECKED
from tuner.evaluate.check.compare import errors
from tuner.operators.flash_attention.operator import Problem
from tuner.operators.flash_attention.wgmma.config import Config, consumer_registers, register_estimate
from tuner.operators.flash_attention.wgmma.work import order, shares, tiles
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance

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
    packed_heads=1,
    cluster=1,
    blocks=0,
)
NARROW = "a wgmma of N > 192 needs more than the 128 registers per thread at launch of one or three warpgroups"
OVER_BOTH = replace(BASE, overlap=2, ping_pong=False)
# Every tunable away from BASE at least once, and every kind of panels.
CASES = {
    16: replace(BASE, overlap=0, ping_pong=False, heavy_first=False),
    40: replace(OVER_BOTH, BN=48, value_columns=32, cluster=2),
    64: replace(BASE, BN=64, warpgroups=3, value_columns=64, polynomial=8),
    72: replace(BASE, value_columns=0, lazy_rescale=True),
    80: replace(BASE, BN=80, value_columns=64, stages=3, cluster=2),
    96: replace(BASE, BN=48, value_columns=32, warpgroups=1, ping_pong=False),
    112: replace(BASE, BN=64, value_columns=0, cluster=2),
    128: replace(OVER_BOTH, value_columns=64, stages=4, lazy_rescale=True, cluster=2),
    160: replace(OVER_BOTH, BN=48, value_columns=32),
    192: replace(BASE, BN=64, value_columns=64, ping_pong=False),
    256: replace(BASE, BN=48, value_columns=64, cluster=2),
}


def run(
    problem: Problem,
    config: Config,
    mode: Mode,
    kind: str = "normal",
    operator: Any = OPERATOR,
    *,
    instrumented: bool = False,
) -> Any:
    arrays = OPERATOR.inputs(problem, np.random.default_rng(0), kind)
    return arrays, *emulator.run(Instance(operator, WGMMA, problem, config), arrays, mode, instrumented=instrumented)


@pytest.mark.parametrize("arch", [name for name in ARCHES if name != "sm_90a"])
def test_only_sm_90a_is_served_and_others_are_told_why(arch: str) -> None:
    assert WGMMA.refusal(Problem(), HOPPER) is None
    assert WGMMA.refusal(Problem(), ARCHES[arch]) == f"{arch} has no wgmma instructions: sm_90a has them"


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
        (256, replace(BASE, BN=32, value_columns=64, warpgroups=1, ping_pong=False), NARROW),
        (256, replace(BASE, BN=64, value_columns=64, stages=3), "a block fits the shared memory of an SM"),
        (64, replace(BASE, warpgroups=1, value_columns=64), "ping-pong requires two warpgroups or more"),
        (64, replace(OVER_BOTH, ping_pong=True, value_columns=64), "ping-pong orders the products of overlap 1"),
        (
            64,
            replace(BASE, cluster=2, overlap=0, ping_pong=False),
            "overlap 0 is a baseline",
        ),
        (64, replace(BASE, cluster=2, warpgroups=1, ping_pong=False), "one block of two warpgroups shares as much"),
        (64, replace(BASE, cluster=2, heavy_first=False), "start with the heaviest causal row tiles"),
        (32, replace(BASE, cluster=2), "blocks load for each other only if L2 would be busy"),
    ],
)
def test_a_config_outside_the_space_is_told_the_reason(D: int, config: Config, reason: str) -> None:
    result = WGMMA.space(Problem(head_dim=D, causal=True), HOPPER).refusals(config)
    assert any(reason in entry for entry in result)


def test_the_register_rule_leaves_out_what_ptxas_was_seen_to_serialize() -> None:
    for D, BN, fits in ((72, 224, True), (72, 240, False), (128, 192, True), (64, 240, True), (64, 256, False)):
        assert (register_estimate(D, replace(BASE, BN=BN)) <= consumer_registers(BASE)) == fits


@pytest.mark.parametrize("D", HEAD_DIMS)
def test_every_head_dim_and_tunable_gives_the_right_result(D: int) -> None:
    dtype = DType.FP16 if D % 16 else DType.BF16
    position = HEAD_DIMS.index(D)
    problem = Problem(head_dim=D, dtype=dtype, causal=bool(position % 2))
    config = replace(CASES[D], heavy_first=CASES[D].heavy_first and problem.causal)
    assert WGMMA.space(problem, HOPPER).refusal(config) is None
    modes = (CHECKED[position // 2 % 2],)
    assert_right_at_edges(Instance(OPERATOR, WGMMA, problem, config), modes)


def test_a_panel_of_values_may_be_wider_than_what_is_left_of_o() -> None:
    problem = Problem(24, causal=True, batch=1, heads=1, seq_q=70, seq_k=100)  # one panel of 32 columns
    arrays, outputs, happened = run(problem, replace(BASE, value_columns=0), CHECKED[0])
    assert not happened.findings
    assert all(error.ok for error in errors(OPERATOR, problem, arrays, outputs))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "seq_q", "warpgroups"), [(16, 2, 5, 2), (12, 2, 70, 1), (64, 1, 3, 3), (4, 1, 130, 2)]
)
def test_heads_that_share_rows_come_out_right(heads: int, kv_heads: int, seq_q: int, warpgroups: int) -> None:
    problem = Problem(40, DType.BF16, True, batch=2, heads=heads, kv_heads=kv_heads, seq_q=seq_q, seq_k=75)
    config = replace(OVER_BOTH, warpgroups=warpgroups, packed_heads=64)
    arrays, outputs, happened = run(problem, config, CHECKED[0])
    assert not happened.findings
    assert all(error.ok for error in errors(OPERATOR, problem, arrays, outputs))


@pytest.mark.parametrize(
    ("D", "heads", "seq_q", "seq_k", "causal"), [(72, 3, 200, 333, False), (64, 4, 300, 170, True)]
)
def test_blocks_of_a_cluster_share_what_they_load(D: int, heads: int, seq_q: int, seq_k: int, causal: bool) -> None:
    problem = Problem(D, DType.FP16, causal, batch=1, heads=heads, kv_heads=heads // 2, seq_q=seq_q, seq_k=seq_k)
    config = replace(CASES[D], cluster=2, packed_heads=2, heavy_first=causal)
    arrays, outputs, happened = run(problem, config, CHECKED[D % 16 // 8])
    assert not happened.findings
    assert all(error.ok for error in errors(OPERATOR, problem, arrays, outputs))


@pytest.mark.parametrize("before", ["mbarrier_wait(barriers.keys_full(keys.stage), keys.parity);", "await_values();"])
def test_a_lane_that_comes_late_to_what_its_block_skips_waits_for_no_round_that_is_past(
    before: str, tmp_path: Path
) -> None:
    """No product brings it together with its warp: six tiles are the other block's alone, in two stages."""
    late = "for (int i = 0; i < 400 * (threadIdx.x % 32 == 5); ++i) __nanosleep(20);\n    "
    line = before + "\n    __syncwarp();"
    operator = injected(OPERATOR, tmp_path, CONSUMER, line, late + line)
    problem = Problem(40, DType.BF16, True, batch=1, heads=1, kv_heads=1, seq_q=384, seq_k=384)
    config = replace(BASE, warpgroups=3, ping_pong=False, value_columns=32, cluster=2)
    arrays, outputs, happened = run(problem, config, Mode(True, "random", "random", 1), operator=operator)
    assert not happened.findings
    assert all(error.ok for error in errors(OPERATOR, problem, arrays, outputs))


PERSISTENT = {
    "over_values": replace(BASE, warpgroups=3, blocks=3),
    "over_both": replace(OVER_BOTH, stages=3, blocks=3),
    "by_two": replace(BASE, ping_pong=False, warpgroups=1, blocks=2, packed_heads=2),
    "in_pairs": replace(BASE, BN=48, blocks=4, cluster=2),
    "in_pairs_over_both": replace(OVER_BOTH, BN=96, stages=4, blocks=2, cluster=2, packed_heads=2),
}


@pytest.mark.parametrize("name", PERSISTENT)
def test_blocks_that_walk_over_row_tiles_come_out_right(name: str) -> None:
    problem = Problem(40, DType.BF16, True, batch=2, heads=4, kv_heads=2, seq_q=300, seq_k=200)
    for mode in (Mode(), CHECKED[len(name) % 2]):
        arrays, outputs, happened = run(problem, PERSISTENT[name], mode, instrumented=True)  # built once
        assert not happened.findings
        assert all(error.ok for error in errors(OPERATOR, problem, arrays, outputs))


def test_the_small_problems_of_a_check_see_persistent_blocks_walk() -> None:
    config = replace(BASE, blocks=132)
    plans = [WGMMA.plan(problem, config).launches[1].grid[0] for problem in OPERATOR.tails(Problem(head_dim=40))]
    alone = [WGMMA.plan(problem, BASE).launches[0].grid for problem in OPERATOR.tails(Problem(head_dim=40))]
    assert any(blocks < prod(grid) for blocks, grid in zip(plans, alone, strict=True))


def test_a_few_queries_of_many_heads_share_one_tile_by_default() -> None:
    problem = Problem(128, heads=32, kv_heads=4, batch=1, seq_q=4, seq_k=4096)
    config = WGMMA.default(problem, HOPPER)
    alone = WGMMA.work(problem, replace(config, packed_heads=1), gpu("H200"))[0]
    assert WGMMA.plan(problem, config).launches[0].grid == (4, 1, 1)
    assert WGMMA.work(problem, config, gpu("H200"))[0].wgmma == alone.wgmma / 8


def test_a_pair_of_blocks_reads_keys_and_values_of_l2_once_by_default() -> None:
    problem = Problem(128, batch=4, heads=16, seq_q=8192)
    config = WGMMA.default(problem, HOPPER)
    paired, alone = (WGMMA.work(problem, replace(config, cluster=c), gpu("H200"))[0] for c in (2, 1))
    assert config.cluster == 2
    assert 0.50 < paired.l2_bytes / alone.l2_bytes < 0.52
    assert WGMMA.default(replace(problem, causal=True), HOPPER).cluster == 1, "the block with fewer keys would wait"


HOSTILE = Problem(head_dim=72, causal=True, batch=1, heads=2, kv_heads=1, seq_q=230, seq_k=190)
LAZY = replace(BASE, lazy_rescale=True, polynomial=4)


@pytest.mark.parametrize("kind", OPERATOR.input_kinds)
def test_hostile_inputs_come_out_right_with_lazy_scaling_and_polynomials(kind: str) -> None:
    arrays, outputs, happened = run(HOSTILE, LAZY, Mode(), kind)
    assert not happened.findings
    assert all(error.ok for error in errors(OPERATOR, HOSTILE, arrays, outputs))


def rising_scores(last: int, first: int) -> Any:
    """Inputs whose scores rise from the last key, which is visited first, to the first; odd rows have half of them."""
    arrays = OPERATOR.inputs(HOSTILE, np.random.default_rng(0), "one_hot")
    q, k = np.zeros_like(arrays["q"]), np.zeros_like(arrays["k"])
    q[:, :, :, 0] = 1.0 - 0.5 * (np.arange(HOSTILE.seq_q) % 2)[None, :, None]
    k[..., 0] = np.linspace(first, last, HOSTILE.seq_k)[None, :, None]
    return arrays | {"q": q, "k": k}


@pytest.mark.parametrize(("last", "first"), [(-2400, -600), (-900, 900), (600, 2400)])
def test_maxima_of_either_sign_are_raised_before_exponentials_overflow(last: int, first: int) -> None:
    arrays = rising_scores(last, first)
    outputs, _ = emulator.run(Instance(OPERATOR, WGMMA, HOSTILE, LAZY), arrays, Mode())
    assert all(error.ok for error in errors(OPERATOR, HOSTILE, arrays, outputs))


@pytest.mark.parametrize(
    ("old", "new", "last", "first"),
    [
        ("score >= 0 ? bits(score) : kNone", "bits(score)", -2400, -600),
        ("most[h] >= 0 ? most[h] : least", "most[h]", -2400, -600),
        ("most[0] >= bound[0] || most[1] >= bound[1]", "bound[0] == kNone", 600, 2400),
    ],
    ids=["a_bound_below_zero_is_compared", "negative_scores_are_ordered_as_integers", "maxima_are_raised_once_only"],
)
def test_an_error_in_the_bounds_of_maxima_is_seen(old: str, new: str, last: int, first: int, tmp_path: Path) -> None:
    arrays = rising_scores(last, first)
    operator = injected(OPERATOR, tmp_path, "wgmma/softmax.cuh", old, new)
    outputs, _ = emulator.run(Instance(operator, WGMMA, HOSTILE, LAZY), arrays, Mode())
    assert not all(error.ok for error in errors(OPERATOR, HOSTILE, arrays, outputs))


def test_views_of_another_layout_need_no_copy() -> None:
    problem = Problem(head_dim=40, causal=True, batch=2, heads=4, kv_heads=2, seq_q=19, seq_k=35)
    arrays = OPERATOR.inputs(problem, np.random.default_rng(5), "normal")
    views = arrays | {name: arrays[name].transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3) for name in "qkv"}
    dense, _ = emulator.run(Instance(OPERATOR, WGMMA, problem, BASE), arrays, Mode())
    strided, _ = emulator.run(Instance(OPERATOR, WGMMA, problem, BASE), views, Mode())
    assert views["q"].strides != arrays["q"].strides
    assert np.array_equal(dense["o"], strided["o"])


@pytest.mark.parametrize("question", [q for q in QUESTIONS if q.name in ("D40-V32", "D72-V16", "D72-Vmixed-pair")])
def test_what_a_device_will_be_asked_has_the_answer_that_the_questions_expect(question: Question) -> None:
    given = equal_weights(question.problem), one_column(question.problem, question.head_dim - 1)
    instance = Instance(OPERATOR, WGMMA, question.problem, question.config)
    run = [emulator.run(instance, arrays, Mode())[0] for arrays in given]
    assert wrong_columns(given[0], run[0]["o"]) == []
    assert not wrong_lse(given[1], question.head_dim - 1, run[1]["lse"])
    assert wrong_lse(given[1], 0, run[1]["lse"]), "another column of K has another answer"


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.name)
def test_what_a_device_will_be_asked_is_a_config_that_a_search_may_pick(question: Question) -> None:
    assert WGMMA.space(question.problem, ARCHES["sm_90a"]).refusal(question.config) is None


WALKING = replace(BASE, blocks=1)  # two row tiles one after the other
PAIRED = replace(BASE, cluster=2)  # and side by side
PAIRS_WALKING = replace(PAIRED, blocks=2)


CONSUMER, OVERLAP, OUTPUT = "wgmma/consumer.cuh", "wgmma/overlap.cuh", "wgmma/output.cuh"
TILE, PANELS, KERNEL, POSTS = "panels/tile.cuh", "panels/panels.cuh", "wgmma/kernel.cu.jinja", "wgmma/posts.cuh"
SCHEDULE, BLOCK, KEYS = "panels/schedule.cuh", "wgmma/block.cuh", "panels/keys.cuh"
RELEASE = "    if (issued) release(barriers.values_empty(released));\n"
WAIT = "    wgmma_wait<kInFlight>();\n    fence_registers(r_o);\n"
PREPARE = (
    "    end_basic_block(rows.exponentiated(tile));\n    rows.template wait_values<0>();\n    rows.prepare(r_s);\n"
)
PREPARE_EARLY = (
    "    rows.prepare(r_s);\n    end_basic_block(rows.exponentiated(tile));\n    rows.template wait_values<0>();\n"
)
V_STRIDES = "wgmma_descriptor(s_tile, 2 * columns * kRows, 16 * columns,"
TELL = "if (lane < Tile::kCluster) mbarrier_arrive_cluster(map_shared_rank(empty, lane));"
LEAVE = "  if (Tile::kCluster > 1) cluster_sync();"
SKIP = "  __device__ __forceinline__ void skip() {\n    mbarrier_wait(barriers.keys_full(keys.stage), keys.parity);\n"
POSTED = "    mbarrier_wait(barriers.posted(n % Tile::kPosts), n / Tile::kPosts % 2);\n"
UNREAD = "    mbarrier_wait(barriers.read(), n % 2 ^ 1);\n"
SAY_READ = "    mbarrier_arrive_cluster(map_shared_rank(barriers.read(), 0));\n"
TOLD = "    mbarrier_wait(barriers.drawn(), n % 2);\n"
EMPTIED = "  if (Tile::kPersistent && thread == 0) mbarrier_arrive(rows.barriers.query_empty(warpgroup));\n"
BUGS = (
    Bug("scores_read_too_early", OVERLAP, "wait_scores<1>(r_s)", "wait_scores<2>(r_s)", "wgmma"),
    Bug("values_released_before_they_are_read", CONSUMER, WAIT + RELEASE, RELEASE + WAIT, "in_flight"),
    Bug("no_wait_for_values", CONSUMER, "mbarrier_wait(barriers.values_full(values.stage), values.parity)", "", "race"),
    Bug(
        "no_wait_for_an_empty_stage",
        TILE,
        "mbarrier_wait(barriers.keys_empty(at.stage), at.parity ^ 1);",
        "",
        "mbarrier",
    ),
    Bug(
        "a_warpgroup_counts_as_one",
        TILE,
        "keys_empty(s), Tile::kCluster * Tile::kConsumers / 32",
        "keys_empty(s), 2",
        "deadlock",
    ),
    Bug("zeros_are_not_expected", TILE, "Rows::loaded_bytes(Tile::BN)", "2 * Tile::D * Tile::BN", "deadlock"),
    Bug("p_packed_while_it_is_read", OVERLAP, PREPARE, PREPARE_EARLY, "wgmma"),
    Bug("no_fence_before_the_second_product", CONSUMER, "(r_o);\n    wgmma_fence();", "(r_o);", "wgmma"),
    Bug("nobody_has_the_first_turn", OVERLAP, "if (tile > 0 && last) rows.pass_turn();", "", "deadlock"),
    Bug("no_proxy_fence_before_the_store", OUTPUT, "  fence_proxy_async();\n", "", "proxy_fence"),
    Bug("no_barrier_before_the_store", OUTPUT, "named_barrier_sync(8 + warpgroup, 128);  // O", "// O", "race"),
    Bug("no_wait_for_the_store", OUTPUT, "cp_async_bulk_wait_read<0>();", "", "outstanding"),
    Bug(
        "q_loaded_over_an_o_that_is_being_stored",
        TILE,
        "mbarrier_wait(barriers.query_empty(w), parity ^ 1);",
        "",
        "in_flight",
    ),
    Bug("nobody_gives_the_place_of_q_back", OUTPUT, EMPTIED, "", "deadlock"),
    Bug("nobody_clears_the_ticket", KERNEL, "*ticket = 0;", ";", "uninitialized_read"),
    Bug("tickets_skip_a_row_tile", POSTS, "schedule.takers + ", "schedule.takers + 1 + ", "o"),
    Bug("a_post_is_read_before_it_is_there", POSTS, POSTED, "", "uninitialized_read"),
    Bug("the_next_post_over_the_one_that_is_read", POSTS, "s_work[post]", "s_work[0]", "race"),
    Bug("sums_of_the_row_tile_before", BLOCK, "rows.softmax = {};", "", "lse"),
    Bug("the_other_block_is_not_told", CONSUMER, TELL, "if (lane == 0) mbarrier_arrive(empty);", "deadlock", PAIRED),
    Bug("a_share_for_its_own_block_only", PANELS, "(1 << kCluster) - 1", "1 << cluster_rank()", "deadlock", PAIRED),
    Bug("both_load_the_same_share", PANELS, ": cluster_rank() *", ": 0 *", "o", PAIRED),
    Bug(
        "the_other_block_may_have_no_barriers_yet",
        BLOCK,
        "    cluster_sync();\n}",
        "    __syncthreads();\n}",
        "mbarrier",
        PAIRED,
    ),
    Bug("a_block_leaves_before_the_other_has_told_it", BLOCK, LEAVE, "", "cluster_exit", PAIRED),
    Bug("blocks_load_for_their_own_rows_only", SCHEDULE, "s_work.loaded = max(", "0 * max(", "deadlock", PAIRED),
    Bug(
        "a_skipped_tile_is_not_awaited",
        CONSUMER,
        SKIP,
        "  __device__ __forceinline__ void skip() {\n",
        "in_flight",
        PAIRED,
    ),
    Bug("a_skipped_tile_is_attended", BLOCK, "attend(rows, work.tiles);", "attend(rows, work.loaded);", "o", PAIRED),
    Bug("each_block_draws_for_itself", POSTS, "|| (kSharesTickets && cluster_rank() != 0)", "", "o", PAIRS_WALKING),
    Bug("only_the_first_block_is_told", POSTS, "rank < Tile::kCluster", "rank < 1", "deadlock", PAIRS_WALKING),
    Bug("told_over_what_was_not_read", POSTS, UNREAD, "", "race", PAIRS_WALKING),
    Bug("nobody_says_that_it_was_read", POSTS, SAY_READ, "", "deadlock", PAIRS_WALKING),
    Bug("a_number_is_read_before_it_is_there", POSTS, TOLD, "", "race", PAIRS_WALKING),
    Bug("strides_of_v_swapped", PANELS, V_STRIDES, "wgmma_descriptor(s_tile, 16 * columns, 2 * columns * kRows,", "o"),
    Bug("no_stride_between_panels_of_v", PANELS, V_STRIDES, "wgmma_descriptor(s_tile, 0, 16 * columns,", "o"),
    Bug("o_is_not_rescaled", CONSUMER, "rescale(r_o, softmax.factor);", ";", "o"),
    Bug("a_key_beyond_the_last", KEYS, "ahead + 1) : seq_k,", "ahead + 1) : seq_k + 1,", "lse"),
    Bug("a_key_beyond_the_diagonal", KEYS, "ahead + 1) : seq_k,", "ahead + 2) : seq_k,", "lse"),
    Bug("the_diagonal_is_not_masked", KEYS, ": seq_k) / BN};", ": seq_k) / BN + 1};", "lse"),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_in_the_kernel_is_seen(bug: Bug, tmp_path: Path) -> None:
    wrong_number = bug.seen in ("o", "lse")
    causal = bug.name != "a_key_beyond_the_last"  # the diagonal hides it
    config = bug.config or WALKING
    seq_q = 130 if config.cluster == 1 else 200  # clusters: row tiles of unequal lengths
    heads = 4 if config is PAIRS_WALKING else 1
    problem = Problem(head_dim=72, causal=causal, batch=1, heads=heads, seq_q=seq_q, seq_k=200)
    arrays, outputs, happened = run(
        problem,
        config,
        Mode() if wrong_number else CHECKED[0],
        operator=bug.put_into(OPERATOR, tmp_path),
    )
    wrong = {error.name for error in errors(OPERATOR, problem, arrays, outputs) if not error.ok}
    assert bug.seen in (wrong if wrong_number else {finding.kind for finding in happened.findings})


LSE_BYTES = 4 * 2 * 130


@pytest.mark.parametrize(  # every two values of different arguments meet
    ("D", "causal", "packed_heads"),
    [(40, False, 1), (40, True, 2), (72, True, 1), (72, False, 2), (96, False, 1), (96, True, 2)],
)
def test_declared_work_is_what_the_emulator_counts(D: int, causal: bool, packed_heads: int) -> None:
    problem = Problem(head_dim=D, causal=causal, batch=1, heads=2, kv_heads=1, seq_q=130, seq_k=200)
    config = replace(CASES[D], packed_heads=packed_heads)
    _, _, happened = run(problem, config, Mode())
    (work,), counted = WGMMA.work(problem, config, gpu("H200")), happened.counters
    assert work.wgmma == counted.wgmma_m16n8k16
    assert work.l2_bytes - LSE_BYTES == counted.bulk_bytes


@pytest.mark.parametrize(("packed_heads", "seq_k", "cluster"), [(1, 200, 1), (2, 99, 2)])
def test_blocks_take_row_tiles_in_the_declared_order(packed_heads: int, seq_k: int, cluster: int) -> None:
    problem = Problem(40, causal=True, batch=3, heads=4, kv_heads=2, seq_q=330, seq_k=seq_k)
    config = replace(CASES[40], packed_heads=packed_heads, cluster=cluster)
    counted = products_of_blocks(run(problem, config, Mode())[2])
    taken = order(problem, config).ravel()
    np.testing.assert_array_equal(counted, counted.sum() / taken.sum() * taken)


def products_of_blocks(happened: Any) -> Any:
    return happened.block_counters[:, [field.name for field in fields(happened.counters)].index("wgmma_m16n8k16")]


@pytest.mark.parametrize("cluster", [1, 2])
def test_a_persistent_grid_computes_every_row_tile_once(cluster: int) -> None:
    problem = Problem(40, causal=True, batch=3, heads=4, kv_heads=2, seq_q=330, seq_k=200)
    config = replace(CASES[40], blocks=8, cluster=cluster)
    _, _, happened = run(problem, config, Mode())
    (_, work), (alone,) = (WGMMA.work(problem, variant, gpu("H200")) for variant in (config, replace(config, blocks=0)))
    assert (work.ctas, work.wgmma) == (8, happened.counters.wgmma_m16n8k16)
    assert work.wgmma == alone.wgmma


def test_blocks_that_take_row_tiles_as_they_become_free_end_nearly_together() -> None:
    problem = Problem(128, causal=True, batch=8, heads=16, seq_q=2048)
    result = shares(problem, replace(WGMMA.default(problem, HOPPER), blocks=132))
    assert len(result) == 132
    assert result.max() < 1.03 * result.mean()


def test_sections_of_a_persistent_grid_hold_every_row_tile_once() -> None:
    problem = Problem(256, causal=True, batch=2, heads=5, seq_q=400, seq_k=9000)
    config = replace(BASE, blocks=132)
    assert shares(problem, config).sum() == 10 * tiles(problem, config).sum()
    assert shares(problem, config).max() <= tiles(problem, config).max()  # fewer row tiles than blocks


def test_a_product_of_values_is_exact_and_that_of_scores_is_padded_to_16() -> None:
    work = {D: WGMMA.work(Problem(head_dim=D), replace(BASE, BN=64), gpu("H200"))[0].wgmma for D in (64, 72, 80)}
    assert work[72] / work[64] == (80 + 72) / (64 + 64)
    assert 4096 * work[80] == OPERATOR.cost(Problem(head_dim=80)).flops


@pytest.mark.slow
def test_a_descriptor_is_one_addition() -> None:
    """Made anew for each wgmma, a descriptor took two shifts and two masks."""
    problem = Problem(head_dim=128)
    cubin = compiled(render(Instance.default(OPERATOR, WGMMA, problem, HOPPER)), "sm_90a")
    mix = cubin.instruction_mix("flash_attention_wgmma")
    wgmmas = sum(count for name, count in mix.items() if name.startswith("HGMMA"))
    assert mix["USHF"] + mix["ULOP3"] < wgmmas


@pytest.mark.slow
def test_defaults_and_two_other_makes_pass_the_lint() -> None:
    """`python benchmarks/toolkits.py --configs 12` checks every head_dim and more configs."""
    for i, D in enumerate(COMPILED):
        problem = Problem(head_dim=D, dtype=(DType.BF16, DType.FP16)[i % 2], causal=bool(i // 2 % 2), kv_heads=4)
        default = WGMMA.default(problem, HOPPER)
        over_both = replace(default, BN=32, overlap=2 if D <= 224 else 1, ping_pong=False)
        walking = replace(default, BN=48, blocks=132, lazy_rescale=True, packed_heads=4)
        for config in (default, (over_both, walking)[i % 2]):
            assert WGMMA.space(problem, HOPPER).refusal(config) is None
            source = render(Instance(OPERATOR, WGMMA, problem, config))
            assert lint(compiled(source, "sm_90a"), "flash_attention_wgmma") == Lint(), source.text
