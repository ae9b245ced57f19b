"""paged_attention in full row tiles, and packed queries: the results, the declared work and the choice of a kernel."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.operators.paged_attention.test_operator import BASE, NAIVE, OPERATOR, SPLIT_KEYS, of_lengths, packed, run
from tests.operators.small_tiles import SMALL_TILES
from tests.support.claims import DISTINCT_ARCHES, assert_no_spills, assert_right_at_edges
from tests.support.counted import counted, declared
from tuner import operators
from tuner.arch import gpu
from tuner.backends.emulator import Mode
from tuner.dispatcher.config_choice import choose
from tuner.errors import UsageError
from tuner.evaluate.check.checker import CHECKED
from tuner.evaluate.check.compare import errors
from tuner.operators.paged_attention.cases import paged
from tuner.operators.paged_attention.mma_sync.config import Config
from tuner.operators.paged_attention.problem import Problem, unpacked
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance
from tuner.store.records import Snapshot

MMA_SYNC = operators.implementation("paged_attention", "mma_sync")
H200 = gpu("H200")

TILE = Config(**SMALL_TILES, narrow=16, splits=1)
# A pass of the block's copies takes rows of one to eight keys of a warp; tiles wider than pages and narrower.
CASES = {
    "d8_three_stages": (8, replace(TILE, BN=64, narrow=32, stages=3)),
    "d40_padded_in_shares": (40, replace(TILE, BN=128, narrow=32, swizzle=False, lazy_rescale=True, splits=3)),
    "d72_query_through_the_ring": (72, replace(TILE, BN=48, q_in_registers=True, smem_budget=14336)),
    "d128_two_warps_share_rows": (128, replace(TILE, BM=32, BN=64, narrow=0, d_warps=2, splits=2)),
}
PACKED = {
    "naive": (NAIVE, NAIVE.config(32, 8)),
    "mma_sync": (MMA_SYNC, replace(TILE, BM=32, warps=2)),
    "mma_sync_in_shares": (MMA_SYNC, replace(TILE, BM=32, BN=16, warps=2, narrow=0, splits=2)),
    "split_keys": (SPLIT_KEYS, replace(BASE, splits=3)),
}

# A prompt, steps of decoding, a sequence without queries, one without positions, and the rest of a long one.
LENGTHS, QUERIES = [33, 33, 94, 40, 0, 90], [33, 1, 1, 0, 2, 33]


def of_case(name: str, **sizes: int) -> tuple[Problem, Config]:
    D, config = CASES[name]
    return Problem(head_dim=D, dtype=DType.FP16 if D % 16 else DType.BF16, **sizes), config


@pytest.mark.parametrize("case", CASES)
def test_every_tunable_gives_the_right_result(case: str) -> None:
    problem, config = of_case(case)
    modes = (Mode(True, "reverse", "early"), CHECKED[0])
    assert_right_at_edges(Instance(OPERATOR, MMA_SYNC, problem, config), modes)


@pytest.mark.parametrize("case", ["d8_three_stages", "d40_padded_in_shares", "d72_query_through_the_ring"])
def test_declared_work_is_what_the_emulator_counts_where_tables_are_full(case: str) -> None:
    of_any_size, config = of_case(case)
    large = {"batch": 2, "heads": 6, "kv_heads": 2, "seq_q": 45, "page_size": 16, "max_pages": 9}
    for problem in (*OPERATOR.tails(of_any_size), replace(of_any_size, **large, pages=0, window=37, sinks=9)):
        _, happened = run(problem, config, of_lengths(problem, [problem.seq_k] * problem.batch), MMA_SYNC)
        assert declared(MMA_SYNC.work(problem, config, H200)) == counted(happened, MMA_SYNC.plan(problem, config))


def test_a_softcap_window_and_sinks_go_together() -> None:
    sizes = {"batch": 2, "heads": 6, "kv_heads": 2, "seq_q": 45, "page_size": 16, "max_pages": 9}
    problem = Problem(head_dim=16, use_softcap=True, window=37, sinks=9, **sizes)
    arrays = OPERATOR.inputs(problem, np.random.default_rng(0), "large_logits")
    outputs, _ = run(problem, replace(TILE, splits=2), arrays, MMA_SYNC)
    assert all(error.ok for error in errors(OPERATOR, problem, arrays, outputs))


@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_the_size_of_a_page_changes_no_bit(page_size: int) -> None:
    whole, config = of_case("d8_three_stages", batch=2, heads=4, kv_heads=2, seq_q=37, page_size=256, max_pages=1)
    problem = replace(whole, page_size=page_size, max_pages=256 // page_size, pages=0)
    arrays = of_lengths(whole, [256, 131])
    keys = tuple(np.nan_to_num(arrays[name])[arrays["block_table"][:, 0].clip(0)] for name in ("k_cache", "v_cache"))
    table, (k, v) = paged(problem, np.random.default_rng(1), [256, 131], keys)
    expected, _ = run(whole, config, arrays, MMA_SYNC)
    result, _ = run(problem, config, arrays | {"block_table": table, "k_cache": k, "v_cache": v}, MMA_SYNC)
    assert np.array_equal(expected["o"], result["o"])


def test_pages_outside_of_the_window_are_not_looked_at() -> None:
    sizes = {"batch": 1, "heads": 1, "kv_heads": 1, "seq_q": 3, "page_size": 4, "max_pages": 40}
    problem, config = of_case("d8_three_stages", window=9, sinks=3, **sizes)
    arrays = of_lengths(problem, [150])
    expected = OPERATOR.reference(problem, arrays)
    attended = {j // 4 for j in (*range(3), *range(139, 150))}
    arrays["block_table"][0, [page for page in range(40) if page not in attended]] = -(2**31)
    outputs, _ = run(problem, config, arrays, MMA_SYNC)
    np.testing.assert_allclose(outputs["o"].astype(float), expected["o"], atol=0.02)


@pytest.mark.parametrize("name", PACKED)
def test_packed_queries_attend_the_positions_of_their_own_sequence(name: str) -> None:
    implementation, config = PACKED[name]
    problem, arrays = packed(LENGTHS, QUERIES)
    outputs, _ = run(problem, config, arrays, implementation)
    assert all(error.ok for error in errors(OPERATOR, problem, arrays, outputs))


def test_no_share_of_packed_queries_is_longer_than_it_has_to_be() -> None:
    """Tiles of the block that waits for most: its barriers say them."""
    _, config = PACKED["mma_sync_in_shares"]
    problem, arrays = packed(LENGTHS, QUERIES)
    _, happened = run(problem, config, arrays, MMA_SYNC)
    blocks = MMA_SYNC.plan(problem, config).launches[0].grid[0]
    tiles, steps = (-(-np.array(choice) // 16) for choice in (QUERIES, LENGTHS))  # of 16 queries of two heads; of keys
    parts = (int(np.sum(tiles * np.maximum(-(-steps // most), 1))) for most in range(1, 9))
    least = next(most for most, count in enumerate(parts, 1) if count * 2 <= blocks)
    columns = list(type(happened.counters).__dataclass_fields__)
    barriers = happened.block_counters[:blocks, columns.index("barriers")]
    assert barriers.max() == 2 * least + 1


@pytest.mark.parametrize("name", PACKED)
def test_bounds_that_no_packing_has_harm_no_other_sequence(name: str) -> None:
    """The last sequence ends beyond T, the second has more queries than the longest is said to have."""
    implementation, config = PACKED[name]
    problem, arrays = packed([96, 70, 20], [3, 40, 5], longest=8)
    expected = OPERATOR.reference(problem, arrays)
    arrays["cu_seqlens_q"][-1] += 100
    outputs, _ = run(problem, config, arrays, implementation)
    rows = [*range(3 + 8), *range(3 + 40, 48)]  # without the others of the second
    np.testing.assert_allclose(outputs["o"][:, rows].astype(float), expected["o"][:, rows], atol=0.02)


def test_packed_problems_say_what_they_are() -> None:
    with pytest.raises(UsageError, match="batch 2: cu_seqlens_q packs"):
        Problem(use_cu_seqlens_q=True, batch=2)
    problem = Problem(use_cu_seqlens_q=True, batch=1, seq_q=100, sequences=8, max_seqlen_q=1000)
    assert (problem.max_seqlen_q, problem.pages, problem.boundaries) == (100, 8 * 512, 9)
    assert unpacked(problem) == Problem(batch=8, seq_q=12)


@pytest.mark.parametrize(
    ("sizes", "name"),
    [
        ({"seq_q": 1}, "split_keys"),
        ({"seq_q": 4, "batch": 1}, "split_keys"),
        ({"seq_q": 64, "batch": 1}, "mma_sync"),
        ({"seq_q": 4096}, "mma_sync"),
        ({"seq_q": 64, "batch": 1, "use_cu_seqlens_q": True, "sequences": 64, "max_seqlen_q": 1}, "split_keys"),
        ({"seq_q": 575, "batch": 1, "use_cu_seqlens_q": True, "sequences": 64, "max_seqlen_q": 512}, "mma_sync"),
    ],
)
def test_prompts_run_in_full_tiles_and_steps_of_decoding_share_keys(sizes: dict[str, Any], name: str) -> None:
    assert choose(OPERATOR, Problem(**sizes), (H200,), Snapshot({}, ())).instance.implementation.name == name


def test_blocks_share_keys_where_rows_are_few() -> None:
    results = [MMA_SYNC.default(Problem(batch=1, seq_q=T), H200.arch).splits for T in (16, 64, 128, 512)]
    assert results == [16, 8, 4, 1]


# Each head_dim and each arch; numbers of queries, softcaps and packing are dealt out.
COMPILED = list(zip((256, 192, 72), DISTINCT_ARCHES[::3], strict=True))


@pytest.mark.parametrize("i", range(len(COMPILED)), ids=[f"d{D}-{arch}" for D, arch in COMPILED])
@pytest.mark.slow
def test_defaults_never_spill(i: int) -> None:
    D, arch = COMPILED[i]
    options: dict[str, Any] = ({}, {"use_softcap": True}, {"use_cu_seqlens_q": True})[i % 3]
    problem = Problem(head_dim=D, batch=1, seq_q=(128, 2048)[i % 2], **options)
    assert_no_spills(OPERATOR, MMA_SYNC, problem, arch)
