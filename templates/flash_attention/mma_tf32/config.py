"""The search space parameters of mma_tf32, and the sizes derived from them; every function accepts a config or columns
of many configs."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..mma_sync import config as narrow

ELEMENT = 4  # bytes of one fp32


@dataclass(frozen=True, slots=True)
class Config(narrow.Config):
    """The parameters of mma_sync, and one more."""

    round_on_arrival: bool  # tiles are rounded to tf32 once, in shared memory; otherwise by every warp that reads them


def row_bytes(D: int, swizzle: Any) -> Any:
    """Bytes of a row of D elements in shared memory."""
    return narrow.row_bytes(2 * D, swizzle)


def q_in_ring(D: int, DV: int, c: Any) -> Any:
    """Whether Q, on its way to registers, is staged in the ring because a buffer of its own exceeds the budget."""
    with_buffer = c.BM * row_bytes(D, c.swizzle) + _ring_bytes(D, DV, c) + narrow.shared_rows(c, ELEMENT)
    return c.q_in_registers & (with_buffer > c.smem_budget)


def smem_bytes(D: int, DV: int, c: Any) -> Any:
    """Shared memory of a block, in bytes; `c` is a config or columns of many configs."""
    query, ring = c.BM * row_bytes(D, c.swizzle), _ring_bytes(D, DV, c)
    return np.where(q_in_ring(D, DV, c), np.maximum(query, ring), query + ring) + narrow.shared_rows(c, ELEMENT)


def _ring_bytes(D: int, DV: int, c: Any) -> Any:
    return narrow.ring_bytes(row_bytes(D, c.swizzle), row_bytes(DV, c.swizzle), c)


def register_estimate(D: int, DV: int, terms: int, c: Any) -> Any:
    """Registers per thread: O, scores, Q if kept in registers, operands of steps in flight, and a constant for
    everything else.

    A lower bound for two terms: sums that start from zero use the remaining registers (mma_tf32/README.md).
    """
    tiles = c.BM * c.d_warps / (16 * c.warps)
    query = np.where(c.q_in_registers, terms * D * c.d_warps, 0)  # all terms of Q
    return c.BM * (DV + c.BN + query) / (32 * c.warps) + terms * (4 * tiles + 34) + 16
