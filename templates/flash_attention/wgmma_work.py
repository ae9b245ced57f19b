"""What wgmma does for a problem, counted from its loops: the emulator's counters agree with the exact ones."""

import numpy as np

from tuner.arch import GPU
from tuner.operator import Array, Work

from .operator import Problem, cost
from .wgmma_config import ELEMENT, WIDTHS, Config

_ROWS = 64  # of Q, a warpgroup
_WARPS = 4  # a warpgroup
_WARP = 32
_PRODUCT = 16 * 8 * 16  # multiply-adds of an m16n8k16


def tiles(problem: Problem, config: Config) -> Array:
    """Tiles of keys that each block of a head visits: at least one, so that rows without keys come out right too."""
    rows = _ROWS * config.warpgroups
    last = np.arange(rows, problem.seq_q + rows, rows)[: -(-problem.seq_q // rows)]
    ends = last + problem.seq_k - problem.seq_q if problem.causal else np.full(len(last), problem.seq_k)
    visited: Array = np.maximum(1, -(-np.minimum(ends, problem.seq_k) // config.BN))
    return visited


def work(problem: Problem, config: Config, _gpu: GPU) -> Work:
    """wgmma and the bytes of TMA are exact; the other instructions are those that the mathematics needs."""
    D, heads, visited = problem.head_dim, problem.batch * problem.heads, tiles(problem, config)
    blocks, total = len(visited), int(np.sum(visited))
    padded = -(-D // 16) * 16
    warps = heads * total * config.warpgroups * _WARPS  # that a tile passes through
    scores = 16 * config.BN / _WARP  # of a warp and tile, by lanes
    polynomials = scores / config.polynomial if config.polynomial else 0.0
    lanes = 0 if config.lazy_rescale else 16 * D / _WARP  # of O, scaled
    return Work(
        ctas=heads * blocks,
        warps=_WARPS * (config.warpgroups + 1),
        mma=0.0,
        fma=warps * (3 * scores + lanes + 12 + 7 * polynomials),
        mufu=warps * (scores - polynomials + 2),
        alu=warps * (scores / 2 + 40 + 2 * polynomials),
        smem_wavefronts=warps * _operand_bytes(padded, D, config) / _WARPS / 128,
        l2_bytes=float(heads * _copied_bytes(problem, config, blocks, total)),
        dram_bytes=float(cost(problem).bytes),
        barriers=float(heads * blocks),
        longest_cta=float(np.max(visited) * blocks / total),
        chain=float(np.max(visited)) * (1.0 if config.overlap else 2.0),  # the products, then the exponentials
        stages=config.stages,
        wgmma=heads * total * config.warpgroups * _ROWS * config.BN * (padded + D) / _PRODUCT,
    )


def _operand_bytes(padded: int, D: int, config: Config) -> float:
    """What a warpgroup's wgmmas of one tile read of shared memory: Q and K, then V."""
    return ELEMENT * (padded * (_ROWS + config.BN) + D * config.BN)


def _copied_bytes(problem: Problem, config: Config, blocks: int, total: int) -> int:
    """Boxes of one head between L2 and the SMs, their zeros included, and the logarithms."""
    D = problem.head_dim
    padded = -(-D // 16) * 16
    width = config.value_columns
    values = -(-D // width) * width if width in WIDTHS else padded
    tile = ELEMENT * config.BN * (padded + values)
    read, written = blocks * config.warpgroups, -(-problem.seq_q // _ROWS)  # by warpgroups: Q, and O where it has rows
    return total * tile + (read + written) * _ROWS * ELEMENT * padded + 4 * problem.seq_q
