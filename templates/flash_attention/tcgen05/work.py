"""The work of tcgen05 on a problem, counted from its loops; exact counts equal the emulator's counters."""

from dataclasses import replace
from typing import Any

import numpy as np

from tuner.arch import GPU
from tuner.spec import Array, Work

from ..operator import cost
from ..problem import Problem, unpacked
from ..wgmma.config import ELEMENT, WIDTHS, packed, round_up
from ..wgmma.work import near_keys, stored_bytes
from .config import ROWS, Config, blocks

_WARPS = 4  # warps per warpgroup
_PRODUCT = 16 * 8 * 16  # multiply-adds of an m16n8k16


def tiles(problem: Problem, config: Config) -> Array:
    """Key tiles that each row tile visits, [blocks, row tiles of a block]: at least one, so that rows without keys are
    written too.

    The blocks are those of one head, or of the heads that share rows; the last may have a row tile beyond the last
    query.
    """
    rows = ROWS // int(packed(problem.heads, problem.kv_heads, config))
    count = int(blocks(problem, config)) * config.row_tiles
    last = rows * np.arange(1, count + 1)
    ends = np.minimum(last + problem.seq_k - problem.seq_q, problem.seq_k) if problem.causal else problem.seq_k
    if problem.use_window:
        block = rows * config.row_tiles
        ends = near_keys(problem, (last - rows) // block * block, last)
    visited = np.maximum(1, -(-ends // config.BN))
    return np.where(last - rows < problem.seq_q, visited, 1).reshape(-1, config.row_tiles)


def work(problem: Problem, config: Config, gpu: GPU) -> tuple[Work, ...]:
    """Products and the bytes of TMA are exact; the other instructions are the minimum that the algorithm requires.

    Packed sequences are counted as if their lengths were equal, except that the number of blocks is that of the
    longest.
    """
    if problem.use_cu_seqlens:
        (equal,) = work(unpacked(problem), config, gpu)
        heads = problem.sequences * problem.heads // int(packed(problem.heads, problem.kv_heads, config))
        count = heads * int(blocks(problem, config))
        lengthened = count / equal.ctas  # idle blocks make the mean block shorter
        dram = float(cost(problem).bytes)
        return (replace(equal, ctas=count, longest_cta=equal.longest_cta * lengthened, dram_bytes=dram),)
    return work_of(problem, config, tiles(problem, config), float(cost(problem).bytes), capped=problem.use_softcap)


def work_of(problem: Any, config: Any, visited: Array, dram: float, *, capped: bool = False) -> tuple[Work, ...]:
    """Work of any problem, from the key tiles that row tiles visit, [blocks, row tiles of a block]."""
    heads = problem.batch * problem.heads // int(packed(problem.heads, problem.kv_heads, config))
    padded, columns = round_up(problem.head_dim, 16), round_up(problem.head_dim_v, 16)
    total = heads * int(np.sum(visited))
    longest = np.max(visited, axis=1)  # longest row tile of each block
    warps = total * _WARPS  # warp passes over tiles
    scores = config.BN  # scores per thread and tile
    polynomials = 2 * -(-scores // (2 * config.polynomial)) if config.polynomial else 0
    caps = scores if capped else 0  # two scores share a reciprocal: softcap.cuh
    scaled = 0 if config.lazy_rescale else columns  # elements of O to rescale
    operands = ELEMENT * (padded * (ROWS + config.BN) + columns * config.BN)  # operand bytes of the products of a tile
    return (
        Work(
            ctas=heads * len(visited),
            warps=_WARPS * (config.row_tiles + 1),
            fma=float(warps * (2 * scores + scores / 2 + scaled + 12 + 7 * polynomials + 5 * caps)),
            paired=float(warps * (2 * scores + scaled + 7 * polynomials)),
            mufu=float(warps * (scores - polynomials + 1 + 1.5 * caps)),
            alu=float(warps * (scores / 2 + 40 + 2 * polynomials)),
            smem_wavefronts=total * operands / 128,
            l2_bytes=float(_loaded_bytes(problem, config, heads, visited) + stored_bytes(problem, config, ROWS)),
            dram_bytes=dram,
            barriers=float(heads * len(visited) * (2 + config.row_tiles)),
            longest_cta=float(np.max(np.sum(visited, axis=1)) / np.mean(np.sum(visited, axis=1))),
            # with P over the scores, products wait for the exponentials
            chain=float(np.max(longest)) * (2 if config.overlaid else 1),
            stages=config.stages,
            tcgen05=total * ROWS * config.BN * (padded + columns) / _PRODUCT,
        ),
    )


def _loaded_bytes(problem: Any, config: Any, heads: int, visited: Array) -> int:
    """Bytes of the boxes loaded from L2, zeros included: Q of each row tile, K and V of each key tile that a block
    visits."""
    padded, padded_v = round_up(problem.head_dim, 16), round_up(problem.head_dim_v, 16)
    width = config.value_columns if config.value_columns in WIDTHS else 16
    loaded = int(np.sum(np.max(visited, axis=1)))
    return ELEMENT * heads * (loaded * config.BN * (padded + round_up(padded_v, width)) + visited.size * ROWS * padded)
