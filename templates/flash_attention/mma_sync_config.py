"""What mma_sync is free to choose, and the sizes that follow; every function takes a config or columns of many."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.arch import Arch

ELEMENT = 2  # bytes of fp16 and bf16


@dataclass(frozen=True, slots=True)
class Config:
    BM: int  # rows of Q a block
    BN: int  # keys a tile
    warps: int
    d_warps: int  # warps that share their rows: each multiplies a part of the keys, then a part of D
    stages: int  # slots for tiles of K and V: one is read while the others are filled
    smem_budget: int  # bytes a block may use; Q in registers has a place of its own only where it fits
    min_ctas: int  # blocks that the registers of an SM must hold
    q_in_registers: bool  # or read again from shared memory for each tile
    swizzle: bool  # chunks of a row permuted, or rows padded to an odd number of chunks
    lazy_rescale: bool  # O is scaled only when a maximum grows by more than a factor of 2^8
    heavy_first: bool  # causal: the row tiles with most keys first

    @property
    def rows_per_warp(self) -> int:
        return self.BM * self.d_warps // self.warps


def smem_budgets(arch: Arch) -> tuple[int, ...]:
    """What an SM leaves each of 4, 3, 2 blocks or 1, in bytes, ascending."""
    shares = (arch.smem_per_sm // ctas - arch.smem_reserved for ctas in (4, 3, 2, 1))
    return tuple(min(share // 128 * 128, arch.smem_per_block) for share in shares)


def row_bytes(D: int, swizzle: Any) -> Any:
    """Bytes of a row of D elements in shared memory."""
    return 16 * np.where(swizzle, D // 8, D // 8 | 1)


def q_in_ring(D: int, c: Any) -> Any:
    """Whether Q, on its way to registers, has no place of its own within the budget."""
    return c.q_in_registers & ((c.BM + c.stages * c.BN) * row_bytes(D, c.swizzle) + _shared_rows(c) > c.smem_budget)


def smem_bytes(D: int, c: Any) -> Any:
    """Shared memory of a block, in bytes; `c` is a config or columns of many."""
    ring = c.stages * c.BN
    rows = np.where(q_in_ring(D, c), np.maximum(c.BM, ring), c.BM + ring)
    return rows * row_bytes(D, c.swizzle) + _shared_rows(c)


def _shared_rows(c: Any) -> Any:
    """P, and a float a row and part, where warps share rows."""
    return np.where(c.d_warps > 1, c.BM * (ELEMENT * c.BN + 4 * c.d_warps), 0)


def register_estimate(D: int, c: Any) -> Any:
    """Registers a thread: O, scores, Q where it stays, and 30 for what no config does without.

    Hardly any config that this puts over the limit compiles without spills (README.md has the counts).
    """
    query = np.where(c.q_in_registers, D * c.d_warps / 2, 0)
    return c.BM * (D + c.BN + query) / (32 * c.warps) + 30


def register_limit(c: Any, arch: Arch) -> Any:
    """Registers a thread may have when an SM holds min_ctas blocks: their warps share its 4 register files."""
    warps = -(-c.warps * c.min_ctas // 4)
    share = arch.registers_per_sm // 4 // (32 * warps)
    return np.minimum(share // 8 * 8, arch.registers_per_thread)
