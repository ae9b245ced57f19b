"""What mma_sync is free to choose, and the sizes that follow; every function takes a config or columns of many."""

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
    d_warps: int  # warps that share their rows: each multiplies a part of the keys, then a part of DV
    stages: int  # slots for tiles of K and V: one is read while the others are filled
    smem_budget: int  # bytes a block may use; Q in registers has a place of its own only where it fits
    min_ctas: int  # blocks that the registers of an SM must hold
    q_in_registers: bool  # or read again from shared memory for each tile
    swizzle: bool  # chunks of a row permuted, or rows padded to an odd number of chunks
    lazy_rescale: bool  # O is scaled only when a maximum grows by more than a factor of 2^8

    @property
    def rows_per_warp(self) -> int:
        return self.BM * self.d_warps // self.warps


@dataclass(frozen=True, slots=True)
class Config(Tiles):
    heavy_first: bool  # causal: the row tiles with most keys first


def smem_budgets(arch: Arch) -> tuple[int, ...]:
    """Of a block of which an SM holds 4, 3, 2 or 1, in bytes."""
    return arch.smem_budgets((4, 3, 2, 1))


def row_bytes(D: int, swizzle: Any) -> Any:
    """Bytes of a row of D elements in shared memory."""
    return 16 * np.where(swizzle, D // 8, D // 8 | 1)


def q_in_ring(D: int, c: Any, DV: int = 0) -> Any:
    """Whether Q, on its way to registers, has no place of its own within the budget. DV: of values (0: D)."""
    of_keys, of_values = (row_bytes(width, c.swizzle) for width in (D, DV or D))
    own = c.BM * of_keys + ring_bytes(of_keys, of_values, c) + shared_rows(c)
    return c.q_in_registers & (own > c.smem_budget)


def smem_bytes(D: int, c: Any, DV: int = 0) -> Any:
    """Shared memory of a block, in bytes; `c` is a config or columns of many. DV: of values (0: D).

    Q and the ring, or Q in the ring's place, and in the end O in the place of both.
    """
    of_keys, of_values = (row_bytes(width, c.swizzle) for width in (D, DV or D))
    query, ring = c.BM * of_keys, ring_bytes(of_keys, of_values, c)
    loaded = np.where(q_in_ring(D, c, DV), np.maximum(query, ring), query + ring)
    return np.maximum(loaded, c.BM * of_values) + shared_rows(c)


def ring_bytes(of_keys: Any, of_values: Any, c: Any) -> Any:
    """Of a ring, from the bytes of a row of each: an even number of slots has half for V, of an odd number each holds
    either (ring_slots.cuh)."""
    even, odd = c.stages // 2 * (of_keys + of_values), c.stages * np.maximum(of_keys, of_values)
    return c.BN * np.where(c.stages % 2 == 0, even, odd)


def shared_rows(c: Any, element: int = ELEMENT) -> Any:
    """P, and a float a row and part, where warps share rows."""
    return np.where(c.d_warps > 1, c.BM * (element * c.BN + 4 * c.d_warps), 0)


def register_estimate(D: int, c: Any, DV: int = 0) -> Any:
    """Registers a thread: O, scores, Q where it stays, and 30 for what no config does without. DV: of O (0: D).

    Hardly any config that this puts over the limit compiles without spills (README.md has the counts).
    """
    query = np.where(c.q_in_registers, D * c.d_warps / 2, 0)
    return c.BM * ((DV or D) + c.BN + query) / (32 * c.warps) + 30
