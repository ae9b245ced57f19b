"""paged_attention/wgmma: what it serves, its kernel on the emulator, and bugs that must be seen in it."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.operators.paged_attention.test_operator import OPERATOR, of_lengths, packed
from tests.support.claims import assert_right_at_edges, compiled
from tests.support.counted import by_launch, global_bytes
from tests.support.injected import injected
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
from tuner.operators.paged_attention.wgmma.config import Config, blocks, box_rows
from tuner.operators.paged_attention.wgmma.work import cut_of
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance, InstanceFields
from tuner.spec.problem import to_fields
from tuner.store.records import Snapshot

WGMMA, MMA_SYNC = (operators.implementation("paged_attention", name) for name in ("wgmma", "mma_sync"))
HOPPER, H200 = ARCHES["sm_90a"], gpu("H200")

BASE = Config(
    BN=48,
    warpgroups=1,
    stages=2,
    overlap=1,
    ping_pong=False,
    value_columns=16,
    polynomial=0,
    lazy_rescale=False,
    packed_heads=4,
    splits=1,
    blocks=0,
)
SHARED, WALKS = replace(BASE, BN=32, splits=2), replace(BASE, blocks=132)
# Panels of one width and of several of K; a row tile alone, in shares, and one after another; sequences of a batch and
# packed ones.
CASES: dict[str, tuple[Problem, Config]] = {
    "d40_over_both_in_shares": (Problem(40), replace(BASE, BN=80, overlap=2, value_columns=32, stages=3, splits=3)),
    "d72_packed_walks": (
        Problem(72, DType.FP16, batch=1, use_cu_seqlens_q=True),
        replace(
            BASE, BN=128, warpgroups=2, ping_pong=True, value_columns=64, lazy_rescale=True, packed_heads=2, blocks=132
        ),
    ),
    "d64_capped_packed_in_shares": (
        Problem(64, batch=1, use_cu_seqlens_q=True, use_softcap=True),
        replace(BASE, BN=32, warpgroups=3, value_columns=64, polynomial=8, splits=2),
    ),
    "d192_wide": (Problem(192), replace(BASE, BN=96, warpgroups=2, ping_pong=True, value_columns=64, packed_heads=1)),
}


def run(problem: Problem, config: Config, arrays: Any, mode: Mode = CHECKED[0], operator: Any = OPERATOR) -> Any:
    return emulator.run(Instance(operator, WGMMA, problem, config), arrays, mode)


def right(problem: Problem, arrays: Any, outputs: Any) -> bool:
    return all(error.ok for error in errors(OPERATOR, problem, arrays, outputs))


@pytest.mark.parametrize(
    ("problem", "arch", "reason"),
    [
        (Problem(page_size=4), "sm_90a", "page_size 4: TMA boxes have 8 or more rows of a page"),
        (Problem(dtype=DType.FP32), "sm_90a", "dtype fp32: wgmma operands have 16 bits"),
        (Problem(head_dim=8), "sm_90a", "head_dim 8: the narrowest tile has 16 columns"),
        (Problem(), "sm_100a", "sm_100a has no wgmma instructions: sm_90a has them"),
    ],
)
def test_what_is_not_served_is_refused_with_the_reason(problem: Problem, arch: str, reason: str) -> None:
    assert WGMMA.refusal(problem, ARCHES[arch]) == reason
    assert WGMMA.refusal(Problem(page_size=8), HOPPER) is None


def test_the_dispatcher_runs_it_only_for_a_record() -> None:
    choice = choose(OPERATOR, Problem(seq_q=4096), (H200,), Snapshot({}, ()))
    assert choice.instance.implementation.name == "mma_sync"


@pytest.mark.parametrize("D", range(16, 257, 40))
@pytest.mark.parametrize("sizes", [{"seq_q": 1}, {"seq_q": 100, "use_softcap": True}, {"seq_q": 4096}])
def test_a_default_is_a_config_that_a_search_may_pick(D: int, sizes: dict[str, Any]) -> None:
    problem = Problem(D, heads=8, kv_heads=2, **sizes)
    assert WGMMA.space(problem, HOPPER).refusal(WGMMA.default(problem, HOPPER)) is None


def test_a_box_is_what_a_page_and_a_tile_have_in_common() -> None:
    def rows(BN: int, page_size: int, window: int = 0) -> int:
        return box_rows(Problem(page_size=page_size, window=window), replace(BASE, BN=BN))

    assert [rows(128, page) for page in (8, 16, 128, 256)] == [8, 16, 128, 128]
    assert [rows(BN, 64) for BN in (48, 96, 192)] == [16, 32, 64]
    assert [rows(128, page, window=100) for page in (8, 16, 256)] == [8, 16, 16]


@pytest.mark.parametrize("case", CASES)
def test_every_tunable_gives_the_right_result(case: str) -> None:
    problem, config = CASES[case]
    modes = (Mode(True, "reverse", "early"), CHECKED[0])
    assert_right_at_edges(Instance(OPERATOR, WGMMA, problem, config), modes)


def test_declared_work_is_what_the_emulator_counts_where_tables_are_full() -> None:
    _, config = CASES["d40_over_both_in_shares"]
    large = {"batch": 2, "heads": 6, "kv_heads": 2, "seq_q": 70, "page_size": 16, "max_pages": 19}
    problem = Problem(40, window=137, sinks=9, **large)
    arrays = of_lengths(problem, [problem.seq_k] * problem.batch)
    outputs, happened = run(problem, config, arrays)
    assert right(problem, arrays, outputs)
    attend, merge = WGMMA.work(problem, config, H200)
    first, second = by_launch(happened, WGMMA.plan(problem, config))
    parts = cut_of(problem, config).parts * 2 * 6 * 70 * (4 * 40 + 8)
    assert (attend.wgmma, attend.l2_bytes) == (first.wgmma_m16n8k16, first.bulk_bytes + parts)
    assert merge.l2_bytes == global_bytes(second)
    assert first.bank_conflicts == second.bank_conflicts == 0


def test_a_whole_row_tile_leaves_by_tma_as_declared() -> None:
    problem = Problem(16, batch=2, heads=6, kv_heads=2, seq_q=145, page_size=64, max_pages=5)
    _, happened = run(problem, BASE, of_lengths(problem, [problem.seq_k] * 2))
    (work,) = WGMMA.work(problem, BASE, H200)
    assert work.wgmma == happened.counters.wgmma_m16n8k16
    assert work.l2_bytes - 4 * 2 * 6 * 145 == happened.counters.bulk_bytes


def test_blocks_that_walk_do_the_declared_work_and_the_same_bits() -> None:
    problem, config = Problem(16, batch=1, heads=4, kv_heads=2, seq_q=145, page_size=64, max_pages=5), WALKS
    arrays = of_lengths(problem, [problem.seq_k])
    alone, _ = run(problem, BASE, arrays)
    outputs, happened = run(problem, config, arrays)
    assert not happened.findings
    assert all(np.array_equal(outputs[name], alone[name]) for name in ("o", "lse"))
    (clear, work), counted = WGMMA.work(problem, config, H200), happened.counters
    assert (clear.ctas, work.ctas) == (1, 5)  # which take ten row tiles
    assert work.wgmma == counted.wgmma_m16n8k16
    assert work.l2_bytes - 4 * 4 * 145 == counted.bulk_bytes


@pytest.mark.parametrize("page_size", [8, 16, 64])
def test_the_size_of_a_page_changes_no_bit(page_size: int) -> None:
    whole = Problem(16, batch=2, heads=4, kv_heads=2, seq_q=37, page_size=256, max_pages=1)
    problem = replace(whole, page_size=page_size, max_pages=256 // page_size, pages=0)
    arrays = of_lengths(whole, [256, 131])
    keys = tuple(np.nan_to_num(arrays[name])[arrays["block_table"][:, 0].clip(0)] for name in ("k_cache", "v_cache"))
    table, (k, v) = paged(problem, np.random.default_rng(1), [256, 131], keys)
    expected, _ = run(whole, BASE, arrays)
    result, _ = run(problem, BASE, arrays | {"block_table": table, "k_cache": k, "v_cache": v})
    assert right(whole, arrays, expected)
    assert np.array_equal(expected["o"], result["o"])


def with_foreign_entries(problem: Problem, length: int, attended: set[int]) -> Any:
    """Inputs of one sequence, whose table names a page of NaN wherever nobody attends a key, and what is right."""
    arrays = of_lengths(problem, [length])
    expected = OPERATOR.reference(problem, arrays)
    used = -(-length // problem.page_size)
    foreign = next(page for page in range(problem.pages) if page not in arrays["block_table"][0, :used])
    keys = {
        page: {*range(page * problem.page_size, (page + 1) * problem.page_size)} for page in range(problem.max_pages)
    }
    arrays["block_table"][0, [page for page, within in keys.items() if not within & attended]] = foreign
    return arrays, expected


@pytest.mark.parametrize(("window", "sinks"), [(0, 0), (9, 3), (50, 20)])
def test_pages_that_nobody_attends_are_not_looked_at(window: int, sinks: int) -> None:
    sizes = {"batch": 1, "heads": 1, "kv_heads": 1, "seq_q": 3, "page_size": 8, "max_pages": 40}
    problem = Problem(16, window=window, sinks=sinks, **sizes)
    attended = {*range(sinks), *range(150 - 2 - window, 150)} if window else {*range(150)}
    arrays, expected = with_foreign_entries(problem, 150, attended)
    outputs, happened = run(problem, BASE, arrays)
    assert not happened.findings
    np.testing.assert_allclose(outputs["o"].astype(float), expected["o"], atol=0.02)


def test_caches_with_heads_before_positions_and_both_in_one_tensor_need_no_copy() -> None:
    problem = Problem(16, batch=2, heads=4, kv_heads=2, seq_q=20, page_size=16, max_pages=5)
    arrays = of_lengths(problem, [80, 33])
    both = np.stack([arrays["k_cache"], arrays["v_cache"]], axis=1).transpose(0, 1, 3, 2, 4).copy()  # [.., HK, page, D]
    views = {"k_cache": both[:, 0].swapaxes(1, 2), "v_cache": both[:, 1].swapaxes(1, 2)}
    plain, _ = run(problem, BASE, arrays)
    strided, _ = run(problem, BASE, arrays | views)
    assert right(problem, arrays, plain)
    assert np.array_equal(plain["o"], strided["o"])


# A prompt, steps of decoding, a sequence without queries, one without positions, and the rest of a long one.
LENGTHS, QUERIES = [33, 33, 94, 40, 0, 90], [33, 1, 1, 0, 2, 70]


@pytest.mark.parametrize("config", [BASE, SHARED], ids=["whole", "in_shares"])
def test_packed_queries_attend_the_positions_of_their_own_sequence(config: Config) -> None:
    problem, arrays = packed(LENGTHS, QUERIES, head_dim=16)
    outputs, happened = run(problem, config, arrays)
    assert not happened.findings
    assert right(problem, arrays, outputs)


def test_no_share_of_packed_queries_is_longer_than_it_has_to_be() -> None:
    """Tiles of the block that multiplies most."""
    problem, arrays = packed(LENGTHS, QUERIES, head_dim=16)
    _, happened = run(problem, SHARED, arrays)
    shares = blocks(problem, SHARED) // 2  # of two KV heads
    tiles, steps = (-(-np.array(choice) // 32) for choice in (QUERIES, LENGTHS))  # of 32 queries of two heads; of keys
    parts = (int(np.sum(tiles * np.maximum(-(-steps // most), 1))) for most in range(1, 9))
    least = next(most for most, count in enumerate(parts, 1) if count <= shares)
    columns = list(type(happened.counters).__dataclass_fields__)
    products = happened.block_counters[: 2 * shares, columns.index("wgmma_m16n8k16")]
    assert products.max() == least * 64 * 32 * 2 * 16 / 2048


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
    verdict = check_ptx(Job(InstanceFields("paged_attention", "wgmma", to_fields(problem), to_fields(SHARED))), HOPPER)
    assert verdict.ok, verdict.reason


# Head dims, packing and shares are dealt out.
COMPILED = (
    Problem(128, batch=1, seq_q=4096, use_cu_seqlens_q=True, sequences=64, max_seqlen_q=512),
    Problem(256, batch=1, seq_q=128),
)


@pytest.mark.parametrize("problem", COMPILED, ids=lambda problem: f"d{problem.head_dim}")
@pytest.mark.slow
def test_a_default_passes_the_lint(problem: Problem) -> None:
    cubin = compiled(render(Instance.default(OPERATOR, WGMMA, problem, HOPPER)), "sm_90a")
    assert lint(cubin, "paged_attention_wgmma") == Lint()


def test_prompts_are_predicted_to_cost_less_than_on_mma_sync() -> None:
    problem = Problem(seq_q=4096)
    costs = []
    for kernel in (WGMMA, MMA_SYNC):
        config = kernel.default(problem, HOPPER)
        costs.append(uncompiled(kernel.plan(problem, config), kernel.work(problem, config, H200), H200).cost)
    assert costs[0] < 0.7 * costs[1]


@dataclass(frozen=True)
class Bug:
    """`old` becomes `new` in one of the files."""

    name: str
    file: str
    old: str
    new: str


BUGS = (
    Bug("values_behind_the_last_key", "wgmma/block.cuh", "clear_neighbours(rows, keys, smem, work);", ""),
    Bug("a_page_before_the_window", "panels/keys.cuh", "begin & -box", "(begin & -box) - box"),
    Bug("windows_begin_within_a_box", "panels/keys.cuh", "begin & -box", "begin"),
    Bug(
        "a_mask_that_knows_no_share",
        "panels/keys.cuh",
        "- of.first_key;\n    int const begin",
        ";\n    int const begin",
    ),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_is_seen(bug: Bug, tmp_path: Path) -> None:
    operator = injected(OPERATOR, tmp_path, bug.file, bug.old, bug.new)
    sizes = {"batch": 1, "heads": 1, "kv_heads": 1, "seq_q": 3, "page_size": 8, "max_pages": 40}
    problem = Problem(16, window=60, sinks=3, **sizes)
    arrays, expected = with_foreign_entries(problem, 149, {*range(3), *range(149 - 2 - 60, 149)})
    outputs, happened = run(problem, SHARED, arrays, operator=operator)
    close = np.allclose(outputs["o"].astype(float), expected["o"], atol=0.02)
    assert happened.findings or not close or not np.allclose(outputs["lse"], expected["lse"], atol=1e-3)


@pytest.mark.parametrize(
    ("file", "left_out"),
    [
        ("wgmma/block.cuh", "if (Tile::kPersistentByTicket) __syncwarp();"),
        (
            "wgmma/block.cuh",
            "named_barrier_sync(8 + rows.warpgroup, 128);  // all have read O in the shared memory of Q",
        ),
    ],
    ids=["work_is_read", "output_is_read"],
)
def test_a_place_that_is_free_too_early_is_a_race(file: str, left_out: str, tmp_path: Path) -> None:
    operator = injected(OPERATOR, tmp_path, file, left_out, "")
    problem, arrays = packed([80, 90], [40, 33], head_dim=16)
    results = [
        run(problem, WALKS, arrays, Mode(True, "random", "early", seed), operator)[1].findings for seed in (1, 2)
    ]
    assert any(results)


def test_packed_queries_of_blocks_that_walk_race_with_nobody() -> None:
    problem, arrays = packed([80, 90], [40, 33], head_dim=16)
    for seed in (1, 2):
        outputs, happened = run(problem, WALKS, arrays, Mode(True, "random", "early", seed))
        assert not happened.findings
        assert right(problem, arrays, outputs)
