"""Does the prediction order configs as hand tuning found?

FlashAttention-2's launch table says, in words, of an A100: head_dim 64 takes 128 × 128 on 4 warps, and 8 or 2 warps are
slower; head_dim 96 and 128 take 128 × 64 on 4 warps, and 8 are slower. Its decoding takes the fewest splits of the keys
that fill the waves of its grid, and none where row tiles fill it. Streams were measured by others.
"""

from dataclasses import replace
from math import ceil, log2

import pytest

from tuner import operators
from tuner.arch import GPU, gpu
from tuner.compiler.nvrtc import Compiler
from tuner.evaluate.check.checker import Checker
from tuner.evaluate.predict.cost import formula, uncompiled
from tuner.evaluate.predictor import Predictor
from tuner.operators.flash_attention.split_keys.config import SPLITS
from tuner.spec.instance import Instance
from tuner.spec.operator import Work

Tile = tuple[int, int, int]  # BM, BN, warps


def costs(head_dim: int, tiles: list[Tile]) -> dict[Tile, float]:
    """The least predicted cost of each tile over the other choices, at most a few bytes spilled outside the loop."""
    operator, target = operators.load("flash_attention"), gpu("A100")
    implementation = operators.implementation("flash_attention", "mma_sync")
    problem = operator.problem(head_dim=head_dim)
    wanted = [
        Instance(operator, implementation, problem, c)
        for c in implementation.space(problem, target.arch)
        if (c.BM, c.BN, c.warps) in tiles and (c.stages, c.d_warps, c.min_ctas) == (2, 1, 1)
        if c.swizzle and c.lazy_rescale
    ]
    results: dict[Tile, float] = {}
    with Compiler(1) as compiler:
        for i, attempt in Predictor(target, compiler, Checker()).try_all(wanted):
            c = wanted[i].config
            tile = (c.BM, c.BN, c.warps)
            if attempt.value is not None and attempt.resources and attempt.resources.spill_bytes <= 32:
                results[tile] = min(attempt.value, results.get(tile, attempt.value))
    return results


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head_dim", "best", "slower"),
    [
        (64, (128, 128, 4), [(128, 128, 8), (64, 128, 2), (64, 64, 4)]),
        (96, (128, 64, 4), [(128, 64, 8), (64, 64, 4)]),
        (128, (128, 64, 4), [(128, 64, 8), (128, 128, 8), (64, 64, 4)]),
    ],
)
def test_the_tiles_that_hand_tuning_chose_rank_first(head_dim: int, best: Tile, slower: list[Tile]) -> None:
    result = costs(head_dim, [best, *slower])
    assert min(result, key=lambda tile: result[tile]) == best


def splits_by_waves(blocks: int, sm_count: int, tiles: int) -> int:
    """FlashAttention's choice: the fewest splits whose waves are filled 85 % as well as those of the best number."""
    if blocks >= 0.8 * sm_count:
        return 1
    filled = {n: blocks * n / sm_count / ceil(blocks * n / sm_count) for n in range(1, min(128, sm_count, tiles) + 1)}
    return next(n for n, share in filled.items() if share >= 0.85 * max(filled.values()))


# TFLOP/s of FlashAttention-3 over FlashAttention-2 on an H100, forward, 16k tokens (arXiv 2407.08608, figure 5).
OVER_MMA_SYNC = [(64, 497 / 324), (128, 648 / 370)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("head_dim", "published"), OVER_MMA_SYNC)
def test_wgmma_gains_over_mma_sync_what_was_published_of_kernels_alike(head_dim: int, published: float) -> None:
    operator, target = operators.load("flash_attention"), gpu("H100")
    problem = operator.problem(head_dim=head_dim, batch=4, heads=16, kv_heads=16, seq_q=4096, seq_k=4096)
    cost = {}
    with Compiler(1) as compiler:
        for name in ("mma_sync", "wgmma"):
            kernel = operators.implementation("flash_attention", name)
            wanted = Instance.default(operator, kernel, problem, target.arch)
            ((_, attempt),) = Predictor(target, compiler, Checker()).try_all([wanted])
            assert attempt.value is not None
            cost[name] = attempt.value
    assert cost["mma_sync"] / cost["wgmma"] == pytest.approx(published, rel=0.1)


DECODING = [(1, 8, 1024), (1, 8, 8192), (1, 8, 131072), (4, 8, 8192), (16, 8, 8192), (64, 8, 4096), (1, 1, 65536)]


@pytest.mark.parametrize("name", ["A100", "H100", "H200", "RTX 4070"])
@pytest.mark.parametrize(("batch", "kv_heads", "keys"), DECODING)
def test_the_splits_that_published_heuristics_take_are_near_the_best(
    name: str, batch: int, kv_heads: int, keys: int
) -> None:
    target, kernel = gpu(name), operators.implementation("flash_attention", "split_keys")
    operator = operators.load("flash_attention")
    problem = operator.problem(batch=batch, heads=8 * kv_heads, kv_heads=kv_heads, seq_q=1, seq_k=keys, causal=True)
    default, space = kernel.default(problem, target.arch), kernel.space(problem, target.arch)
    configs = {n: replace(default, splits=n) for n in (1, 2, 4, 8, 16, 32, 64, 128)}
    costs = {
        n: uncompiled(kernel.plan(problem, config), kernel.work(problem, config, target), target).cost
        for n, config in configs.items()
        if space.refusal(config) is None
    }
    taken = splits_by_waves(batch * kv_heads, target.device.sm_count, -(-keys // 128))
    nearest = min(costs, key=lambda n: abs(log2(n / taken)))
    assert costs[nearest] < 1.3 * min(costs.values())
    assert costs[1] > min(nearest / 4, 3) * costs[nearest]


@pytest.mark.parametrize("name", ["A100", "RTX 4070", "RTX 4090", "H100", "H200", "B200"])
@pytest.mark.parametrize(("batch", "kv_heads", "keys"), DECODING)
def test_the_splits_of_a_default_are_near_the_best(name: str, batch: int, kv_heads: int, keys: int) -> None:
    target, kernel = gpu(name), operators.implementation("flash_attention", "split_keys")
    problem = operators.load("flash_attention").problem(
        batch=batch, heads=8 * kv_heads, kv_heads=kv_heads, seq_q=1, seq_k=keys, causal=True
    )
    default = kernel.default(problem, target.arch)
    configs = {n: replace(default, splits=n) for n in SPLITS}
    costs = {
        n: uncompiled(kernel.plan(problem, config), kernel.work(problem, config, target), target).cost
        for n, config in configs.items()
    }
    assert costs[default.splits] < 1.2 * min(costs.values())


def default_cost(name: str, target: GPU, **fields: int) -> float:
    operator, kernel = operators.load("flash_attention"), operators.implementation("flash_attention", name)
    problem = operator.problem(head_dim=128, causal=True, **fields)
    config = kernel.default(problem, target.arch)
    return uncompiled(kernel.plan(problem, config), kernel.work(problem, config, target), target).cost


@pytest.mark.parametrize("name", ["A100", "A10", "RTX 4070", "L4", "H200", "B200"])
@pytest.mark.parametrize(("heads", "keys"), [(32, 1024), (32, 8192), (8, 8192)])
def test_keys_are_split_for_a_query_and_not_for_a_prompt_that_fills_the_device(
    name: str, heads: int, keys: int
) -> None:
    target = gpu(name)
    prompt = 1024 if heads * 8 > 0.8 * target.device.sm_count else 4096  # tiles of 128 rows
    for queries, split in ((1, True), (min(prompt, keys), False)):
        sizes = {"batch": 1, "heads": heads, "kv_heads": 8, "seq_q": queries, "seq_k": keys}
        ratio = default_cost("split_keys", target, **sizes) / default_cost("mma_sync", target, **sizes)
        assert (ratio < 0.8) if split else (ratio > 1)


# GB/s that were measured (github.com/te42kyfo/gpu-benches, gpu-stream): two blocks per SM, a thread reads one fp64 of
# `loads` tensors, and writes one where there are two.
STREAMS = [
    ("A100", 2, 1, 167),
    ("A100", 8, 1, 619),
    ("A100", 32, 1, 1769),
    ("A100", 2, 2, 427),
    ("A100", 8, 2, 1372),
    ("H200", 2, 1, 244),
    ("H200", 8, 1, 935),
    ("H200", 32, 1, 2756),
    ("H200", 2, 2, 638),
    ("H200", 8, 2, 1905),
    ("L40S", 2, 1, 320),
    ("L40S", 8, 1, 844),
    ("L40S", 2, 2, 702),
]


@pytest.mark.parametrize(("name", "warps", "loads", "measured"), STREAMS)
def test_a_stream_of_few_bytes_in_flight_gets_the_share_of_the_memory_that_was_measured(
    name: str, warps: int, loads: int, measured: float
) -> None:
    target, elements = gpu(name), 2.0**27
    moved = 8 * elements * (loads + (loads > 1))
    stream = Work(
        ctas=int(elements) // (32 * warps),
        warps=warps,
        mma=0,
        fma=0,
        mufu=0,
        alu=elements / 4,
        smem_wavefronts=0,
        l2_bytes=moved,
        dram_bytes=moved,
        barriers=0,
        longest_cta=1,
        chain=1,
    )
    predicted = moved / target.device.dram_bytes_per_clock / formula(stream, target, 2).cost
    assert 0.65 < predicted / (measured / target.device.dram_gb_s) < 1.1
