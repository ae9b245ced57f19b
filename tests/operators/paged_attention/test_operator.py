"""paged_attention: its definition, what it reads, how blocks share sequences, and its kernels on the emulator."""

from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np
import pytest

from tests.support.claims import DISTINCT_ARCHES, assert_no_spills, assert_right_at_edges
from tests.support.counted import counted, declared
from tuner import operators
from tuner.arch import ARCHES, gpu
from tuner.backends import emulator
from tuner.backends.emulator import Mode
from tuner.dispatcher.calls import Dispatcher
from tuner.errors import InputError, UsageError
from tuner.evaluate.check.checker import CHECKED, PLAIN
from tuner.evaluate.check.compare import errors
from tuner.operators.flash_attention.split_keys.config import Config
from tuner.operators.paged_attention.cases import paged
from tuner.operators.paged_attention.problem import Problem
from tuner.operators.paged_attention.split_keys.work import Shared
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance
from tuner.store.records import Snapshot

OPERATOR = operators.load("paged_attention")
NAIVE, SPLIT_KEYS = (operators.implementation("paged_attention", name) for name in ("naive", "split_keys"))
H200 = gpu("H200")
EMPTY = Snapshot({}, ())

BASE = Config(BM=16, BN=16, warps=2, stages=2, splits=1, q_in_registers=False)
# Every tunable away from BASE at least once, with rows of a pass in one, two and three parts of a lane's keys.
CASES = {
    "d8_two_row_tiles": (8, replace(BASE, BM=32, splits=4)),
    "d40_one_split": (40, replace(BASE, warps=4, stages=3)),
    "d72_wide_tiles": (72, replace(BASE, BN=64, splits=3, q_in_registers=True)),
    "d80_tiles_of_48_keys": (80, replace(BASE, BN=48, splits=2)),
    "d128_more_shares_than_steps": (128, replace(BASE, BN=32, warps=4, splits=8)),
    "d256_one_warp": (256, replace(BASE, warps=1, splits=2)),
}


def of_case(name: str, **sizes: int) -> tuple[Problem, Any]:
    """Problem and config, of which all tests of a case build one kernel."""
    D, config = CASES[name]
    return Problem(head_dim=D, dtype=DType.FP16 if D % 16 else DType.BF16, **sizes), config


SPLIT_D8 = CASES["d8_two_row_tiles"][1]
BOTH = pytest.mark.parametrize(("implementation", "config"), [(SPLIT_KEYS, SPLIT_D8), (NAIVE, NAIVE.config(32, 8))])


def of_lengths(problem: Problem, lengths: list[int], seed: int = 0) -> dict[str, Any]:
    """Inputs with these lengths."""
    rng = np.random.default_rng(seed)
    arrays = OPERATOR.inputs(problem, rng, "normal")
    shape = (2, problem.batch, problem.seq_k, problem.kv_heads, problem.head_dim)
    table, (k, v) = paged(problem, rng, lengths, tuple(rng.standard_normal(shape).astype(problem.dtype.numpy)))
    return {**arrays, "block_table": table, "k_cache": k, "v_cache": v, "cache_seqlens": np.array(lengths, np.int32)}


def packed(lengths: list[int], queries: list[int], *, head_dim: int = 8, longest: int = 0) -> tuple[Problem, Any]:
    """Sequences of so many positions, the last of which are queries."""
    problem = Problem(
        head_dim=head_dim,
        use_cu_seqlens_q=True,
        batch=1,
        heads=4,
        kv_heads=2,
        seq_q=sum(queries),
        sequences=len(queries),
        page_size=8,
        max_pages=12,
    )
    arrays = OPERATOR.inputs(problem, np.random.default_rng(0), "normal")
    shape = (2, len(lengths), problem.seq_k, 2, head_dim)
    keys = np.random.default_rng(1).standard_normal(shape).astype(problem.dtype.numpy)
    table, (k, v) = paged(problem, np.random.default_rng(2), lengths, tuple(keys))
    bounds = np.cumsum([0, *queries]).astype(np.int32)
    given = {"block_table": table, "k_cache": k, "v_cache": v, "cu_seqlens_q": bounds}
    return replace(problem, max_seqlen_q=longest), arrays | given | {"cache_seqlens": np.array(lengths, np.int32)}


def run(problem: Problem, config: Any, arrays: Any, implementation: Any = SPLIT_KEYS, mode: Any = CHECKED[0]) -> Any:
    outputs, happened = emulator.run(Instance(OPERATOR, implementation, problem, config), arrays, mode)
    assert not happened.findings
    return outputs, happened


@pytest.mark.parametrize(
    ("field", "value"), [("page_size", 12), ("page_size", 0), ("max_pages", 0), ("sinks", -1), ("head_dim", 12)]
)
def test_a_wrong_size_is_refused_by_name_and_value(field: str, value: int) -> None:
    with pytest.raises(UsageError, match=rf"{field} {value}"):
        Problem(**{field: value})


def test_tables_of_more_keys_than_kernels_count_are_refused() -> None:
    with pytest.raises(UsageError, match=r"sequences · max_pages · page_size goes up to 17179869184"):
        Problem(batch=2**10, max_pages=2**20, page_size=32)


@pytest.mark.parametrize(("window", "sinks"), [(0, 0), (3, 1)])
def test_the_reference_agrees_with_the_definition_key_by_key(window: int, sinks: int) -> None:
    sizes = {"batch": 2, "heads": 2, "kv_heads": 1, "seq_q": 3, "page_size": 2, "max_pages": 4}
    problem = Problem(head_dim=8, window=window, sinks=sinks, **sizes)
    arrays, lengths = of_lengths(problem, [7, 2]), (7, 2)
    reference = OPERATOR.reference(problem, arrays)
    for b, t, h in np.ndindex(2, 3, 2):
        p = lengths[b] - 3 + t
        attended = [j for j in range(p + 1) if not window or j < sinks or p - j < window]
        at = [(arrays["block_table"][b, j // 2], j % 2, 0) for j in attended]
        q, scale = arrays["q"][b, t, h].astype(float), arrays["softmax_scale"]
        weights = np.array([np.exp(scale * q @ arrays["k_cache"][place].astype(float)) for place in at])
        expected = sum((w * arrays["v_cache"][i].astype(float) for w, i in zip(weights, at, strict=True)), np.zeros(8))
        np.testing.assert_allclose(reference["o"][b, t, h], expected / weights.sum() if at else 0)
        assert reference["lse"][b, h, t] == pytest.approx(np.log(weights.sum()) if at else -np.inf)


@pytest.mark.parametrize("case", CASES)
def test_every_tunable_gives_the_right_result(case: str) -> None:
    problem, config = of_case(case)
    modes = (Mode(True, "reverse", "early"), CHECKED[0])
    assert_right_at_edges(Instance(OPERATOR, SPLIT_KEYS, problem, config), modes)


@pytest.mark.parametrize(
    "case", ["d40_one_split", "d72_wide_tiles", "d80_tiles_of_48_keys", "d128_more_shares_than_steps"]
)
def test_declared_work_is_what_the_emulator_counts_where_tables_are_full(case: str) -> None:
    of_any_size, config = of_case(case)
    for problem in OPERATOR.tails(of_any_size):
        _, happened = run(problem, config, of_lengths(problem, [problem.seq_k] * problem.batch))
        works = SPLIT_KEYS.work(problem, config, H200)
        assert declared(works) == counted(happened, SPLIT_KEYS.plan(problem, config))


@pytest.mark.parametrize("batch", [2, 5, 40])
def test_no_share_of_a_ragged_batch_is_longer_than_it_has_to_be(batch: int) -> None:
    """Tiles of the block that multiplies most: its mma count says them."""
    problem = Problem(head_dim=8, batch=batch, heads=1, kv_heads=1, page_size=16, max_pages=40)
    lengths = np.random.default_rng(batch).integers(0, 80, batch).tolist()
    lengths[1] = problem.seq_k
    config = replace(BASE, warps=1, splits=3)
    arrays = of_lengths(problem, lengths)
    outputs, happened = run(problem, config, arrays, mode=PLAIN[0])
    assert all(error.ok for error in errors(OPERATOR, problem, arrays, outputs))
    attend, _ = SPLIT_KEYS.plan(problem, config).launches
    tiles = np.array(lengths) // -16 * -1
    least = next(n for n in range(1, 99) if np.maximum(-(-tiles // n), 1).sum() <= attend.grid[0])
    columns = list(type(happened.counters).__dataclass_fields__)
    mma = happened.block_counters[: attend.grid[0]][:, columns.index("mma_m16n8k8")]
    assert mma.max() == mma.sum() / tiles.sum() * least


def test_full_sequences_are_cut_into_equal_parts() -> None:
    assert Shared.of(64, replace(BASE, warps=2, splits=8)) == Shared(32, 4, 8)
    assert Shared.of(20, replace(BASE, warps=2, splits=8)) == Shared(10, 2, 5)
    assert Shared.of(0, replace(BASE, warps=2, splits=8)) == Shared(0, 1, 1)


@BOTH
def test_lengths_that_no_table_has_count_as_the_nearest(implementation: Any, config: Any) -> None:
    problem, _ = of_case("d8_two_row_tiles", batch=3, heads=2, kv_heads=1, seq_q=2, page_size=4, max_pages=5)
    arrays = of_lengths(problem, [0, 20, 20])
    wrong = arrays | {"cache_seqlens": np.array([-7, 21, 2**31 - 1], np.int32)}
    outputs, _ = run(problem, config, wrong, implementation)
    assert all(error.ok for error in errors(OPERATOR, problem, arrays, outputs))


@BOTH
def test_pages_outside_of_the_window_are_not_looked_at(implementation: Any, config: Any) -> None:
    sizes = {"batch": 2, "heads": 1, "kv_heads": 1, "page_size": 4, "max_pages": 40}
    problem, _ = of_case("d8_two_row_tiles", window=9, sinks=3, **sizes)
    arrays = of_lengths(problem, [150, 60])
    expected = OPERATOR.reference(problem, arrays)
    attended = {(0, j // 4) for j in (*range(3), *range(141, 150))} | {(1, j // 4) for j in (*range(3), *range(51, 60))}
    forgotten = [at for at in np.ndindex(2, 40) if at not in attended]
    arrays["block_table"][tuple(np.transpose(forgotten))] = -(2**31)
    outputs, _ = run(problem, config, arrays, implementation)
    np.testing.assert_allclose(outputs["o"].astype(float), expected["o"], atol=0.02)


def test_sequences_may_share_pages() -> None:
    problem, config = of_case("d8_two_row_tiles", batch=4, heads=2, kv_heads=1, page_size=8, max_pages=6)
    arrays = of_lengths(problem, [48, 48, 48, 48])
    arrays["block_table"][1:, :5] = arrays["block_table"][0, :5]
    arrays["block_table"][3] = arrays["block_table"][2]
    outputs, _ = run(problem, config, arrays)
    assert all(error.ok for error in errors(OPERATOR, problem, arrays, outputs))
    assert not np.array_equal(outputs["lse"][0], outputs["lse"][2])


def test_caches_with_heads_before_positions_and_both_in_one_tensor_need_no_copy() -> None:
    sizes = {"batch": 2, "heads": 4, "kv_heads": 2, "seq_q": 2, "page_size": 4, "max_pages": 20}
    problem, config = of_case("d40_one_split", **sizes)
    arrays = of_lengths(problem, [80, 33])
    both = np.stack([arrays["k_cache"], arrays["v_cache"]], axis=1).transpose(0, 1, 3, 2, 4).copy()  # [.., HK, page, D]
    views = {"k_cache": both[:, 0].swapaxes(1, 2), "v_cache": both[:, 1].swapaxes(1, 2)}
    tables = np.concatenate([arrays["block_table"], arrays["block_table"]], axis=1)[:, :20]
    plain, _ = run(problem, config, arrays)
    strided, _ = run(problem, config, arrays | views | {"block_table": tables})
    assert np.array_equal(plain["o"], strided["o"])


@pytest.mark.parametrize("page_size", [1, 4, 32, 128])
def test_the_size_of_a_page_changes_no_bit(page_size: int) -> None:
    sizes = {"batch": 2, "heads": 4, "kv_heads": 2, "seq_q": 2}
    whole, config = of_case("d8_two_row_tiles", page_size=256, max_pages=1, **sizes)
    problem = replace(whole, page_size=page_size, max_pages=256 // page_size, pages=0)
    arrays = of_lengths(whole, [256, 131])
    keys = tuple(np.nan_to_num(arrays[name])[arrays["block_table"][:, 0].clip(0)] for name in ("k_cache", "v_cache"))
    table, (k, v) = paged(problem, np.random.default_rng(1), [256, 131], keys)
    expected, _ = run(whole, config, arrays)
    result, _ = run(problem, config, arrays | {"block_table": table, "k_cache": k, "v_cache": v})
    assert np.array_equal(expected["o"], result["o"])


@pytest.mark.parametrize("implementation", [NAIVE, SPLIT_KEYS], ids=lambda implementation: implementation.name)
def test_scores_are_capped(implementation: Any) -> None:
    problem = Problem(head_dim=16, use_softcap=True, batch=3, heads=4, kv_heads=2, seq_q=2, page_size=8, max_pages=6)
    arrays = OPERATOR.inputs(problem, np.random.default_rng(0), "large_logits")
    config = replace(BASE, splits=2) if implementation is SPLIT_KEYS else NAIVE.config(32, 16)
    outputs, _ = run(problem, config, arrays, implementation)
    assert all(error.ok for error in errors(OPERATOR, problem, arrays, outputs))


def test_the_naive_kernel_serves_fp32() -> None:
    problem = Problem(head_dim=24, dtype=DType.FP32)
    assert_right_at_edges(Instance.default(OPERATOR, NAIVE, problem, ARCHES["sm_80"]), PLAIN)
    assert "fp32" in SPLIT_KEYS.refusal(problem, ARCHES["sm_80"])


def test_the_default_moves_at_most_a_twentieth_more_than_it_has_to() -> None:
    problem = Problem(batch=16, heads=32, kv_heads=8, page_size=16, max_pages=512)
    works = SPLIT_KEYS.work(problem, SPLIT_KEYS.default(problem, H200.arch), H200)
    assert sum(work.dram_bytes for work in works) <= 1.05 * OPERATOR.cost(problem).bytes


def test_the_default_splits_batches_for_lengths_that_differ_and_keeps_steps_for_warps() -> None:
    defaults = [SPLIT_KEYS.default(Problem(batch=b, max_pages=n), H200.arch).splits for b, n in ((64, 512), (64, 16))]
    assert defaults == [4, 2]


def test_a_step_gives_the_last_rows_of_dense_attention() -> None:
    problem = Problem(head_dim=16, batch=2, heads=8, kv_heads=2, seq_q=3, page_size=16, max_pages=20)
    arrays = of_lengths(problem, [300, 300])
    at, given = (
        Dispatcher(EMPTY),
        [arrays[name] for name in ("q", "k_cache", "v_cache", "block_table", "cache_seqlens")],
    )
    o, lse = at.call("paged_attention", *given)
    positions = np.arange(300)
    pages = arrays["block_table"][:, positions // 16]
    k, v = (arrays[name][pages, positions % 16] for name in ("k_cache", "v_cache"))
    expected, of_all = at.call("flash_attention", arrays["q"], k, v, causal=True)
    np.testing.assert_allclose(o.astype(float), expected.astype(float), atol=0.02)
    np.testing.assert_allclose(lse, of_all, atol=1e-4)


def test_arrays_that_do_not_fit_are_refused_by_name() -> None:
    arrays = of_lengths(Problem(head_dim=8, batch=2, heads=1, kv_heads=1, page_size=4, max_pages=2), [8, 8])
    names = ("q", "k_cache", "v_cache", "block_table", "cache_seqlens")
    for name, wrong, message in (
        ("block_table", arrays["block_table"].astype(np.int64), "block_table is int64: it takes int32"),
        ("cache_seqlens", arrays["cache_seqlens"][:1], "sequences is 1"),
        ("v_cache", arrays["v_cache"][:, :2], "page_size is 2, but 4 in k_cache"),
    ):
        with pytest.raises(InputError, match=message):
            Dispatcher(EMPTY).call("paged_attention", *({**arrays, name: wrong}[gradient] for gradient in names))


# Each head_dim and each arch; dtypes and numbers of queries are dealt out.
COMPILED = list(zip((256, 192, 128, 112, 72, 64, 40, 256), cycle(DISTINCT_ARCHES), strict=False))


@pytest.mark.parametrize("i", range(len(COMPILED)), ids=[f"d{D}-{arch}" for D, arch in COMPILED])
@pytest.mark.slow
def test_defaults_never_spill(i: int) -> None:
    D, arch = COMPILED[i]
    problem = Problem(head_dim=D, dtype=(DType.BF16, DType.FP16)[i % 2], seq_q=(1, 8)[i // 2 % 2])
    assert_no_spills(OPERATOR, SPLIT_KEYS, problem, arch)
