"""The work of wgmma on a problem, counted from its loops; exact counts equal the emulator's counters."""

import numpy as np

from tuner.arch import GPU
from tuner.spec import Array, Work

from ...flash_attention.problem import visible_keys
from ...flash_attention.wgmma.config import ELEMENT, round_up
from ..mma_sync.work import in_grid, rows_in_tiles, tiles, unevenness, with_softcap
from ..problem import Problem, key_rows, query_rows
from .config import ROWS, VALUES_BYTES, Config, kv_owners, row_bytes

_WARPS = 4  # warps per warpgroup
_WARP = 32
_PRODUCT = 16 * 8 * 16  # multiply-adds of an m16n8k16


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    """wgmma and the bytes of TMA are exact; the other instructions are the minimum that the algorithm requires."""
    keys = in_grid(problem, config, keys_work, problem.kv_heads, problem.seq_k, ROWS * int(kv_owners(config)))
    queries = in_grid(problem, config, queries_work, problem.heads, problem.seq_q, ROWS * config.q_warpgroups)
    passes = (with_softcap(rows) if problem.use_softcap else rows for rows in (keys, queries))
    return (rows_work(problem, config), *passes)


def rows_work(problem: Problem, config: Config) -> Work:
    """dO and O are read once; the last tile is padded with rows."""
    return rows_in_tiles(problem, tiles(problem, problem.seq_q, config.BM_kv) * config.BM_kv)


def keys_work(problem: Problem, config: Config) -> Work:
    """dK and dV: tiles of queries are streamed, from the first that attends any key of the block."""
    D, DV, owners = problem.head_dim, problem.head_dim_v, int(kv_owners(config))
    all_heads = problem.batch * problem.kv_heads
    steps = key_steps(problem, ROWS * owners, config.BM_kv)
    passed = all_heads * int(np.sum(steps))
    # score products of 64 keys and a tile; the product with V or dO is computed once
    scores = 2 if config.kv_split else 1
    warps = passed * owners * _WARPS
    lanes = 16 * config.BM_kv / _WARP
    rows = int(sum(row_bytes(D, DV, config)))  # bytes per row of K and V, and of Q and dO
    owned_rows, stored = all_heads * len(steps) * owners * ROWS, all_heads * round_up(problem.seq_k, ROWS)
    return Work(
        ctas=all_heads * len(steps),
        warps=_WARPS * (config.kv_warpgroups + 1),
        fma=warps * lanes * (4 if config.kv_split else 3),
        mufu=warps * lanes * (2 if config.kv_split else 1),
        alu=warps * (lanes + 60),
        smem_wavefronts=passed
        * owners
        * _operand_bytes(config.BM_kv, scores * round_up(D, 16) + round_up(DV, 16), D + DV)
        / 128,
        l2_bytes=float(rows * owned_rows + passed * config.BM_kv * (rows + VALUES_BYTES) + rows * stored),
        dram_bytes=float(ELEMENT * (D + DV) * (query_rows(problem) + 2 * key_rows(problem))),
        barriers=float(all_heads * len(steps)),
        longest_cta=unevenness(steps),
        chain=float(np.max(steps)),
        stages=config.kv_stages,
        wgmma=passed * owners * ROWS * config.BM_kv * (scores * round_up(D, 16) + round_up(DV, 16) + D + DV) / _PRODUCT,
    )


def queries_work(problem: Problem, config: Config) -> Work:
    """dQ: tiles of keys are streamed, up to the last that any query of the block attends."""
    D, DV, groups = problem.head_dim, problem.head_dim_v, config.q_warpgroups
    heads = problem.batch * problem.heads
    steps = query_steps(problem, ROWS * config.q_warpgroups, config.BN_q)
    passed = heads * int(np.sum(steps))
    warps = passed * groups * _WARPS
    lanes = 16 * config.BN_q / _WARP
    q_bytes, dout_bytes = (int(row_byte) for row_byte in row_bytes(D, DV, config))
    owned_rows = heads * len(steps) * groups * ROWS
    stored = heads * round_up(problem.seq_q, ROWS)
    return Work(
        ctas=heads * len(steps),
        warps=_WARPS * (groups + 1),
        fma=warps * lanes * 3,
        mufu=warps * lanes,
        alu=warps * (lanes / 2 + 60),
        smem_wavefronts=passed * groups * _operand_bytes(config.BN_q, round_up(D, 16) + round_up(DV, 16), D) / 128,
        l2_bytes=float(
            owned_rows * (q_bytes + dout_bytes + 4 * VALUES_BYTES)
            + passed * config.BN_q * (q_bytes + dout_bytes)
            + stored * q_bytes
        ),
        dram_bytes=float(ELEMENT * ((2 * D + DV) * query_rows(problem) + (D + DV) * key_rows(problem))),
        barriers=float(heads * len(steps)),
        longest_cta=unevenness(steps),
        chain=float(np.max(steps)),
        stages=config.q_stages,
        wgmma=passed * groups * ROWS * config.BN_q * (round_up(D, 16) + round_up(DV, 16) + D) / _PRODUCT,
    )


def key_steps(problem: Problem, rows: int, BM: int) -> Array:
    """Tiles of BM queries, of all heads that share them, that stream through each block of `rows` keys."""
    first_keys = np.arange(0, problem.seq_k, rows)
    reach = problem.seq_k - problem.seq_q
    skipped = np.maximum(first_keys - reach, 0) // BM if problem.causal else np.zeros_like(first_keys)
    steps: Array = problem.heads // problem.kv_heads * (tiles(problem, problem.seq_q, BM) - skipped)
    return steps


def query_steps(problem: Problem, rows: int, BN: int) -> Array:
    """Tiles of BN keys that stream through each block of `rows` queries."""
    last = np.minimum(np.arange(0, problem.seq_q, rows) + rows, problem.seq_q) - 1
    steps: Array = -(-visible_keys(problem)[last] // BN)
    return steps


def _operand_bytes(tile: int, multiplied: int, summed: int) -> int:
    """Bytes of shared memory that the wgmmas of 64 rows and a tile read: both operands of products over `multiplied`
    columns in total, one operand of sums of `summed` columns."""
    return ELEMENT * ((ROWS + tile) * multiplied + tile * summed)
