"""The search space parameters of mma_sync, and the sizes derived from them; every function accepts a config or columns
of many configs."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.arch import Arch

ELEMENT = 2  # bytes of fp16 and bf16


@dataclass(frozen=True, slots=True)
class Tiles:
    BM: int  # rows per block: queries, or queries times heads that share them
    BN: int  # keys per tile
    warps: int
    d_warps: int  # warps that share their rows: each handles a part of the keys in Q Kᵀ, and a part of DV in P V
    stages: int  # slots for tiles of K and V: one is read while the others are filled
    smem_budget: int  # bytes of shared memory a block may use; Q in registers gets its own buffer only if it fits
    min_ctas: int  # blocks that must fit the registers of an SM
    q_in_registers: bool  # Q is kept in registers, and is not read from shared memory again for each tile
    swizzle: bool  # 16-byte chunks of a row are permuted; otherwise rows are padded to an odd number of chunks
    lazy_rescale: bool  # O is rescaled only when a maximum grows by more than a factor of 2^8

    @property
    def rows_per_warp(self) -> int:
        return self.BM * self.d_warps // self.warps


@dataclass(frozen=True, slots=True)
class Config(Tiles):
    heavy_first: bool  # causal: row tiles with the most keys first


def smem_budgets(arch: Arch) -> tuple[int, ...]:
    """Shared memory per block, in bytes, with 4, 3, 2 or 1 blocks per SM."""
    return arch.smem_budgets((4, 3, 2, 1))


def row_bytes(D: int, swizzle: Any) -> Any:
    """Bytes of a row of D elements in shared memory."""
    return 16 * np.where(swizzle, D // 8, D // 8 | 1)


def q_in_ring(D: int, c: Any, DV: int = 0) -> Any:
    """Whether Q, on its way to registers, is staged in the ring because a buffer of its own exceeds the budget. DV:
    head_dim_v (0: D)."""
    key_bytes, value_bytes = (row_bytes(width, c.swizzle) for width in (D, DV or D))
    with_buffer = c.BM * key_bytes + ring_bytes(key_bytes, value_bytes, c) + shared_rows(c)
    return c.q_in_registers & (with_buffer > c.smem_budget)


def smem_bytes(D: int, c: Any, DV: int = 0) -> Any:
    """Shared memory of a block, in bytes; `c` is a config or columns of many configs. DV: head_dim_v (0: D).

    Q and the ring, or Q staged in the ring; at the end O reuses the space of both.
    """
    key_bytes, value_bytes = (row_bytes(width, c.swizzle) for width in (D, DV or D))
    query, ring = c.BM * key_bytes, ring_bytes(key_bytes, value_bytes, c)
    loaded = np.where(q_in_ring(D, c, DV), np.maximum(query, ring), query + ring)
    return np.maximum(loaded, c.BM * value_bytes) + shared_rows(c)


def ring_bytes(key_bytes: Any, value_bytes: Any, c: Any) -> Any:
    """Size of the ring in bytes, from the bytes of a row of K and of V. With an even number of slots, half of them hold
    V; with an odd number, any slot holds either (ring_slots.cuh)."""
    even, odd = c.stages // 2 * (key_bytes + value_bytes), c.stages * np.maximum(key_bytes, value_bytes)
    return c.BN * np.where(c.stages % 2 == 0, even, odd)


def shared_rows(c: Any, element: int = ELEMENT) -> Any:
    """Bytes of P and of one float per row and part, if warps share rows."""
    return np.where(c.d_warps > 1, c.BM * (element * c.BN + 4 * c.d_warps), 0)


def register_estimate(D: int, c: Any, DV: int = 0) -> Any:
    """Registers per thread: O, scores, Q if kept in registers, and 30 for everything else. DV: columns of O (0: D).

    Almost every config whose estimate exceeds the limit spills when compiled (README.md has the counts).
    """
    query = np.where(c.q_in_registers, D * c.d_warps / 2, 0)
    return c.BM * ((DV or D) + c.BN + query) / (32 * c.warps) + 30
