"""mla_decode: its definition, what it reads, how blocks share sequences, and its kernels on the emulator."""

from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.claims import assert_no_spills, assert_right_at_edges
from tests.support.counted import counted, declared
from tests.support.injected import injected
from tuner import operators
from tuner.arch import ARCHES, gpu
from tuner.backends import emulator
from tuner.backends.emulator import Mode
from tuner.base.cache import Cache
from tuner.compiler.lint import lint_all
from tuner.compiler.nvrtc import compile as compile_source
from tuner.compiler.render import render
from tuner.compiler.toolkit import Options
from tuner.dispatcher.calls import Dispatcher
from tuner.errors import InputError, UsageError
from tuner.evaluate.check.checker import CHECKED, PLAIN
from tuner.evaluate.check.compare import errors
from tuner.operators.mla_decode.problem import Problem
from tuner.operators.mla_decode.split_keys.config import Config
from tuner.operators.mla_decode.wgmma.implementation import Config as WgmmaConfig
from tuner.operators.paged_attention.cases import paged
from tuner.results.attempt import Failed
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance
from tuner.store.records import Snapshot

OPERATOR = operators.load("mla_decode")
NAIVE, SPLIT_KEYS, WGMMA = (operators.implementation("mla_decode", name) for name in ("naive", "split_keys", "wgmma"))
H200 = gpu("H200")
EMPTY = Snapshot({}, ())

# Every tunable at least twice: 8 keys per warp, with and without an odd step of columns, and 16 and more; a warp a row,
# two and four; rows of a pass that are all there or half. On wgmma, late rows that are half of a tile or a quarter, and
# Q in registers as far as none, a third and half of its columns. Those of 576 columns are defaults, and built already.
CASES: dict[str, tuple[int, int, Any]] = {
    "d576_four_groups_of_warps": (576, 512, Config(64, 32, 8, 2, 2, 3)),
    "d336_8_keys_a_warp": (336, 256, Config(32, 16, 4, 2, 3, 1)),
    "d64_one_warp_a_row": (64, 48, Config(32, 32, 2, 1, 2, 2)),
    "d80_32_rows_a_warp": (80, 64, Config(64, 64, 8, 4, 3, 1)),
    "wgmma_d576": (576, 512, WgmmaConfig(64, 2, 192, 16, 2)),
    "wgmma_d192_tiles_of_32": (192, 128, WgmmaConfig(32, 3, 0, 16, 2)),
    "wgmma_d128_half_is_late": (128, 128, WgmmaConfig(64, 3, 64, 32, 1)),
}
SMALL = CASES["d64_one_warp_a_row"]
BOTH = pytest.mark.parametrize(("implementation", "config"), [(SPLIT_KEYS, SMALL[2]), (NAIVE, NAIVE.config(32, 16))])


def of_case(name: str, **sizes: int) -> tuple[Problem, Any]:
    """Problem and config, of which all tests of a case build one kernel."""
    D, DV, config = CASES[name]
    return Problem(head_dim=D, head_dim_v=DV, dtype=DType.FP16 if D % 64 else DType.BF16, **sizes), config


def of_lengths(problem: Problem, lengths: list[int], kind: str = "normal") -> dict[str, Any]:
    """Inputs with these lengths."""
    rng = np.random.default_rng(0)
    arrays = OPERATOR.inputs(problem, rng, kind)
    rows = rng.standard_normal((problem.batch, problem.seq_k, problem.head_dim)).astype(problem.dtype.numpy)
    table, (cache,) = paged(problem, rng, lengths, (rows,))  # type: ignore[arg-type]  # of which it reads the sizes
    return {**arrays, "block_table": table, "kv_cache": cache, "cache_seqlens": np.array(lengths, np.int32)}


def run(problem: Problem, config: Any, arrays: Any, implementation: Any = SPLIT_KEYS, mode: Any = CHECKED[0]) -> Any:
    outputs, happened = emulator.run(Instance(OPERATOR, implementation, problem, config), arrays, mode)
    assert not happened.findings, happened.findings[0]
    return outputs, happened


def assert_right(problem: Problem, arrays: Any, outputs: Any) -> None:
    assert all(error.ok for error in errors(OPERATOR, problem, arrays, outputs))


@pytest.mark.parametrize(
    ("field", "value"),
    [("page_size", 12), ("max_pages", 0), ("head_dim", 24), ("head_dim_v", 592), ("heads", 0), ("pages", -1)],
)
def test_a_wrong_size_is_refused_by_name_and_value(field: str, value: int) -> None:
    with pytest.raises(UsageError, match=rf"{field} {value}"):
        Problem(**{field: value})


def test_values_wider_than_rows_are_refused() -> None:
    with pytest.raises(UsageError, match="head_dim_v 128: mla_decode supports 16 to head_dim 64"):
        Problem(head_dim=64, head_dim_v=128)


def test_more_rows_than_kernels_count_are_refused() -> None:
    with pytest.raises(UsageError, match=r"batch · heads · seq_q goes up to"):
        Problem(batch=2**20, heads=2**12)
    with pytest.raises(UsageError, match="of all sequences together to 17179869184"):
        Problem(batch=2**10, max_pages=2**20, page_size=32)


def test_the_reference_agrees_with_the_definition_row_by_row() -> None:
    problem = Problem(head_dim=32, head_dim_v=16, batch=3, heads=2, seq_q=3, page_size=2, max_pages=4)
    lengths = (7, 2, 0)
    arrays = of_lengths(problem, [*lengths])
    reference = OPERATOR.reference(problem, arrays)
    for b, t, h in np.ndindex(3, 3, 2):
        attended = [(arrays["block_table"][b, j // 2], j % 2) for j in range(lengths[b] - 3 + t + 1)]
        rows = [arrays["kv_cache"][place].astype(float) for place in attended]
        q, scale = arrays["q"][b, t, h].astype(float), arrays["softmax_scale"]
        weights = np.array([np.exp(scale * q @ row) for row in rows])
        expected = sum((w * row[:16] for w, row in zip(weights, rows, strict=True)), np.zeros(16))
        np.testing.assert_allclose(reference["o"][b, t, h], expected / weights.sum() if rows else 0)
        assert reference["lse"][b, h, t] == pytest.approx(np.log(weights.sum()) if rows else -np.inf)


@pytest.mark.parametrize("case", CASES)
def test_every_tunable_is_right_over_the_tails(case: str) -> None:
    problem, config = of_case(case)
    kernel = WGMMA if isinstance(config, WgmmaConfig) else SPLIT_KEYS
    assert kernel.space(problem, H200.arch).refusal(config) is None
    modes = cycle((CHECKED[0], Mode(True, "reverse", "late")))
    for tail, kind, mode in zip(OPERATOR.tails(problem), OPERATOR.input_kinds, modes, strict=False):
        arrays = OPERATOR.inputs(tail, np.random.default_rng(1), kind)
        assert_right(tail, arrays, run(tail, config, arrays, kernel, mode)[0])


@pytest.mark.parametrize("case", CASES)
def test_declared_work_is_what_the_emulator_counts_where_tables_are_full(case: str) -> None:
    """And there is no bank conflict."""
    of_any_size, config = of_case(case)
    kernel = WGMMA if isinstance(config, WgmmaConfig) else SPLIT_KEYS
    for problem in OPERATOR.tails(of_any_size):
        _, happened = run(problem, config, of_lengths(problem, [problem.seq_k] * problem.batch), kernel)
        works = [
            replace(launch_work, mma=launch_work.mma + launch_work.wgmma)
            for launch_work in kernel.work(problem, config, H200)
        ]
        assert declared(works) == counted(happened, kernel.plan(problem, config))


@pytest.mark.parametrize("batch", [2, 40])
def test_no_share_of_a_ragged_batch_is_longer_than_it_has_to_be(batch: int) -> None:
    """Tiles of the block that multiplies most: its mma count says them."""
    problem, config = of_case("d64_one_warp_a_row", batch=batch, heads=1, page_size=16, max_pages=40)
    lengths = np.random.default_rng(batch).integers(0, 160, batch).tolist()
    lengths[1] = problem.seq_k
    arrays = of_lengths(problem, lengths)
    outputs, happened = run(problem, config, arrays, mode=PLAIN[0])
    assert_right(problem, arrays, outputs)
    attend, _ = SPLIT_KEYS.plan(problem, config).launches
    tiles = np.array(lengths) // -config.BN * -1
    least = next(n for n in range(1, 99) if np.maximum(-(-tiles // n), 1).sum() <= attend.grid[0])
    columns = list(type(happened.counters).__dataclass_fields__)
    mma = happened.block_counters[: attend.grid[0]][:, columns.index("mma_m16n8k16")]
    assert mma.max() == mma.sum() / tiles.sum() * least


@BOTH
def test_lengths_that_no_table_has_count_as_the_nearest(implementation: Any, config: Any) -> None:
    problem, _ = of_case("d64_one_warp_a_row", batch=3, heads=2, seq_q=2, page_size=4, max_pages=10)
    arrays = of_lengths(problem, [0, 40, 40])
    wrong = arrays | {"cache_seqlens": np.array([-7, 41, 2**31 - 1], np.int32)}
    outputs, _ = run(problem, config, wrong, implementation)
    assert_right(problem, arrays, outputs)


@pytest.mark.parametrize("page_size", [1, 8, 64])
def test_the_size_of_a_page_changes_no_bit(page_size: int) -> None:
    whole, config = of_case("d64_one_warp_a_row", batch=2, heads=4, seq_q=2, page_size=256, max_pages=1)
    problem = replace(whole, page_size=page_size, max_pages=256 // page_size, pages=0)
    arrays = of_lengths(whole, [256, 131])
    rows = np.nan_to_num(arrays["kv_cache"])[arrays["block_table"][:, 0]]
    table, (cache,) = paged(problem, np.random.default_rng(1), [256, 131], (rows,))  # type: ignore[arg-type]
    expected, _ = run(whole, config, arrays)
    result, _ = run(problem, config, arrays | {"block_table": table, "kv_cache": cache})
    assert np.array_equal(expected["o"], result["o"])


def test_rows_and_tables_may_be_slices_of_larger_tensors() -> None:
    problem, config = of_case("d64_one_warp_a_row", batch=2, heads=4, seq_q=2, page_size=4, max_pages=20)
    arrays = of_lengths(problem, [80, 33])
    wide = np.concatenate([arrays["kv_cache"], arrays["kv_cache"]], axis=2)
    tables = np.concatenate([arrays["block_table"], arrays["block_table"]], axis=1)
    plain, _ = run(problem, config, arrays)
    strided, _ = run(problem, config, arrays | {"kv_cache": wide[:, :, :64], "block_table": tables[:, :20]})
    assert np.array_equal(plain["o"], strided["o"])


def test_the_naive_kernel_serves_fp32() -> None:
    problem = Problem(head_dim=48, head_dim_v=32, dtype=DType.FP32)
    assert_right_at_edges(Instance.default(OPERATOR, NAIVE, problem, ARCHES["sm_80"]), PLAIN[:1])
    assert "fp32" in (SPLIT_KEYS.refusal(problem, ARCHES["sm_80"]) or "")


@pytest.mark.parametrize("arch", ARCHES.values(), ids=ARCHES)
def test_every_width_that_is_not_refused_has_a_default(arch: Any) -> None:
    for DV in range(16, 577, 16):
        for D in {DV, max(DV, 320), 576}:
            for heads in (1, 16, 128):
                problem = Problem(head_dim=D, head_dim_v=DV, heads=heads)
                if SPLIT_KEYS.refusal(problem, arch) is None:
                    config = SPLIT_KEYS.default(problem, arch)
                    assert SPLIT_KEYS.space(problem, arch).refusal(config) is None


def test_every_config_of_a_space_gives_warps_whole_rows_and_whole_tiles_of_keys() -> None:
    for config in SPLIT_KEYS.space(Problem(head_dim=64, head_dim_v=64), H200.arch):
        groups, left = divmod(config.warps, config.parts)
        assert left == 0
        assert config.BM in (16 * groups, 32 * groups)
        assert config.BN % (8 * config.parts) == 0


def test_values_that_warps_cannot_share_are_refused_with_the_reason() -> None:
    refusal = SPLIT_KEYS.refusal(Problem(head_dim_v=272), H200.arch)
    assert refusal is not None
    assert "head_dim_v 272: above 256" in refusal


def test_the_default_fills_its_rows_with_heads_and_queries() -> None:
    sizes = ({"heads": 16}, {"heads": 16, "seq_q": 2}, {"heads": 16, "seq_q": 4}, {"heads": 128})
    assert [SPLIT_KEYS.default(Problem(**size), H200.arch).BM for size in sizes] == [16, 32, 64, 64]


@pytest.mark.parametrize(("heads", "least"), [(16, 1.03), (64, 1.06), (128, 1.11)])
def test_the_default_moves_little_more_than_it_has_to(heads: int, least: float) -> None:
    problem = Problem(heads=heads)
    works = SPLIT_KEYS.work(problem, SPLIT_KEYS.default(problem, H200.arch), H200)
    assert sum(work.dram_bytes for work in works) <= least * OPERATOR.cost(problem).bytes


def test_a_cache_with_a_dim_of_one_head_is_taken_as_flashmla_has_it() -> None:
    arrays = of_lengths(Problem(head_dim=64, head_dim_v=48, batch=2, heads=2, page_size=4, max_pages=2), [8, 3])
    q, cache, *read = (arrays[name] for name in ("q", "kv_cache", "block_table", "cache_seqlens"))
    at = Dispatcher(EMPTY)
    o, lse = at.call("mla_decode", q, cache[:, :, None], *read, head_dim_v=48)
    expected, of_all = at.call("mla_decode", q, cache, *read, head_dim_v=48)
    assert np.array_equal(o, expected)
    assert np.array_equal(lse, of_all)
    with pytest.raises(InputError, match=r"kv_cache is \[4, 4, 2, 64\]: all heads share its rows"):
        at.call("mla_decode", q, np.stack([cache, cache], axis=2), *read, head_dim_v=48)


# Heads that fill the rows of a block, over arches that differ in shared memory.
@pytest.mark.parametrize(("heads", "arch"), [(16, "sm_80"), (32, "sm_90a")])
@pytest.mark.slow
def test_defaults_of_fewer_heads_never_spill(heads: int, arch: str) -> None:
    assert_no_spills(OPERATOR, SPLIT_KEYS, Problem(heads=heads), arch)


def test_exponentials_of_wgmma_run_over_a_product() -> None:
    problem = Problem()
    source = render(Instance.default(OPERATOR, WGMMA, problem, H200.arch))
    cubin = compile_source(source, Options("sm_90a"), Cache.of("cubin"))
    assert not isinstance(cubin, Failed), cubin.log
    assert lint_all(cubin).failures == ()


@pytest.mark.parametrize(
    ("sizes", "arch", "said"),
    [
        ({}, "sm_100a", "sm_100a has no wgmma"),
        ({"head_dim": 80, "head_dim_v": 64}, "sm_90a", "head_dim 80: panels"),
        ({"head_dim_v": 448}, "sm_90a", "head_dim_v 448: two warpgroups"),
        ({"dtype": DType.FP32}, "sm_90a", "dtype fp32"),
    ],
)
def test_wgmma_says_what_it_does_not_serve(sizes: dict[str, Any], arch: str, said: str) -> None:
    assert said in (WGMMA.refusal(Problem(**sizes), ARCHES[arch]) or "")


# File, what becomes what, and the finding or the wrong output that gives it away.
BUGS = {
    "p_is_not_handed_over": (
        "wgmma/products.cuh",
        "      fence_proxy_async();\n      __syncthreads();",
        "      __syncthreads();",
        "proxy_fence",
    ),
    "late_rows_are_filled_while_they_are_read": (
        "wgmma/products.cuh",
        "      end_basic_block(",
        "      ring.issue_late();\n      end_basic_block(",
        "in_flight",
    ),
    "o_is_not_scaled": ("wgmma/products.cuh", "      rescale(r_o, factor);\n", "", "o"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_in_the_kernel_is_seen(bug: str, tmp_path: Path) -> None:
    file, old, new, seen = BUGS[bug]
    broken = injected(OPERATOR, tmp_path, file, old, new)
    problem, config = of_case("wgmma_d128_half_is_late", batch=1, heads=2, max_pages=5)
    arrays = OPERATOR.inputs(problem, np.random.default_rng(0), "large_logits")
    outputs, happened = emulator.run(Instance(broken, WGMMA, problem, config), arrays, CHECKED[0])
    wrong = {error.name for error in errors(OPERATOR, problem, arrays, outputs) if not error.ok}
    assert seen in wrong | {finding.kind for finding in happened.findings}
