"""What prep_scan is free to choose, and the sizes that follow; every function takes a config or columns of many."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.arch import Arch

WARP = 32
BF16 = 2  # bytes


@dataclass(frozen=True, slots=True)
class Config:
    C: int  # tokens a chunk
    BV: int  # columns of the state a block of scan
    rows: int  # of them, a warp: rows of the transposed state
    stages: int  # slots for chunks: one is read while the others are filled
    loader: bool  # a warp of its own fills the stages, so that the others need fewer registers
    partials: int  # sums that the state's product with k is split into: shorter chains of mma
    ahead: int  # steps of 16 channels whose keys, and v, are loaded while the chunk before is finished
    prep_groups: int  # threads of prep that share two channels, each C / prep_groups tokens
    prep_min_ctas: int  # blocks of prep that the registers of an SM must hold


def triangle_blocks(C: Any) -> Any:
    """Blocks of 16 × 16 in a lower triangle of C × C."""
    return C // 16 * (C // 16 + 1) // 2


def image_bytes(K: int, C: Any) -> Any:
    """Of one chunk in the workspace: three tiles of keys and queries, P T', and the decay; with padding."""
    return -(-used_image_bytes(K, C) // 128) * 128


def used_image_bytes(K: int, C: Any) -> Any:
    return 3 * BF16 * C * K + 512 * triangle_blocks(C) + 4 * K


def scan_threads(c: Any) -> Any:
    return WARP * (c.BV // c.rows + c.loader)


def scan_smem_bytes(K: int, c: Any) -> Any:
    return c.stages * (image_bytes(K, c.C) + BF16 * c.C * c.BV)


def prep_threads(K: int, c: Any) -> Any:
    return K // 2 * c.prep_groups


def tokens_fit(c: Any) -> Any:
    """Whether a thread of prep has 2 to 16 tokens: all of one sub-chunk."""
    return (2 * c.prep_groups <= c.C) & (c.C // c.prep_groups <= 16)


def prep_smem_bytes(K: int, c: Any) -> Any:
    """Four tiles, the first sub-chunk's keys once more, T', P, M, sums of g, beta, row scales, a flag a warp."""
    C, warps = c.C, prep_threads(K, c) // WARP
    square_row = 16 * (C // 8 | 1)
    tiles = 4 * BF16 * C * K + np.where(C > 16, 2 * 16 * K, 0)
    squares = 2 * C * square_row + 4 * C * (C + 4)
    return tiles + squares + 4 * c.prep_groups * K + 12 * C + 4 * (-(-warps // 4) * 4)


def register_estimate(K: int, c: Any) -> Any:
    """Registers a thread of scan: state, two tensors of tokens and their operands, and what no config does without."""
    tokens = c.rows * c.C / 32
    ahead = np.where(c.ahead > 0, tokens / 2 + c.ahead * c.C / 4, 0)
    return c.rows * K / 32 + tokens * (1.5 + c.partials) + ahead + np.where(c.loader, 30, 44)


def register_limit(c: Any, arch: Arch) -> Any:
    """Registers a thread of scan may have when an SM holds one block."""
    return np.minimum(arch.registers_per_sm // scan_threads(c) // 8 * 8, arch.registers_per_thread)
