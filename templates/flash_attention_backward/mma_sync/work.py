"""The work of mma_sync on a problem, counted from its loops; mma and barriers equal the emulator's counters."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from tuner.arch import GPU
from tuner.spec import Array, Work

from ...flash_attention.mma_sync.config import ELEMENT
from ...flash_attention.mma_sync.work import Visits, copy_wavefronts
from ...flash_attention.problem import unpacked
from ..problem import Problem, key_rows, query_rows
from .config import VALUES_BYTES, WARP, Config, kv_columns


def row_lanes(D: int) -> int:
    """Lanes that share a row of dO and O of D elements, 8 elements each: a power of two."""
    return 1 << (D // 8 - 1).bit_length()


def tiles(problem: Problem, rows: int, tile_rows: int) -> int:
    """Blocks along x for tiles of `tile_rows` rows out of `rows` rows of K or Q; for packed sequences as in
    packed_tiles.cuh."""
    return rows // tile_rows + problem.sequences if problem.use_cu_seqlens else -(-rows // tile_rows)


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    keys = in_grid(problem, config, keys_work, problem.kv_heads * config.kv_slices, problem.seq_k, config.BN_kv)
    queries = in_grid(problem, config, queries_work, problem.heads, problem.seq_q, config.BM_q)
    capped = (with_softcap(rows) if problem.use_softcap else rows for rows in (keys, queries))
    return (rows_work(problem), *capped, *(work_of_logits(problem),) * problem.use_s_aux)


def work_of_logits(problem: Problem, threads: int = 256) -> Work:
    """One block per head reads the values of its queries; reads of cu_seqlens are not counted."""
    rows, warps = query_rows(problem), threads // WARP
    moved = float(VALUES_BYTES * rows + 4 * problem.heads * (threads + 1))
    return Work(
        ctas=problem.heads,
        warps=warps,
        fma=2 * rows / WARP,
        mufu=rows / WARP,
        alu=8 * rows / WARP + 12 * warps * problem.heads,
        smem_wavefronts=problem.heads * (warps + warps * warps),
        l2_bytes=moved,
        dram_bytes=float(VALUES_BYTES * rows),
        barriers=problem.heads,
        chain=problem.batch * problem.seq_q / threads,
    )


def with_softcap(work: Work) -> Work:
    """Adds the softcap: 1.5 MUFU operations per score, and eight FMA operations to cap and differentiate it."""
    return replace(work, fma=work.fma + 8 * work.mufu, mufu=2.5 * work.mufu)


def in_grid(
    problem: Problem, config: Any, work: Callable[[Problem, Any], Work], heads: int, rows: int, tile_rows: int
) -> Work:
    """Packed sequences are counted as if their lengths were equal, in a grid for any lengths: tiles of `tile_rows` rows
    of each head."""
    if not problem.use_cu_seqlens:
        return work(problem, config)
    base, ctas = work(cast(Problem, unpacked(problem)), config), heads * tiles(problem, rows, tile_rows)
    return replace(base, ctas=ctas, longest_cta=max(base.longest_cta * ctas / base.ctas, 1.0))


def unevenness(steps: Array) -> float:
    """The maximum number of steps of a block divided by the mean; 1 if no block has any."""
    return float(np.max(steps) / np.mean(steps)) if np.any(steps) else 1.0


def rows_work(problem: Any) -> Work:
    """dO and O are read once."""
    rows, DV = query_rows(problem), problem.head_dim_v
    moved = float((2 * ELEMENT * DV + VALUES_BYTES + problem.lse_bytes) * rows)
    return work_of_rows(-(-rows * row_lanes(DV) // WARP), moved, moved)


def rows_in_tiles(problem: Problem, rows: int) -> Work:
    """dO and O are read once, in complete tiles of `rows` rows per head."""
    DV, queries, padded_rows = problem.head_dim_v, query_rows(problem), problem.batch * problem.heads * rows
    values_bytes = VALUES_BYTES * padded_rows + problem.lse_bytes * queries
    return work_of_rows(
        -(-padded_rows * row_lanes(DV) // WARP),
        l2_bytes=float(2 * ELEMENT * DV * padded_rows + values_bytes),
        dram_bytes=float((2 * ELEMENT * DV + VALUES_BYTES + problem.lse_bytes) * queries),
    )


def work_of_rows(warps: int, l2_bytes: float, dram_bytes: float) -> Work:
    """A launch in which each lane processes 8 elements of a row with few operations."""
    return Work(
        ctas=-(-warps // 8),
        warps=8,
        fma=16.0 * warps,
        alu=60.0 * warps,
        l2_bytes=l2_bytes,
        dram_bytes=dram_bytes,
        chain=1,
    )


@dataclass(frozen=True, slots=True)
class Passes:
    """Tiles that stream through the blocks of a head: rows of Q and dO, or of K and V."""

    blocks: Array  # tiles per block
    visits: int  # visits of warps to a tile or a part of one
    steps: int  # steps of 16 rows in these visits
    rows: int  # rows read

    def __mul__(self, heads: int) -> "Passes":
        return Passes(heads * self.blocks, heads * self.visits, heads * self.steps, heads * self.rows)


def keys_work(problem: Problem, config: Config) -> Work:
    """dK and dV: the block streams the tiles of queries that attend any of its keys; products count by the keys of a
    warp."""
    group, rows = problem.heads // problem.kv_heads, config.BN_kv // config.kv_warps
    visits = int(np.sum(_steps(problem, rows, config.BM_kv, block=config.BN_kv)))
    read = _rows_read(problem, config.BN_kv, config.BM_kv)
    passes = Passes(_steps(problem, config.BN_kv, config.BM_kv), visits, visits * config.BM_kv // 16, read)
    return work_of_keys(problem, config, passes * group, problem.seq_k)


def work_of_keys(problem: Any, config: Any, passes: Passes, keys: int) -> Work:
    """Work of blocks with `keys` keys in total per head of K and V; `passes` is per head of K and V."""
    D, DV, m = problem.head_dim, problem.head_dim_v, config.BN_kv // config.kv_warps // 16
    all_heads = problem.batch * problem.kv_heads * config.kv_slices
    passed = int(np.sum(passes.blocks))
    total_dim = D + DV
    columns, mean_columns = float(kv_columns(D, config) + kv_columns(DV, config)), total_dim / 8 / config.kv_slices
    scores = passes.steps * m * 8
    matrices = passes.steps * 2 * (total_dim / 8 + columns) + passes.visits * 2 * m * (total_dim / 8)
    loads = sum(copy_wavefronts(dim, True, config.BM_kv, WARP * config.kv_warps) for dim in (D, DV))
    copies = passed * 5 * config.BM_kv * total_dim / 8 / WARP
    key_bytes = ELEMENT * total_dim * problem.batch * problem.kv_heads * keys  # bytes of K and V
    return Work(
        ctas=all_heads * len(passes.blocks),
        warps=config.kv_warps,
        mma=all_heads * passes.steps * m * (total_dim / 8 + mean_columns),
        fma=all_heads * 4 * scores,
        mufu=all_heads * scores,
        alu=all_heads * (scores + passes.visits * total_dim / 8 + passes.steps * columns / 4 + copies),
        smem_wavefronts=all_heads * (matrices + 2 * passes.steps + passed * loads),
        l2_bytes=float(all_heads * passes.rows * (ELEMENT * total_dim + 8)) + float(key_bytes * (config.kv_slices + 1)),
        dram_bytes=float(ELEMENT * total_dim * query_rows(problem) + 2 * key_bytes),
        barriers=all_heads * int(np.sum(np.maximum(passes.blocks, 1)))
        if keys
        else 0,  # one barrier if no tile is streamed
        longest_cta=unevenness(passes.blocks),
        chain=float(np.max(passes.blocks)),
        stages=config.kv_stages,
    )


def queries_work(problem: Problem, config: Config) -> Work:
    """dQ: tiles of keys are streamed, as in the forward pass."""
    visits = Visits.of_tiles(problem, config.BM_q, config.BM_q // config.q_warps, config.BN_q)
    return work_of_queries(problem, config, Passes(visits.blocks, visits.groups, visits.steps, visits.rows_of_keys))


def work_of_queries(problem: Any, config: Any, passes: Passes) -> Work:
    """Work of blocks of queries; `passes` is per query head."""
    D, DV, heads = problem.head_dim, problem.head_dim_v, problem.batch * problem.heads
    m, total_dim, passed = config.BM_q // config.q_warps // 16, D + DV, int(np.sum(passes.blocks))
    scores = passes.steps * m * 8
    matrices = passes.steps * 2 * ((D + total_dim) / 8) + passes.visits * 2 * m * (total_dim / 8)
    loads = sum(copy_wavefronts(dim, True, config.BN_q, WARP * config.q_warps) for dim in (D, DV))
    copies = passed * 5 * config.BN_q * total_dim / 8 / WARP
    values = len(passes.blocks) * config.BM_q * 4 * VALUES_BYTES  # read by each lane that holds a part of the row
    own_bytes = ELEMENT * (D + total_dim) * query_rows(problem)  # bytes of Q, dO and dQ
    return Work(
        ctas=heads * len(passes.blocks),
        warps=config.q_warps,
        mma=heads * passes.steps * m * (D + total_dim) / 8,
        fma=heads * 4 * scores,
        mufu=heads * scores,
        alu=heads * (scores + passes.visits * total_dim / 8 + passes.steps * D / 16 + copies),
        smem_wavefronts=heads * (matrices + passed * loads),
        l2_bytes=float(heads * (passes.rows * ELEMENT * total_dim + values) + own_bytes),
        dram_bytes=float(own_bytes + ELEMENT * total_dim * key_rows(problem)),
        barriers=heads * int(np.sum(np.maximum(passes.blocks, 1))),
        longest_cta=unevenness(passes.blocks),
        chain=float(np.max(passes.blocks)),
        stages=config.q_stages,
    )


def _first_tile(problem: Problem, first_keys: Array, BM: int) -> Array:
    """The tile of BM queries that contains the first query that attends a key."""
    reach = problem.seq_k - problem.seq_q + problem.window_right
    limited = problem.causal or problem.use_window
    return np.maximum(first_keys - reach, 0) // BM if limited else np.zeros_like(first_keys)


def _end(problem: Problem, last_keys: Array) -> Array:
    """The end of the queries that attend a key."""
    if not problem.use_window:
        return np.full_like(last_keys, problem.seq_q)
    query = last_keys - (problem.seq_k - problem.seq_q)
    ends: Array = np.clip(query + problem.window_left + 1, 0, problem.seq_q)
    return ends


def _end_of_block(problem: Problem, first_keys: Array, BN: int) -> Array:
    """The end of the queries that attend a block of BN keys; only keys that exist count."""
    return _end(problem, np.minimum(first_keys + BN, problem.seq_k) - 1)


def _steps(problem: Problem, rows: int, BM: int, block: int = 0) -> Array:
    """Tiles of queries for each group of `rows` keys. A warp skips tiles that its block loads but none of its keys
    need."""
    padded_keys = -(-problem.seq_k // (block or rows)) * (
        block or rows
    )  # blocks are complete, hence their warps are too
    first_keys = np.arange(0, padded_keys, rows)
    loaded = block or rows
    end = np.minimum(
        _end(problem, first_keys + rows - 1), _end_of_block(problem, first_keys // loaded * loaded, loaded)
    )
    steps: Array = np.maximum(-(-end // BM) - _first_tile(problem, first_keys, BM), 0)
    return steps


def _rows_read(problem: Problem, BN: int, BM: int) -> int:
    """Queries that the blocks of one head of K and V read, per query head."""
    first_keys = np.arange(0, problem.seq_k, BN)
    starts = _first_tile(problem, first_keys, BM) * BM
    ends = np.minimum(-(-_end_of_block(problem, first_keys, BN) // BM) * BM, problem.seq_q)
    return int(np.sum(np.maximum(ends - starts, 0)))
