"""paged_attention/tcgen05: what it serves, its kernel on the emulator, and bugs that must be seen in it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.operators.paged_attention.test_operator import OPERATOR, of_lengths, packed
from tests.operators.paged_attention.test_wgmma import LENGTHS, QUERIES, with_foreign_entries
from tests.support.claims import assert_right_at_edges, compiled
from tests.support.counted import by_launch, global_bytes
from tests.support.injected import Bug, injected
from tuner import operators
from tuner.arch import ARCHES, gpu
from tuner.backends import emulator
from tuner.backends.emulator import Mode
from tuner.compiler.lint import Lint, lint
from tuner.compiler.render import render
from tuner.dispatcher.config_choice import choose
from tuner.evaluate.check.checker import CHECKED, Job
from tuner.evaluate.check.compare import errors
from tuner.evaluate.check.on_ptx import check_ptx
from tuner.evaluate.predict.cost import uncompiled
from tuner.operators.paged_attention.cases import paged
from tuner.operators.paged_attention.problem import Problem
from tuner.operators.paged_attention.tcgen05.config import Config, blocks
from tuner.operators.paged_attention.wgmma.work import cut_of
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance, InstanceFields
from tuner.spec.problem import to_fields
from tuner.store.records import Snapshot

TCGEN05 = operators.implementation("paged_attention", "tcgen05")
BLACKWELL, B200 = ARCHES["sm_100a"], gpu("B200")

BASE = Config(
    BN=48,
    row_tiles=1,
    stages=2,
    value_columns=16,
    polynomial=0,
    lazy_rescale=False,
    overlaid=False,
    packed_heads=4,
    splits=1,
)
TWO, SHARED = replace(BASE, row_tiles=2), replace(BASE, BN=32, splits=2)
# Panels of one width and of several; one row tile and two, alone and in shares; P beside scores and over them; a batch
# and packed sequences.
CASES: dict[str, tuple[Problem, Config]] = {
    "d40_in_shares": (Problem(40), replace(TWO, BN=80, value_columns=32, stages=3, polynomial=4, splits=3)),
    "d72_packed": (
        Problem(72, DType.FP16, batch=1, kv_heads=16, use_cu_seqlens_q=True),
        replace(TWO, BN=128, value_columns=0, lazy_rescale=True, overlaid=True, packed_heads=2),
    ),
    "d64_capped_packed_in_shares": (
        Problem(64, batch=1, use_cu_seqlens_q=True, use_softcap=True),
        replace(BASE, BN=32, stages=4, value_columns=64, polynomial=8, splits=2),
    ),
    "d192_wide": (Problem(192), replace(BASE, BN=96, value_columns=64, packed_heads=1)),
}


def run(problem: Problem, config: Config, arrays: Any, mode: Mode = CHECKED[0], operator: Any = OPERATOR) -> Any:
    return emulator.run(Instance(operator, TCGEN05, problem, config), arrays, mode)


def wrong(problem: Problem, arrays: Any, outputs: Any) -> set[str]:
    return {error.name for error in errors(OPERATOR, problem, arrays, outputs) if not error.ok}


def assert_right(problem: Problem, config: Config, arrays: Any, mode: Mode = CHECKED[0]) -> Any:
    outputs, happened = run(problem, config, arrays, mode)
    assert not happened.findings, happened.findings[0]
    assert not wrong(problem, arrays, outputs)
    return outputs, happened


@pytest.mark.parametrize(
    ("problem", "arch", "reason"),
    [
        (Problem(page_size=4), "sm_100a", "page_size 4: TMA boxes have 8 or more rows of a page"),
        (Problem(dtype=DType.FP32), "sm_103a", "dtype fp32: wgmma operands have 16 bits"),
        (
            Problem(kv_cache_dtype=DType.FP8_E4M3),
            "sm_100a",
            "kv_cache_dtype fp8_e4m3: operands have 16 bits; use split_keys",
        ),
        (Problem(head_dim=8), "sm_110a", "head_dim 8: the narrowest tile has 16 columns"),
        (Problem(), "sm_90a", "sm_90a has no tcgen05 instructions: sm_100a, sm_103a and sm_110a have them"),
    ],
)
def test_what_is_not_served_is_refused_with_the_reason(problem: Problem, arch: str, reason: str) -> None:
    assert TCGEN05.refusal(problem, ARCHES[arch]) == reason
    assert TCGEN05.refusal(Problem(page_size=8), BLACKWELL) is None


def test_the_dispatcher_runs_it_only_for_a_record() -> None:
    choice = choose(OPERATOR, Problem(seq_q=4096), (B200,), Snapshot({}, ()))
    assert choice.instance.implementation.name == "mma_sync"


@pytest.mark.parametrize("D", range(16, 257, 40))
@pytest.mark.parametrize("sizes", [{"seq_q": 1}, {"seq_q": 100, "use_softcap": True}, {"seq_q": 4096}])
def test_a_default_is_a_config_that_a_search_may_pick(D: int, sizes: dict[str, Any]) -> None:
    problem = Problem(D, heads=8, kv_heads=2, **sizes)
    assert TCGEN05.space(problem, BLACKWELL).refusal(TCGEN05.default(problem, BLACKWELL)) is None


@pytest.mark.parametrize("case", CASES)
def test_every_tunable_gives_the_right_result(case: str) -> None:
    problem, config = CASES[case]
    assert TCGEN05.space(problem, BLACKWELL).refusal(config) is None
    modes = (Mode(True, "reverse", "early"), CHECKED[0])
    assert_right_at_edges(Instance(OPERATOR, TCGEN05, problem, config), modes)


def test_declared_work_is_what_the_emulator_counts_where_tables_are_full() -> None:
    _, config = CASES["d40_in_shares"]
    large = {"batch": 2, "heads": 6, "kv_heads": 2, "seq_q": 150, "page_size": 16, "max_pages": 19}
    problem = Problem(40, window=137, sinks=9, **large)
    arrays = of_lengths(problem, [problem.seq_k] * problem.batch)
    _, happened = assert_right(problem, config, arrays)
    attend, merge = TCGEN05.work(problem, config, B200)
    first, second = by_launch(happened, TCGEN05.plan(problem, config))
    parts = cut_of(problem, config).parts * 2 * 6 * 150 * (4 * 40 + 8)
    assert (attend.tcgen05, attend.l2_bytes) == (first.tcgen05_m16n8k16, first.bulk_bytes + parts)
    assert attend.barriers == first.barriers
    assert merge.l2_bytes == global_bytes(second)


@pytest.mark.parametrize(("config", "seq_q"), [(BASE, 145), (TWO, 145), (TWO, 70), (replace(TWO, packed_heads=1), 300)])
def test_whole_row_tiles_leave_by_tma_as_declared(config: Config, seq_q: int) -> None:
    """The row tiles of a block end with tiles of keys of their own, and the last may have no query."""
    problem = Problem(16, batch=2, heads=6, kv_heads=2, seq_q=seq_q, page_size=64, max_pages=5)
    _, happened = assert_right(problem, config, of_lengths(problem, [problem.seq_k] * 2))
    (work,) = TCGEN05.work(problem, config, B200)
    assert work.tcgen05 == happened.counters.tcgen05_m16n8k16
    assert work.l2_bytes - 4 * 2 * 6 * seq_q == happened.counters.bulk_bytes
    assert work.barriers == happened.counters.barriers


@pytest.mark.parametrize("page_size", [8, 16, 64])
def test_the_size_of_a_page_changes_no_bit(page_size: int) -> None:
    whole = Problem(16, batch=2, heads=4, kv_heads=2, seq_q=37, page_size=256, max_pages=1)
    problem = replace(whole, page_size=page_size, max_pages=256 // page_size, pages=0)
    arrays = of_lengths(whole, [256, 131])
    keys = tuple(np.nan_to_num(arrays[name])[arrays["block_table"][:, 0].clip(0)] for name in ("k_cache", "v_cache"))
    table, (k, v) = paged(problem, np.random.default_rng(1), [256, 131], keys)
    expected, _ = assert_right(whole, BASE, arrays)
    result, _ = run(problem, BASE, arrays | {"block_table": table, "k_cache": k, "v_cache": v})
    assert np.array_equal(expected["o"], result["o"])


@pytest.mark.parametrize(("window", "sinks"), [(0, 0), (9, 3), (50, 20), (9, 2**30)])
def test_pages_that_nobody_attends_are_not_looked_at(window: int, sinks: int) -> None:
    sizes = {"batch": 1, "heads": 1, "kv_heads": 1, "seq_q": 3, "page_size": 8, "max_pages": 40}
    problem = Problem(16, window=window, sinks=sinks, **sizes)
    attended = {*range(min(sinks, 150)), *range(150 - 2 - window, 150)} if window else {*range(150)}
    arrays, expected = with_foreign_entries(problem, 150, attended)
    outputs, happened = run(problem, BASE, arrays)
    assert not happened.findings
    np.testing.assert_allclose(outputs["o"].astype(float), expected["o"], atol=0.02)


def test_caches_with_heads_before_positions_and_both_in_one_tensor_need_no_copy() -> None:
    problem = Problem(16, batch=2, heads=4, kv_heads=2, seq_q=20, page_size=16, max_pages=5)
    arrays = of_lengths(problem, [80, 33])
    both = np.stack([arrays["k_cache"], arrays["v_cache"]], axis=1).transpose(0, 1, 3, 2, 4).copy()  # [.., HK, page, D]
    views = {"k_cache": both[:, 0].swapaxes(1, 2), "v_cache": both[:, 1].swapaxes(1, 2)}
    plain, _ = assert_right(problem, BASE, arrays)
    strided, _ = run(problem, BASE, arrays | views)
    assert np.array_equal(plain["o"], strided["o"])


@pytest.mark.parametrize("config", [BASE, TWO, SHARED], ids=["whole", "two_row_tiles", "in_shares"])
def test_a_prompt_beside_steps_of_decoding_attends_its_own_positions(config: Config) -> None:
    """A prompt, steps, a sequence without queries, one without positions, and the rest of a long one, in one batch."""
    problem, arrays = packed(LENGTHS, QUERIES, head_dim=16)
    assert_right(problem, config, arrays)


def test_a_step_beside_a_chunk_gets_the_bits_that_it_gets_alone() -> None:
    problem, arrays = packed([90, 61], [70, 1], head_dim=16)
    both, _ = assert_right(problem, TWO, arrays)
    alone = replace(problem, seq_q=1, sequences=1, max_seqlen_q=0)
    given = {name: arrays[name][1:] for name in ("block_table", "cache_seqlens")}
    given |= {"q": arrays["q"][:, 70:], "cu_seqlens_q": np.array([0, 1], np.int32)}
    step, _ = run(alone, TWO, arrays | given)
    assert np.array_equal(both["o"][:, 70:], step["o"])
    assert np.array_equal(both["lse"][:, :, 70:], step["lse"])


def test_a_sequence_of_nan_leaves_the_bits_of_the_others() -> None:
    problem, arrays = packed([90, 61, 44], [70, 1, 30], head_dim=16)
    whole, _ = assert_right(problem, TWO, arrays)
    pages = arrays["block_table"][1, : -(-61 // problem.page_size)]
    for name in ("k_cache", "v_cache"):
        arrays[name][pages] = np.nan
    outputs, happened = run(problem, TWO, arrays)
    assert not happened.findings
    assert np.array_equal(np.delete(outputs["o"], 70, axis=1), np.delete(whole["o"], 70, axis=1))


def test_no_share_of_packed_queries_is_longer_than_it_has_to_be() -> None:
    """Tiles of the block that multiplies most."""
    problem, arrays = packed(LENGTHS, QUERIES, head_dim=16)
    _, happened = run(problem, SHARED, arrays)
    shares = blocks(problem, SHARED) // 2  # of two KV heads
    tiles, steps = -(-np.array(QUERIES) // 64), -(-np.array(LENGTHS) // 32)  # of 64 queries of two heads; of keys
    parts = (int(np.sum(tiles * np.maximum(-(-steps // most), 1))) for most in range(1, 9))
    least = next(most for most, count in enumerate(parts, 1) if count <= shares)
    columns = list(type(happened.counters).__dataclass_fields__)
    products = happened.block_counters[: 2 * shares, columns.index("tcgen05_m16n8k16")]
    assert products.max() == least * 128 * 32 * 2 * 16 / 2048


@pytest.mark.parametrize("seed", range(11, 17))
def test_lanes_that_copy_nothing_wait_for_no_round_that_is_past(seed: int) -> None:
    """With seed 14 one came so late that its stage had been emptied twice."""
    sizes = {"batch": 1, "heads": 1, "kv_heads": 1, "page_size": 8, "max_pages": 40}
    problem = Problem(24, window=60, sinks=12, seq_q=200, **sizes)
    assert_right(problem, replace(TWO, splits=2), of_lengths(problem, [293]), Mode(True, "random", "random", seed))


def test_bounds_that_no_packing_has_harm_no_other_sequence() -> None:
    """The last sequence ends beyond T, the second has more queries than the longest is said to have."""
    problem, arrays = packed([96, 70, 20], [3, 40, 5], head_dim=16)
    expected = OPERATOR.reference(problem, arrays)
    arrays["cu_seqlens_q"][-1] += 100
    outputs, _ = run(replace(problem, max_seqlen_q=8), BASE, arrays)
    rows = [*range(3 + 8), *range(3 + 40, 48)]  # without the others of the second
    np.testing.assert_allclose(outputs["o"][:, rows].astype(float), expected["o"][:, rows], atol=0.02)


@pytest.mark.slow
def test_the_compilers_ptx_is_right_on_another_machine() -> None:
    problem = Problem(16, batch=1, use_cu_seqlens_q=True)
    verdict = check_ptx(
        Job(InstanceFields("paged_attention", "tcgen05", to_fields(problem), to_fields(SHARED))), BLACKWELL
    )
    assert verdict.ok, verdict.reason


BLOCK, KEYS, LOADER = "tcgen05/block.cuh", "tcgen05/keys.cuh", "panels/loader.cuh"
OF_SHARE = "- of.first_key;\n    int const end = work"
KEYS_EMPTY = "mbarrier_wait(barriers.keys_empty(stage), this->at.parity ^ 1);"
BUGS = (
    Bug("values_behind_the_last_key", BLOCK, "clear_neighbours(smem, barriers, keys, work);", "", "o"),
    Bug("windows_begin_within_a_box", "panels/keys.cuh", "begin & -box", "begin", "lse"),
    Bug("a_key_before_the_window", KEYS, "{end - this->window,", "{end - this->window - 1,", "lse"),
    Bug("a_key_behind_the_query", KEYS, "window, end, sinks", "window, end + 1, sinks", "lse"),
    Bug("a_key_behind_the_sinks", KEYS, "window, end, sinks", "window, end, sinks + 1", "lse"),
    Bug("sinks_that_know_no_share", KEYS, "this->sinks - of.first_key", "this->sinks", "lse"),
    Bug("a_mask_that_knows_no_share", KEYS, OF_SHARE, OF_SHARE.replace("- of.first_key", ""), "lse"),
    Bug("row_tiles_without_their_last_keys", KEYS, "(end + BN - 1) / BN, work", "end / BN, work", "lse"),
    Bug("windows_are_not_cut_on_the_left", KEYS, "last_begin > sinks ?", "false ?", "lse"),
    Bug("windows_are_not_cut_on_the_right", KEYS, "+ ahead) / BN}", "+ ahead) / BN + 1}", "lse"),
    Bug("parts_of_another_row", BLOCK, "Tile::BM + own;", "Tile::BM + (own ^ 1);", "lse"),
    Bug("parts_wider_than_values", BLOCK, "stored && col + e < Tile::DV", "stored", "race"),
    Bug("results_of_shares_that_are_not_merged", BLOCK, "work.parts > 1", "work.parts > 9", "race"),
    Bug("several_warps_find_the_work", BLOCK, "own_warp() == kFinds", "own_warp() >= kFinds", "race"),
    Bug("every_lane_issues_products", BLOCK, "if (elect_one()) multiply_all", "multiply_all", "tcgen05"),
    Bug("tensor_memory_is_kept", BLOCK, "  end_block<Tile>(tensor);\n", "", "tcgen05"),
    Bug("keys_over_those_that_are_read", LOADER, KEYS_EMPTY, "", "in_flight"),
    Bug("values_over_those_that_are_read", LOADER, KEYS_EMPTY.replace("keys", "values"), "", "in_flight"),
    Bug("the_page_of_the_tile_before", LOADER, "next = look_up(tile - 1);", "next = look_up(tile);", "lse"),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_is_seen(bug: Bug, tmp_path: Path) -> None:
    """In shares of two row tiles, with sinks and a window that begins within a box."""
    sizes = {"batch": 1, "heads": 1, "kv_heads": 1, "page_size": 8, "max_pages": 40}
    problem, config = Problem(24, window=60, sinks=12, seq_q=200, **sizes), replace(TWO, splits=2)
    arrays = of_lengths(problem, [293])
    outputs, happened = run(problem, config, arrays, operator=bug.put_into(OPERATOR, tmp_path))
    assert bug.seen in wrong(problem, arrays, outputs) | {finding.kind for finding in happened.findings}


def test_a_page_before_the_window_is_seen(tmp_path: Path) -> None:
    operator = injected(OPERATOR, tmp_path, "panels/keys.cuh", "begin & -box", "(begin & -box) - box")
    sizes = {"batch": 1, "heads": 1, "kv_heads": 1, "seq_q": 3, "page_size": 8, "max_pages": 40}
    problem = Problem(16, window=60, sinks=3, **sizes)
    arrays, expected = with_foreign_entries(problem, 149, {*range(3), *range(149 - 2 - 60, 149)})
    outputs, _ = run(problem, SHARED, arrays, operator=operator)
    assert not np.allclose(outputs["o"].astype(float), expected["o"], atol=0.02)


# Head dims, packing and shares are dealt out.
COMPILED = (
    Problem(128, batch=1, seq_q=4096, use_cu_seqlens_q=True, sequences=64, max_seqlen_q=512),
    Problem(72, batch=4, seq_q=64, use_softcap=True),
    Problem(256, batch=1, seq_q=128),
    Problem(248, batch=1, seq_q=64, window=1000, sinks=4),
)


@pytest.mark.parametrize("problem", COMPILED, ids=lambda problem: f"d{problem.head_dim}")
@pytest.mark.slow
def test_a_default_spills_nothing_and_passes_the_lint(problem: Problem) -> None:
    cubin = compiled(render(Instance.default(OPERATOR, TCGEN05, problem, BLACKWELL)), "sm_100a")
    assert not any(entry.spills for entry in cubin.entries.values())
    assert lint(cubin, "paged_attention_tcgen05") == Lint()


def predicted(name: str, problem: Problem) -> float:
    kernel = operators.implementation("paged_attention", name)
    config = kernel.default(problem, BLACKWELL)
    return uncompiled(kernel.plan(problem, config), kernel.work(problem, config, B200), B200).cost


@pytest.mark.parametrize("batch", [1, 16])
def test_prompts_are_predicted_to_gain_over_mma_sync_and_steps_nothing_over_split_keys(batch: int) -> None:
    prompt, step = (Problem(batch=batch, seq_q=seq_q) for seq_q in (4096, 1))
    assert predicted("tcgen05", prompt) < 0.5 * predicted("mma_sync", prompt)
    assert predicted("tcgen05", step) > 0.99 * predicted("split_keys", step)
