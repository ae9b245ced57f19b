"""What mma_sync does for a problem, counted from its loops: the emulator's counters agree with mma and barriers."""

import numpy as np

from tuner.arch import GPU
from tuner.operator import Array, Work

from ..flash_attention.mma_sync_config import ELEMENT
from ..flash_attention.mma_sync_work import copy_wavefronts
from ..flash_attention.operator import visible_keys
from .mma_sync_config import VALUES_BYTES, WARP, Config, kv_columns
from .problem import Problem


def row_lanes(D: int) -> int:
    """Lanes that share a row of dO and O, 8 elements each: a power of two."""
    return 1 << (D // 8 - 1).bit_length()


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    return rows_work(problem), keys_work(problem, config), queries_work(problem, config)


def _query_bytes(problem: Problem) -> int:
    """One of dO, Q, O, dQ."""
    return ELEMENT * problem.head_dim * problem.batch * problem.heads * problem.seq_q


def _key_bytes(problem: Problem) -> int:
    """One of K, V, dK, dV."""
    return ELEMENT * problem.head_dim * problem.batch * problem.kv_heads * problem.seq_k


def rows_work(problem: Problem) -> Work:
    """dO and O once."""
    rows = problem.batch * problem.heads * problem.seq_q
    warps = rows * row_lanes(problem.head_dim) / WARP
    moved = 2.0 * _query_bytes(problem) + (VALUES_BYTES + problem.lse_bytes) * rows
    return Work(
        ctas=max(int(warps) // 8, 1),
        warps=8,
        mma=0,
        fma=16 * warps,
        mufu=0,
        alu=60 * warps,
        smem_wavefronts=0,
        l2_bytes=moved,
        dram_bytes=moved,
        barriers=0,
        longest_cta=1,
        chain=1,
    )


def keys_work(problem: Problem, config: Config) -> Work:
    """dK and dV: tiles of queries pass by, those that attend any key of the block or, for products, of the warp."""
    D, rows = problem.head_dim, config.BN_kv // config.kv_warps
    group = problem.heads // problem.kv_heads
    blocks = group * _steps(problem, config.BN_kv, config.BM_kv)
    warps = int(np.sum(group * _steps(problem, rows, config.BM_kv, block=config.BN_kv)))
    every = problem.batch * problem.kv_heads * config.kv_slices
    passed = int(np.sum(blocks))
    m, n, columns = rows // 16, config.BM_kv // 8, float(kv_columns(D, config))
    mean_columns = D / 8 / config.kv_slices
    scores = m * 16 * config.BM_kv / WARP
    matrices = 2 * n * (D / 8) + 2 * m * 2 * (D / 8) + 2 * 2 * n / 2 * columns
    loads = 2 * copy_wavefronts(D, True, config.BM_kv, WARP * config.kv_warps)
    queries = _rows_read(problem, config.BN_kv, config.BM_kv) * group
    row = ELEMENT * D
    return Work(
        ctas=every * len(blocks),
        warps=config.kv_warps,
        mma=every * warps * (2 * m * n * (D / 16) + 2 * m * (n / 2) * mean_columns),
        fma=every * warps * 4 * scores,
        mufu=every * warps * scores,
        alu=every * (warps * (scores + 4 * D / 16 + n * columns / 4) + passed * 10 * config.BM_kv * D / 8 / WARP),
        smem_wavefronts=every * (warps * (matrices + n) + passed * loads),
        l2_bytes=float(every * queries * (2 * row + 8))
        + 2.0 * _key_bytes(problem) * config.kv_slices
        + 2.0 * _key_bytes(problem),
        dram_bytes=2.0 * _query_bytes(problem) + 4.0 * _key_bytes(problem),
        barriers=every * passed,
        longest_cta=float(np.max(blocks) / np.mean(blocks)),
        chain=float(np.max(blocks)),
        stages=config.kv_stages,
    )


def queries_work(problem: Problem, config: Config) -> Work:
    """dQ: tiles of keys pass by, as in the forward pass."""
    D, rows = problem.head_dim, config.BM_q // config.q_warps
    blocks = -(-_attended(problem, config.BM_q) // config.BN_q)
    warps = int(np.sum(-(-_attended(problem, rows) // config.BN_q)))
    heads, passed = problem.batch * problem.heads, int(np.sum(blocks))
    m, n = rows // 16, config.BN_q // 8
    scores = m * 16 * config.BN_q / WARP
    matrices = 2 * n * (D / 8) + 2 * m * 2 * (D / 8) + n * (D / 8)
    loads = 2 * copy_wavefronts(D, True, config.BN_q, WARP * config.q_warps)
    keys = int(np.sum(np.minimum(blocks * config.BN_q, problem.seq_k)))
    values = len(blocks) * config.BM_q * 4 * VALUES_BYTES  # by each lane that holds a part of the row
    return Work(
        ctas=heads * len(blocks),
        warps=config.q_warps,
        mma=heads * warps * (2 * m * n * (D / 16) + m * (n / 2) * (D / 8)),
        fma=heads * warps * 4 * scores,
        mufu=heads * warps * scores,
        alu=heads * (warps * (scores + 4 * D / 16 + n * D / 32) + passed * 10 * config.BN_q * D / 8 / WARP),
        smem_wavefronts=heads * (warps * matrices + passed * loads),
        l2_bytes=float(heads * (keys * 2 * ELEMENT * D + values)) + 3.0 * _query_bytes(problem),
        dram_bytes=3.0 * _query_bytes(problem) + 2.0 * _key_bytes(problem),
        barriers=heads * passed,
        longest_cta=float(np.max(blocks) / max(np.mean(blocks), 1e-9)),
        chain=float(np.max(blocks)),
        stages=config.q_stages,
    )


def _attended(problem: Problem, rows: int) -> Array:
    """Keys that any of `rows` queries attends, for each such group."""
    last = np.minimum(np.arange(0, problem.seq_q, rows) + rows, problem.seq_q) - 1
    return visible_keys(problem)[last]


def _first_tile(problem: Problem, first_keys: Array, BM: int) -> Array:
    """The tile of BM queries with the first query that attends a key."""
    reach = problem.seq_k - problem.seq_q
    return np.maximum(first_keys - reach, 0) // BM if problem.causal else np.zeros_like(first_keys)


def _steps(problem: Problem, rows: int, BM: int, block: int = 0) -> Array:
    """Tiles of queries for each group of `rows` keys. A warp passes over those that its block loads and it skips."""
    whole = -(-problem.seq_k // (block or rows)) * (block or rows)  # blocks are whole: so are their warps
    first_keys = np.arange(0, whole, rows)
    steps: Array = np.maximum(-(-problem.seq_q // BM) - _first_tile(problem, first_keys, BM), 0)
    return steps


def _rows_read(problem: Problem, BN: int, BM: int) -> int:
    """Queries that the blocks of one head of K and V read of one query head."""
    starts = _first_tile(problem, np.arange(0, problem.seq_k, BN), BM) * BM
    return int(np.sum(problem.seq_q - starts))
