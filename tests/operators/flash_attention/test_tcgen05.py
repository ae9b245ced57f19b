"""flash_attention/tcgen05: its space, its kernel on the emulator, and the bugs that the emulator must see in it."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.operators.flash_attention.wgmma_questions import equal_weights, one_column, wrong_columns, wrong_lse
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
from tuner.operators.flash_attention.tcgen05.config import Config, used_columns
from tuner.operators.flash_attention.tcgen05.work import tiles
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance

OPERATOR = operators.load("flash_attention")
TCGEN05 = operators.implementation("flash_attention", "tcgen05")
BLACKWELL = ARCHES["sm_100a"]
HEAD_DIMS = (16, 40, 64, 72, 80, 96, 112, 128, 160, 192, 256)

BASE = Config(
    BN=32,
    row_tiles=2,
    stages=2,
    value_columns=16,
    polynomial=0,
    lazy_rescale=False,
    overlaid=False,
    heavy_first=True,
    packed_heads=1,
)
ONE = replace(BASE, row_tiles=1)
# Every tunable away from BASE at least once, and every kind of panels.
CASES = {
    16: replace(BASE, BN=128, heavy_first=False),
    40: replace(BASE, BN=48, value_columns=32, polynomial=4),
    64: replace(ONE, BN=64, value_columns=64, stages=4, polynomial=8),
    72: replace(BASE, BN=112, value_columns=0, lazy_rescale=True),
    80: replace(BASE, BN=80, value_columns=64, stages=3),
    96: replace(ONE, BN=48, value_columns=32, lazy_rescale=True),
    112: replace(BASE, BN=112, value_columns=0, overlaid=True),
    128: replace(BASE, BN=80, value_columns=64, lazy_rescale=True, polynomial=3),
    160: replace(BASE, BN=80, value_columns=32, overlaid=True),
    192: replace(BASE, BN=32, value_columns=64, lazy_rescale=True),
    256: replace(ONE, BN=48, value_columns=64, polynomial=16),
}


def run(problem: Problem, config: Config, mode: Mode, kind: str = "normal", operator: Any = OPERATOR) -> Any:
    arrays = OPERATOR.inputs(problem, np.random.default_rng(0), kind)
    return arrays, *emulator.run(Instance(operator, TCGEN05, problem, config), arrays, mode)


OWN = {"sm_100a", "sm_103a", "sm_110a"}


@pytest.mark.parametrize("arch", ARCHES)
def test_only_arches_with_tcgen05_are_served_and_others_are_told_why(arch: str) -> None:
    refusal = f"{arch} has no tcgen05 instructions: sm_100a, sm_103a and sm_110a have them"
    assert TCGEN05.refusal(Problem(), ARCHES[arch]) == (None if arch in OWN else refusal)


def test_a_unit_of_twice_the_rate_exponentiates_by_itself() -> None:
    chosen = {
        arch: [TCGEN05.default(Problem(head_dim=D), ARCHES[arch]).polynomial for D in (32, 64, 128)]
        for arch in ("sm_100a", "sm_103a")
    }
    assert chosen == {"sm_100a": [3, 3, 8], "sm_103a": [3, 0, 0]}


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (Problem(head_dim=8), "head_dim 8"),
        (Problem(dtype=DType.FP32), "dtype fp32"),
    ],
)
def test_what_is_not_served_is_refused_by_value(problem: Problem, said: str) -> None:
    assert said in TCGEN05.refusal(problem, BLACKWELL)


@pytest.mark.parametrize("D", range(16, 257, 8))
def test_every_head_dim_has_a_default_within_a_space_of_many(D: int) -> None:
    problem = Problem(head_dim=D, causal=True)
    space = TCGEN05.space(problem, BLACKWELL)
    config = TCGEN05.default(problem, BLACKWELL)
    assert 30 < len(space) < 20_000
    assert space.refusal(config) is None
    assert config.row_tiles == (2 if D <= 160 else 1)


@pytest.mark.parametrize(
    ("D", "config", "reason"),
    [
        (128, replace(BASE, BN=96, value_columns=64), "O, scores and P fit tensor memory"),
        (256, replace(BASE, value_columns=64), "O, scores and P fit tensor memory"),
        (256, replace(ONE, BN=96, value_columns=64), "a block fits the shared memory of an SM"),
        (
            64,
            replace(BASE, value_columns=64, overlaid=True),
            "P overwrites scores only if its own columns do not fit",
        ),
        (64, replace(BASE, value_columns=0), "several widths only where one does not divide V"),
        (16, replace(BASE, value_columns=64), "a panel of V no wider than V, or one panel"),
    ],
)
def test_a_config_outside_the_space_is_told_the_reason(D: int, config: Config, reason: str) -> None:
    result = TCGEN05.space(Problem(head_dim=D, causal=True), BLACKWELL).refusals(config)
    assert any(reason in entry for entry in result)


@pytest.mark.parametrize("D", HEAD_DIMS)
def test_every_head_dim_and_tunable_gives_the_right_result(D: int) -> None:
    dtype = DType.FP16 if D % 16 else DType.BF16
    position = HEAD_DIMS.index(D)
    problem = Problem(head_dim=D, dtype=dtype, causal=bool(position % 2))
    config = replace(CASES[D], heavy_first=CASES[D].heavy_first and problem.causal)
    assert TCGEN05.space(problem, BLACKWELL).refusal(config) is None
    modes = (CHECKED[position // 2 % 2],)
    assert_right_at_edges(Instance(OPERATOR, TCGEN05, problem, config), modes)


def assert_right(problem: Problem, config: Config, mode: Mode, kind: str = "normal") -> None:
    arrays, outputs, happened = run(problem, config, mode, kind)
    assert not happened.findings, happened.findings[0]
    assert all(error.ok for error in errors(OPERATOR, problem, arrays, outputs))


@pytest.mark.parametrize(("D", "DV"), [(24, 24), (192, 128), (40, 8), (72, 104)])
def test_values_may_be_of_another_width(D: int, DV: int) -> None:
    problem = Problem(D, causal=True, head_dim_v=DV, batch=1, heads=1, seq_q=150, seq_k=170)
    assert_right(problem, replace(BASE, value_columns=0 if DV % 16 else 64), CHECKED[0])


def test_capped_scores_come_out_right() -> None:
    problem = Problem(72, causal=True, use_softcap=True, batch=1, heads=2, seq_q=140, seq_k=160)
    assert_right(problem, CASES[72], CHECKED[1])


@pytest.mark.parametrize(
    ("heads", "kv_heads", "seq_q", "row_tiles"), [(16, 2, 5, 2), (12, 2, 70, 1), (128, 1, 3, 2), (4, 1, 130, 2)]
)
def test_heads_that_share_rows_come_out_right(heads: int, kv_heads: int, seq_q: int, row_tiles: int) -> None:
    problem = Problem(40, DType.BF16, True, batch=2, heads=heads, kv_heads=kv_heads, seq_q=seq_q, seq_k=75)
    assert_right(problem, replace(BASE, row_tiles=row_tiles, packed_heads=128), CHECKED[0])


def test_a_few_queries_of_many_heads_share_one_tile_by_default() -> None:
    problem = Problem(128, heads=32, kv_heads=4, batch=1, seq_q=4, seq_k=4096)
    config = TCGEN05.default(problem, BLACKWELL)
    alone = TCGEN05.work(problem, replace(config, packed_heads=1), gpu("B200"))[0]
    assert TCGEN05.plan(problem, config).launches[0].grid == (4, 1, 1)
    assert TCGEN05.work(problem, config, gpu("B200"))[0].tcgen05 == alone.tcgen05 / 8


@pytest.mark.parametrize(
    ("D", "config", "extents"),
    [
        (72, CASES[72], {"seq_q": 400, "seq_k": 350, "boundaries": 6, "heads": 2, "kv_heads": 1}),
        (40, replace(CASES[40], packed_heads=4), {"seq_q": 300, "boundaries": 4, "heads": 4, "kv_heads": 1}),
        (64, CASES[64], {"seq_q": 260, "boundaries": 3, "heads": 1}),
    ],
)
def test_packed_sequences_come_out_right(D: int, config: Config, extents: dict[str, int]) -> None:
    causal = D != 64
    problem = Problem(D, causal=causal, use_cu_seqlens=True, batch=1, **extents)
    assert_right(problem, replace(config, heavy_first=causal), CHECKED[D // 8 % 2])


def beside(foreign: float, mode: Mode, operator: Any = OPERATOR) -> Any:
    """O of two packed sequences around one of nothing but `foreign`, and what happened."""
    problem = Problem(72, causal=True, use_cu_seqlens=True, batch=1, heads=1, seq_q=300, boundaries=4)
    arrays = OPERATOR.inputs(problem, np.random.default_rng(3), "normal")
    arrays |= {name: np.array([0, 90, 170, 300], np.int32) for name in ("cu_seqlens_q", "cu_seqlens_k")}
    for name in "qkv":
        arrays[name][:, 90:170] = foreign
    outputs, happened = emulator.run(Instance(operator, TCGEN05, problem, CASES[72]), arrays, mode)
    return np.delete(outputs["o"], slice(90, 170), axis=1).astype(np.float32), happened


def test_a_sequence_beside_one_of_nan_gets_the_bits_that_it_gets_beside_zeros() -> None:
    (zeros, _), (nans, happened) = beside(0, Mode()), beside(np.nan, CHECKED[0])
    assert not happened.findings
    assert np.isfinite(nans).all()
    assert np.array_equal(zeros, nans)


CLEAR = "if (own >= Tile::BN) return;"


@pytest.mark.parametrize(("old", "new", "finite"), [(CLEAR, "return;", False), ("  fence_proxy_async();\n", "", True)])
def test_values_of_another_sequence_that_are_multiplied_are_seen(
    old: str, new: str, finite: bool, tmp_path: Path
) -> None:
    o, happened = beside(np.nan, CHECKED[0], injected(OPERATOR, tmp_path, "tcgen05/block.cuh", old, new))
    assert np.isfinite(o).all() == finite
    assert {finding.kind for finding in happened.findings} == ({"proxy_fence"} if finite else set())


HOSTILE = Problem(head_dim=72, causal=True, batch=1, heads=2, kv_heads=1, seq_q=230, seq_k=190)
LAZY = replace(BASE, lazy_rescale=True, polynomial=4)


@pytest.mark.parametrize("kind", OPERATOR.input_kinds)
def test_hostile_inputs_come_out_right_with_lazy_scaling_and_polynomials(kind: str) -> None:
    assert_right(HOSTILE, LAZY, Mode(), kind)


@pytest.mark.parametrize(("last", "first"), [(-2400, -600), (-900, 900), (600, 2400)])
def test_maxima_of_either_sign_are_raised_before_exponentials_overflow(last: int, first: int) -> None:
    """Scores rise from the last key, which is visited first, to the first; odd rows have half of them."""
    arrays = OPERATOR.inputs(HOSTILE, np.random.default_rng(0), "one_hot")
    q, k = np.zeros_like(arrays["q"]), np.zeros_like(arrays["k"])
    q[:, :, :, 0] = 1.0 - 0.5 * (np.arange(HOSTILE.seq_q) % 2)[None, :, None]
    k[..., 0] = np.linspace(first, last, HOSTILE.seq_k)[None, :, None]
    arrays |= {"q": q, "k": k}
    outputs, _ = emulator.run(Instance(OPERATOR, TCGEN05, HOSTILE, LAZY), arrays, Mode())
    assert all(error.ok for error in errors(OPERATOR, HOSTILE, arrays, outputs))


def test_views_of_another_layout_need_no_copy() -> None:
    problem = Problem(head_dim=40, causal=True, batch=2, heads=4, kv_heads=2, seq_q=19, seq_k=35)
    arrays = OPERATOR.inputs(problem, np.random.default_rng(5), "normal")
    views = arrays | {name: arrays[name].transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3) for name in "qkv"}
    dense, _ = emulator.run(Instance(OPERATOR, TCGEN05, problem, BASE), arrays, Mode())
    strided, _ = emulator.run(Instance(OPERATOR, TCGEN05, problem, BASE), views, Mode())
    assert views["q"].strides != arrays["q"].strides
    assert np.array_equal(dense["o"], strided["o"])


# What only a device can confirm, each asked alone: are columns found where descriptors say, for a kind of panels of V?
ASKED = [
    (D, columns) for D in HEAD_DIMS for columns in (0, 16, 32, 64) if columns < 2 * max(D, 16) and (columns or D % 64)
]


def question(D: int, columns: int) -> tuple[Problem, Config]:
    """One row tile and one tile of keys, of which the mean is exact."""
    problem = Problem(D, DType.BF16, batch=1, heads=1, seq_q=128, seq_k=64)
    return problem, replace(ONE, BN=64, value_columns=columns, heavy_first=False)


@pytest.mark.parametrize(("D", "columns"), [(40, 32), (72, 16), (72, 0), (112, 64)])
def test_what_a_device_will_be_asked_has_the_answer_that_the_questions_expect(D: int, columns: int) -> None:
    problem, config = question(D, columns)
    given = equal_weights(problem), one_column(problem, D - 1)
    results = [emulator.run(Instance(OPERATOR, TCGEN05, problem, config), arrays, Mode())[0] for arrays in given]
    assert wrong_columns(given[0], results[0]["o"]) == []
    assert not wrong_lse(given[1], D - 1, results[1]["lse"])
    assert wrong_lse(given[1], 0, results[1]["lse"]), "another column of K has another answer"


@pytest.mark.parametrize(("D", "columns"), ASKED)
def test_what_a_device_will_be_asked_is_a_config_that_a_search_may_pick(D: int, columns: int) -> None:
    problem, config = question(D, columns)
    assert TCGEN05.space(problem, BLACKWELL).refusal(config) is None


TILE, PRODUCTS = "tcgen05/tile.cuh", "tcgen05/products.cuh"
KEYS, ROWS, OUTPUT, BLOCK, LOADER = (
    "tcgen05/keys.cuh",
    "tcgen05/rows.cuh",
    "tcgen05/output.cuh",
    "tcgen05/block.cuh",
    "panels/tile.cuh",
)
TELL = "    tcgen05_fence_before_thread_sync();\n    __syncwarp();\n    if"
FREE = "  if (own_warp() == Tile::kProductsWarp) tcgen05_dealloc(tensor, Tile::kColumns);\n"
MULTIPLY = "    multiply_values(i, visited(i, tile) > 0);\n"
EMPTY = "    empty(barriers.values_empty(values.stage), tile);\n"
IN_TURN = "      add_values(i, tile);\n      if (tile > 0) add_scores(i, tile - 1);\n"
OUT_OF_TURN = "      if (tile > 0) add_scores(i, tile - 1);\n      add_values(i, tile);\n"
BUGS = (
    Bug(
        "scores_read_before_they_are_there",
        ROWS,
        "mbarrier_wait(barriers.scores_full(i), visited % 2);",
        "",
        "uninitialized_read",
    ),
    Bug(
        "scores_over_those_that_are_read",
        PRODUCTS,
        "mbarrier_wait(barriers.scores_read(i), visited(i, tile) % 2 ^ 1);",
        "",
        "in_flight",
    ),
    Bug(
        "p_multiplied_before_it_is_there",
        PRODUCTS,
        "mbarrier_wait(barriers.probabilities_full(i), visited(i, tile) % 2);",
        "",
        "race",
    ),
    Bug("p_over_one_that_is_multiplied", ROWS, "if (visited > 0) await_output(visited - 1);", "", "race"),
    Bug("o_stored_before_the_last_product", BLOCK, "row.await_output(tiles - 1);", "", "in_flight"),
    Bug("scores_used_before_they_are_loaded", ROWS, "tcgen05_wait_ld();\n    fence_registers(r_s);", "", "in_flight"),
    Bug("p_told_before_it_is_stored", ROWS, "tcgen05_wait_st();\n    tell", "tell", "in_flight"),
    Bug("no_fence_before_telling", ROWS, TELL, "    __syncwarp();\n    if", "tcgen05"),
    Bug("one_lane_tells_for_all", ROWS, TELL, TELL.replace("    __syncwarp();\n", ""), "race"),
    Bug(
        "no_fence_after_a_wait",
        PRODUCTS,
        "    tcgen05_fence_after_thread_sync();\n    multiply_values",
        "        multiply_values",
        "tcgen05",
    ),
    Bug("no_wait_for_keys", PRODUCTS, "mbarrier_wait(barriers.keys_full(keys.stage), keys.parity);", "", "race"),
    Bug("values_given_back_before_they_are_read", PRODUCTS, MULTIPLY, EMPTY + MULTIPLY, "in_flight"),
    Bug("scores_over_p_before_its_product", PRODUCTS, IN_TURN, OUT_OF_TURN, "race", replace(BASE, overlaid=True)),
    Bug(
        "no_wait_for_an_empty_stage",
        LOADER,
        "mbarrier_wait(barriers.keys_empty(at.stage), at.parity ^ 1);",
        "",
        "mbarrier",
    ),
    Bug("a_stage_that_nobody_fills_is_told", PRODUCTS, "if (tile >= Tile::kStages) ", "", "outstanding"),
    Bug("a_warpgroup_counts_as_one", TILE, "scores_read(i), 4", "scores_read(i), 1", "race"),
    Bug(
        "the_first_tile_of_a_row_tile_is_that_of_the_block",
        PRODUCTS,
        "return tiles[i] - 1 - tile;",
        "return tiles[kRowTiles - 1] - 1 - tile;",
        "deadlock",
    ),
    Bug("tensor_memory_is_kept", BLOCK, FREE, "", "tcgen05"),
    Bug(
        "tensor_memory_freed_while_it_is_read",
        BLOCK,
        "  __syncthreads();  // tensor memory is no longer read",
        "  // tensor memory is no longer read",
        "tcgen05",
    ),
    Bug("a_warp_reads_lanes_of_another", BLOCK, "lane / 32 << 21", "(lane / 32 ^ 1) << 21", "tcgen05"),
    Bug("the_first_product_adds_to_what_is_there", PRODUCTS, "k > 0 || accumulate", "true", "uninitialized_read"),
    Bug("no_proxy_fence_before_the_store", OUTPUT, "  fence_proxy_async();\n", "", "proxy_fence"),
    Bug("no_barrier_before_the_store", OUTPUT, "named_barrier_sync(1 + row.i, 128);", "", "race"),
    Bug("no_wait_for_the_store", OUTPUT, "cp_async_bulk_wait_read<0>();", "", "outstanding"),
    Bug("each_tile_overwrites_the_sum", PRODUCTS, "k > 0 || accumulate", "k > 0", "o"),
    Bug("o_is_not_rescaled", ROWS, "rescale_output();\n    store", ";\n    store", "o"),
    Bug(
        "strides_of_v_swapped",
        "tcgen05/panels.cuh",
        "tcgen05_descriptor(s_tile, 2 * columns * kRows, 16 * columns,",
        "tcgen05_descriptor(s_tile, 16 * columns, 2 * columns * kRows,",
        "o",
    ),
    Bug(
        "fewer_scores_than_keys",
        PRODUCTS,
        "tcgen05_instruction<T, Tile::BN>()",
        "tcgen05_instruction<T, Tile::BN - 16>()",
        "uninitialized_read",
    ),
    Bug("p_of_the_keys_before", PRODUCTS, "kProbabilityColumns + k / 2", "kProbabilityColumns + (k ^ 16) / 2", "o"),
    Bug("a_key_beyond_the_last", KEYS, "(row) + ahead + 1) : of.keys;", "(row) + ahead + 1) : of.keys + 1;", "lse"),
    Bug("a_key_beyond_the_diagonal", KEYS, "(row) + ahead + 1) : of.keys;", "(row) + ahead + 2) : of.keys;", "lse"),
    Bug("the_diagonal_is_not_masked", KEYS, ": of.keys) / BN}", ": of.keys) / BN + 1}", "lse"),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_in_the_kernel_is_seen(bug: Bug, tmp_path: Path) -> None:
    wrong_number = bug.seen in ("o", "lse")
    causal = bug.name != "a_key_beyond_the_last"  # the diagonal hides it
    problem = Problem(head_dim=72, causal=causal, batch=1, heads=1, seq_q=200, seq_k=200)
    arrays, outputs, happened = run(
        problem,
        bug.config or BASE,
        Mode() if wrong_number else CHECKED[0],
        operator=bug.put_into(OPERATOR, tmp_path),
    )
    wrong = {error.name for error in errors(OPERATOR, problem, arrays, outputs) if not error.ok}
    assert bug.seen in (wrong if wrong_number else {finding.kind for finding in happened.findings})


LSE_BYTES = 4 * 2 * 130


@pytest.mark.parametrize(  # every two values of different arguments meet
    ("D", "causal", "packed_heads"),
    [(40, False, 1), (40, True, 2), (72, True, 1), (72, False, 2), (112, False, 1), (112, True, 2)],
)
def test_declared_work_is_what_the_emulator_counts(D: int, causal: bool, packed_heads: int) -> None:
    problem = Problem(head_dim=D, causal=causal, batch=1, heads=2, kv_heads=1, seq_q=130, seq_k=200)
    config = replace(CASES[D], packed_heads=packed_heads)
    _, _, happened = run(problem, config, Mode())
    (work,), counted = TCGEN05.work(problem, config, gpu("B200")), happened.counters
    (launch,) = TCGEN05.plan(problem, config).launches
    assert work.tcgen05 == counted.tcgen05_m16n8k16
    assert work.l2_bytes - LSE_BYTES == counted.bulk_bytes
    assert work.barriers == counted.barriers
    assert launch.tensor_columns * work.ctas == counted.tensor_columns


def test_blocks_take_row_tiles_in_the_declared_order() -> None:
    problem = Problem(40, causal=True, batch=3, heads=4, kv_heads=2, seq_q=330, seq_k=200)
    happened = run(problem, CASES[40], Mode())[2]
    names = [field.name for field in fields(happened.counters)]
    counted = happened.block_counters[:, names.index("tcgen05_m16n8k16")]
    heaviest_first = np.sum(tiles(problem, CASES[40]), axis=1)[::-1]
    taken = np.repeat(heaviest_first, 12)
    np.testing.assert_array_equal(counted, counted.sum() / taken.sum() * taken)


def test_products_are_padded_to_16_columns_and_no_further() -> None:
    work = {D: TCGEN05.work(Problem(head_dim=D), replace(BASE, BN=64), gpu("B200"))[0].tcgen05 for D in (64, 72, 80)}
    assert work[72] == work[80] == work[64] * 80 / 64
    assert 4096 * work[80] == OPERATOR.cost(Problem(head_dim=80)).flops


def test_tensor_memory_holds_the_defaults_of_every_width() -> None:
    for D in range(16, 257, 8):
        config = TCGEN05.default(Problem(head_dim=D), BLACKWELL)
        assert used_columns(D, config) <= TCGEN05.plan(Problem(head_dim=D), config).launches[0].tensor_columns <= 512


@pytest.mark.parametrize("D", [40, 72, 128, 256])
@pytest.mark.slow
def test_defaults_spill_nothing_and_pass_the_lint(D: int) -> None:
    problem = Problem(head_dim=D, causal=D % 16 == 8, use_softcap=D == 128)
    source = render(Instance.default(OPERATOR, TCGEN05, problem, BLACKWELL))
    cubin = compiled(source, "sm_100a")
    assert not cubin.entries["flash_attention_tcgen05"].spills
    assert lint(cubin, "flash_attention_tcgen05") == Lint(), source.text
