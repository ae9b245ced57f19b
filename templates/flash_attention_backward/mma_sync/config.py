"""The search space of mma_sync, and the sizes derived from it; every function accepts a config or columns of many
configs."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...flash_attention.mma_sync.config import row_bytes

WARP = 32
VALUES_BYTES = 8  # shift and delta of a query


@dataclass(frozen=True, slots=True)
class Config:
    BN_kv: int  # keys per block, which sums their dK and dV
    BM_kv: int  # queries per step
    kv_warps: int
    kv_stages: int  # slots for tiles of Q and dO: one is read while the others are filled
    kv_slices: (
        # blocks that share their keys, each with a part of D and DV: fewer sums per thread, but scores are recomputed
        int
    )
    kv_min_ctas: int  # blocks that must fit the registers of an SM
    BM_q: int  # queries per block, which sums their dQ
    BN_q: int  # keys per step
    q_warps: int
    q_stages: int  # slots for tiles of K and V
    q_min_ctas: int


def kv_columns(D: int, c: Any) -> Any:
    """Column tiles of 8 of D, or of DV, per block of dK and dV: complete pairs, unless it computes all columns."""
    pairs = -(-(D // 8) // (2 * c.kv_slices))
    return np.where(c.kv_slices == 1, D // 8, 2 * pairs)


def kv_smem_bytes(D: int, DV: int, c: Any) -> Any:
    """Bytes of K, V, and slots for Q, dO and the values of their rows."""
    rows = row_bytes(D, True) + row_bytes(DV, True)
    return c.BN_kv * rows + c.kv_stages * c.BM_kv * (rows + VALUES_BYTES)


def q_smem_bytes(D: int, DV: int, c: Any) -> Any:
    """Bytes of Q, dO, and slots for K and V."""
    return (row_bytes(D, True) + row_bytes(DV, True)) * (c.BM_q + c.q_stages * c.BN_q)


def kv_register_estimate(D: int, DV: int, c: Any) -> Any:
    """Registers per thread: dK and dV, scores and products, and 40 for everything else."""
    rows = c.BN_kv / c.kv_warps / WARP
    return rows * (8 * (kv_columns(D, c) + kv_columns(DV, c)) + 2 * c.BM_kv) + 40


def q_register_estimate(D: int, c: Any) -> Any:
    """Registers per thread of the pass for dQ: dQ, scores and products, and 40 for everything else."""
    return c.BM_q / c.q_warps / WARP * (D + 2 * c.BN_q) + 40
