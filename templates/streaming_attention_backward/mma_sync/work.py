"""The work of mma_sync on a problem, counted from its loops; exact counts equal the emulator's counters."""

import numpy as np

from tuner.arch import GPU
from tuner.spec import Array, Work

from ...flash_attention.mma_sync.config import ELEMENT
from ...flash_attention.mma_sync.work import copy_wavefronts
from ...flash_attention_backward.mma_sync.config import VALUES_BYTES, WARP, kv_columns
from ...flash_attention_backward.mma_sync.work import Passes, rows_work, work_of_keys, work_of_queries
from ...streaming_attention.visits import Keys, Walks
from ..problem import Problem
from .config import SINK_KEYS, Config

MERGE_THREADS = 128


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    return (
        rows_work(problem),
        work_of_keys(problem, config, _window_passes(problem, config), problem.seq_k - problem.first_keys),
        sinks_work(problem, config),
        merge_work(problem, config),
        work_of_queries(problem, config, _key_passes(problem, config)),
    )


def window_blocks(problem: Problem, config: Config) -> int:
    """Blocks of keys that are not sinks, per head of K and V."""
    return max(-(-(problem.seq_k - problem.first_keys) // config.BN_kv), 1) * config.kv_slices


def sink_blocks(problem: Problem, config: Config) -> int:
    """Blocks of sinks, per head of K and V."""
    return _sink_tiles(problem) * config.sink_splits * config.kv_slices


def merge_blocks(problem: Problem, config: Config) -> int:
    quads = _sink_tiles(problem) * config.kv_slices * _quads(problem, config)
    return max(-(-quads // MERGE_THREADS), 1)


def _sink_tiles(problem: Problem) -> int:
    return -(-problem.first_keys // SINK_KEYS)


def _quads(problem: Problem, config: Config) -> int:
    """Groups of four sums per block of sinks."""
    return 2 * int(kv_columns(problem.head_dim, config)) * WARP


def _window_passes(problem: Problem, config: Config) -> Passes:
    """Query tiles of the blocks of keys; a warp visits those that attend one of its keys."""
    keys, BM, parts = config.BN_kv // config.kv_warps, config.BM_kv, config.kv_warps
    blocks = window_blocks(problem, config) // config.kv_slices
    first = problem.first_keys + np.arange(blocks, dtype=np.int64) * config.BN_kv
    before, reach = problem.seq_k - problem.seq_q, min(problem.window, problem.seq_k)
    begin = np.maximum(first - before, 0)
    last = np.minimum(first + config.BN_kv, problem.seq_k) - 1 - before
    queries = np.maximum(np.minimum(last + reach, problem.seq_q) - begin, 0) * (first < problem.seq_k)
    tiles = -(-queries // BM)
    warp_keys = np.repeat(first, parts) + np.tile(np.arange(parts), blocks) * keys
    start, end = np.repeat(begin + before, parts), np.repeat(tiles, parts)
    visits = int(np.sum(_tiles_within(warp_keys - start, warp_keys + keys - 1 + problem.window - start, BM, end)))
    group = problem.heads // problem.kv_heads
    return Passes(tiles, visits, visits * BM // 16, int(np.sum(queries))) * group


def _tiles_within(begin: Array, end: Array, BM: int, tiles: Array) -> Array:
    """The number of tiles that contain a row in [begin, end), out of `tiles` tiles of BM rows from row 0 on."""
    counts: Array = np.maximum(np.minimum(-(-end // BM), tiles) - np.maximum(begin // BM, 0), 0)
    return counts


def _key_passes(problem: Problem, config: Config) -> Passes:
    """Key tiles of the blocks of queries, in full tiles and narrow spans."""
    blocks = -(-problem.seq_q // config.BM_q)
    walks = Walks(Keys.of(problem.forward, config.BM_q, blocks), config.BN_q)
    warp_queries = Keys.of(problem.forward, config.BM_q // config.q_warps, blocks * config.q_warps)
    full, narrow = walks.spans(warp_queries, config.narrow)
    steps = (full * config.BN_q + narrow * config.narrow) // 16
    return Passes(walks.tiles, full + narrow, steps, int(np.sum(walks.keys_read)))


def sinks_work(problem: Problem, config: Config) -> Work:
    """dK and dV of 16 sinks, over a part of their queries: every warp computes its share of each tile."""
    D, group = problem.head_dim, problem.heads // problem.kv_heads
    columns, mean_columns = float(kv_columns(D, config)), D / 8 / config.kv_slices
    heads, block_sets = problem.batch * problem.kv_heads, config.kv_slices * problem.batch * problem.kv_heads
    first = np.arange(_sink_tiles(problem)) * SINK_KEYS
    queries = problem.seq_q - np.maximum(first - (problem.seq_k - problem.seq_q), 0)
    tiles = group * -(-queries // config.BM_sink)
    passed, read = block_sets * int(np.sum(tiles)), block_sets * group * int(np.sum(queries))
    steps = passed * config.BM_sink / 16
    blocks = heads * sink_blocks(problem, config)
    sums = 16.0 * blocks * _quads(problem, config)
    keys = 2 * ELEMENT * D * block_sets * config.sink_splits * problem.first_keys
    loads = 2 * copy_wavefronts(D, True, config.BM_sink, WARP * config.sink_warps)
    matrices = steps * 4 * (D / 8 + columns) + passed * config.sink_warps * 4 * (D / 8)
    return Work(
        ctas=max(blocks, heads),
        warps=config.sink_warps,
        mma=steps * (4 * (D / 16) + 2 * mean_columns),
        fma=32 * steps,
        mufu=8 * steps,
        alu=steps * (8 + columns / 2) + passed * (config.sink_warps * D / 4 + 10 * config.BM_sink * D / 8 / WARP),
        smem_wavefronts=matrices + 2 * steps + passed * loads + 2 * sums * config.sink_warps / 128,
        l2_bytes=float(read * (2 * ELEMENT * D + VALUES_BYTES) + keys) + sums,
        dram_bytes=_dram_bytes(problem, sums),
        barriers=passed + 2 * blocks,
        chain=float(max((-(-count // config.sink_splits) for count in tiles.tolist()), default=0)),
        stages=config.sink_stages,
    )


def _dram_bytes(problem: Problem, sums: float) -> float:
    """Bytes of Q and dO once for all tiles of sinks, and of the sums passed to `merge`."""
    queries = problem.batch * problem.heads * problem.seq_q * (2 * ELEMENT * problem.head_dim + VALUES_BYTES)
    return float(queries) + sums if problem.first_keys else 0.0


def merge_work(problem: Problem, config: Config) -> Work:
    """Reads every sum of the blocks of sinks once."""
    heads = problem.batch * problem.kv_heads
    quads = heads * sink_blocks(problem, config) * _quads(problem, config)
    written = 2.0 * ELEMENT * problem.head_dim * heads * problem.first_keys
    return Work(
        ctas=heads * merge_blocks(problem, config),
        warps=MERGE_THREADS // WARP,
        fma=4 * quads / WARP,
        alu=4 * quads / WARP,
        l2_bytes=16.0 * quads + written,
        dram_bytes=16.0 * quads + written,
        chain=config.sink_splits / 8,  # number of loads in flight at a time
    )
