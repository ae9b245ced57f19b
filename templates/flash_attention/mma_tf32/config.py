"""What mma_tf32 is free to choose, and the sizes that follow; every function takes a config or columns of many."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..mma_sync import config as narrow

ELEMENT = 4  # bytes


@dataclass(frozen=True, slots=True)
class Config(narrow.Config):
    """mma_sync's choices, and one more."""

    round_on_arrival: bool  # tiles are rounded to tf32 once, in shared memory, or by every warp that reads them


def row_bytes(D: int, swizzle: Any) -> Any:
    """Bytes of a row of D elements in shared memory."""
    return narrow.row_bytes(2 * D, swizzle)


def q_in_ring(D: int, DV: int, c: Any) -> Any:
    """Whether Q, on its way to registers, has no place of its own within the budget."""
    own = c.BM * row_bytes(D, c.swizzle) + _ring_bytes(D, DV, c) + narrow.shared_rows(c, ELEMENT)
    return c.q_in_registers & (own > c.smem_budget)


def smem_bytes(D: int, DV: int, c: Any) -> Any:
    """Shared memory of a block, in bytes; `c` is a config or columns of many."""
    query, ring = c.BM * row_bytes(D, c.swizzle), _ring_bytes(D, DV, c)
    return np.where(q_in_ring(D, DV, c), np.maximum(query, ring), query + ring) + narrow.shared_rows(c, ELEMENT)


def _ring_bytes(D: int, DV: int, c: Any) -> Any:
    return narrow.ring_bytes(row_bytes(D, c.swizzle), row_bytes(DV, c.swizzle), c)


def register_estimate(D: int, DV: int, terms: int, c: Any) -> Any:
    """Registers a thread: O, scores, Q where it stays, operands of steps under way, and what no config does without.

    Of two terms a lower bound: sums that start from zero take what is left (mma_tf32/README.md).
    """
    tiles = c.BM * c.d_warps / (16 * c.warps)
    query = np.where(c.q_in_registers, terms * D * c.d_warps, 0)  # all its terms
    return c.BM * (DV + c.BN + query) / (32 * c.warps) + terms * (4 * tiles + 34) + 16
