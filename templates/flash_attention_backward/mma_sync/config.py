"""What mma_sync is free to choose, and the sizes that follow; every function takes a config or columns of many."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...flash_attention.mma_sync.config import row_bytes

WARP = 32
VALUES_BYTES = 8  # shift and delta of a query


@dataclass(frozen=True, slots=True)
class Config:
    BN_kv: int  # keys whose dK and dV a block sums
    BM_kv: int  # queries a step
    kv_warps: int
    kv_stages: int  # slots for tiles of Q and dO: one is read while the others are filled
    kv_slices: (
        int  # blocks that share their keys, with a part of D and DV each: fewer sums a thread, scores computed again
    )
    kv_min_ctas: int  # blocks that the registers of an SM must hold
    BM_q: int  # queries whose dQ a block sums
    BN_q: int  # keys per step
    q_warps: int
    q_stages: int  # slots for tiles of K and V
    q_min_ctas: int


def kv_columns(D: int, c: Any) -> Any:
    """Column tiles of 8 of D, or of DV, that a block of dK and dV owns: whole pairs, unless it owns all."""
    pairs = -(-(D // 8) // (2 * c.kv_slices))
    return np.where(c.kv_slices == 1, D // 8, 2 * pairs)


def kv_smem_bytes(D: int, DV: int, c: Any) -> Any:
    """K, V, and slots for Q, dO and their rows' values."""
    rows = row_bytes(D, True) + row_bytes(DV, True)
    return c.BN_kv * rows + c.kv_stages * c.BM_kv * (rows + VALUES_BYTES)


def q_smem_bytes(D: int, DV: int, c: Any) -> Any:
    """Q, dO, and slots for K and V."""
    return (row_bytes(D, True) + row_bytes(DV, True)) * (c.BM_q + c.q_stages * c.BN_q)


def kv_register_estimate(D: int, DV: int, c: Any) -> Any:
    """Registers a thread: dK and dV, scores and products, and 40 for what no config does without."""
    rows = c.BN_kv / c.kv_warps / WARP
    return rows * (8 * (kv_columns(D, c) + kv_columns(DV, c)) + 2 * c.BM_kv) + 40


def q_register_estimate(D: int, c: Any) -> Any:
    """The same for dQ."""
    return c.BM_q / c.q_warps / WARP * (D + 2 * c.BN_q) + 40
