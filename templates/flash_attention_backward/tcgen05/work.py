"""The work of tcgen05 on a problem, counted from its loops; exact counts equal the emulator's counters."""

import numpy as np

from tuner.arch import GPU
from tuner.spec import Array, Work

from ...flash_attention.tcgen05.config import ROWS
from ...flash_attention.wgmma.config import ELEMENT, round_up
from ..mma_sync.work import in_grid, rows_in_tiles, tiles, unevenness
from ..problem import Problem, key_rows, query_rows
from ..wgmma.config import VALUES_BYTES, row_bytes
from ..wgmma.work import key_steps, query_steps
from .config import WARPGROUPS, Config

_WARPS = 4  # warps per warpgroup, and per row tile
_PRODUCT = 16 * 8 * 16  # multiply-adds of an m16n8k16


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    """Products and the bytes of TMA are exact; the other instructions are the minimum that the algorithm requires."""
    rows = rows_in_tiles(problem, tiles(problem, problem.seq_q, config.BM_kv) * config.BM_kv)
    keys = in_grid(problem, config, keys_work, problem.kv_heads, problem.seq_k, ROWS * config.kv_row_tiles)
    queries = in_grid(problem, config, queries_work, problem.heads, problem.seq_q, ROWS * config.q_row_tiles)
    return rows, keys, queries


def keys_work(problem: Problem, config: Config) -> Work:
    """dK and dV: tiles of queries are streamed, from the first that attends any key of the block."""
    D, DV, all_heads = problem.head_dim, problem.head_dim_v, problem.batch * problem.kv_heads
    steps = key_steps(problem, ROWS * config.kv_row_tiles, config.BM_kv)
    rows = int(sum(row_bytes(D, DV, config)))  # bytes per row of K and V, and of Q and dO
    passed, owned_rows = all_heads * int(np.sum(steps)), all_heads * len(steps) * config.kv_row_tiles * ROWS
    stored = all_heads * round_up(problem.seq_k, ROWS)
    return _pass_work(
        problem,
        steps,
        blocks=all_heads * len(steps),
        row_tiles=config.kv_row_tiles,
        tile=config.BM_kv,
        stages=config.kv_stages,
        polynomial=config.kv_polynomial,
        summed=round_up(D, 16) + round_up(DV, 16),
        values=2,  # values per score, read from shared memory, four at once
        gradients=2,
        l2_bytes=float(rows * (owned_rows + stored) + passed * config.BM_kv * (rows + VALUES_BYTES)),
        dram_bytes=float(ELEMENT * (D + DV) * (query_rows(problem) + 2 * key_rows(problem))),
    )


def queries_work(problem: Problem, config: Config) -> Work:
    """dQ: tiles of keys are streamed, up to the last that any query of the block attends."""
    D, DV, heads = problem.head_dim, problem.head_dim_v, problem.batch * problem.heads
    steps = query_steps(problem, ROWS * config.q_row_tiles, config.BN_q)
    q_bytes, dout_bytes = (int(row_byte) for row_byte in row_bytes(D, DV, config))
    passed, owned_rows = heads * int(np.sum(steps)), heads * len(steps) * config.q_row_tiles * ROWS
    stored = heads * round_up(problem.seq_q, ROWS)
    return _pass_work(
        problem,
        steps,
        blocks=heads * len(steps),
        row_tiles=config.q_row_tiles,
        tile=config.BN_q,
        stages=config.q_stages,
        polynomial=config.q_polynomial,
        summed=round_up(D, 16),
        values=0,
        gradients=1,
        l2_bytes=float(
            owned_rows * values_read(config)
            + (owned_rows + passed * config.BN_q) * (q_bytes + dout_bytes)
            + stored * q_bytes
        ),
        dram_bytes=float(ELEMENT * ((2 * D + DV) * query_rows(problem) + (D + DV) * key_rows(problem))),
    )


def values_read(config: Config) -> int:
    """Bytes of shift and delta that the threads of a query's row read, in both warpgroups that share it."""
    return VALUES_BYTES * (WARPGROUPS // config.q_row_tiles)


def _pass_work(
    problem: Problem,
    steps: Array,
    *,
    blocks: int,
    row_tiles: int,
    tile: int,
    stages: int,
    polynomial: int,
    summed: int,
    values: int,
    gradients: int,
    l2_bytes: float,
    dram_bytes: float,
) -> Work:
    """Work of `steps` tiles streamed through each block of a head; sums have `summed` columns in total."""
    multiplied = round_up(problem.head_dim, 16) + round_up(problem.head_dim_v, 16)
    passed = blocks / len(steps) * float(np.sum(steps)) * row_tiles  # tiles of a row tile
    sharers = WARPGROUPS // row_tiles
    warps = passed * _WARPS * sharers
    scores = tile // sharers  # scores per thread and tile
    polynomials = 2 * -(-scores // (2 * polynomial)) if polynomial else 0
    # operations of caps and their slopes; two scores share a reciprocal: softcap.cuh
    caps = scores if problem.use_softcap else 0
    operands = ELEMENT * ((ROWS + tile) * multiplied + tile * summed)
    return Work(
        ctas=blocks,
        warps=_WARPS * (WARPGROUPS + 1),
        fma=warps * (3 * scores + 7 * polynomials + 8 * caps),
        paired=warps * (3 * scores + 7 * polynomials + caps),
        mufu=warps * (scores - polynomials + 1.5 * caps),
        alu=warps * (scores + 60 + 2 * polynomials),
        smem_wavefronts=passed * operands / 128 + warps * values * scores / 4,
        l2_bytes=l2_bytes,
        dram_bytes=dram_bytes,
        barriers=float(blocks * (2 + gradients * row_tiles)),
        longest_cta=unevenness(steps),
        chain=float(np.max(steps)),
        stages=stages,
        tcgen05=passed * ROWS * tile * (multiplied + summed) / _PRODUCT,
    )
