"""The search space of tcgen05, and the sizes derived from it; every function accepts a config or columns of many
configs."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..problem import Problem
from ..wgmma.config import ELEMENT, packed, round_up, tile_bytes

ROWS = 128  # rows per row tile: one per lane of tensor memory
LAST_COLUMNS = 512  # columns of tensor memory

WORK = 48  # bytes of a work item
_BARRIER, _ADDRESS = 8, 16  # bytes of an mbarrier, and of the address of tensor memory with its padding


@dataclass(frozen=True, slots=True)
class Tiles:
    BN: int  # keys per tile
    row_tiles: int  # tiles of 128 rows of Q, one warpgroup each
    stages: int  # slots for tiles of K, and the same number for V
    # columns of a panel of V: one product spans panels of one width; 0: 64, 32 and 16, one product for each
    value_columns: int
    polynomial: int  # one pair in this many exponentials is computed on the FMA pipe; 0: none
    lazy_rescale: bool  # O is rescaled only when a maximum grows by more than a factor of 2^8
    overlaid: bool  # P overwrites the scores it was computed from; the next scores then wait for its product


@dataclass(frozen=True, slots=True)
class Config(Tiles):
    heavy_first: bool  # causal: row tiles with the most keys first
    # query heads of a KV head that share a tile's rows, at most the largest power of two that divides their number
    packed_heads: int


def blocks(problem: Problem, c: Any) -> Any:
    """Blocks of one head, or of the heads that share their rows."""
    queries = ROWS * c.row_tiles // packed(problem.heads, problem.kv_heads, c)
    return -(-problem.longest // queries)


def used_columns(DV: int, c: Any) -> Any:
    """Columns of tensor memory: O, scores, and P in half as many columns or over the scores."""
    return np.where(c.overlaid, c.row_tiles * (round_up(DV, 16) + c.BN), apart_columns(DV, c))


def apart_columns(DV: int, c: Any) -> Any:
    """Columns of tensor memory if P has its own."""
    return c.row_tiles * (round_up(DV, 16) + c.BN + c.BN // 2)


def tensor_columns(DV: int, c: Any) -> Any:
    """Columns that a block allocates."""
    return allocated(used_columns(DV, c))


def allocated(columns: Any) -> Any:
    """Columns that a block must allocate to use `columns`: a power of two."""
    return np.where(columns <= 64, 64, np.where(columns <= 128, 128, np.where(columns <= 256, 256, 512)))


def smem_bytes(D: int, DV: int, c: Any, work: int = WORK) -> Any:
    """Shared memory of a block, in bytes: Q, later O, the rings of K and V, barriers, and the work item."""
    padded, padded_v = round_up(D, 16), round_up(DV, 16)
    values = np.where(c.value_columns == 0, padded_v, round_up(padded_v, np.maximum(c.value_columns, 1)))
    ring = c.stages * (tile_bytes(ELEMENT * padded, c.BN) + tile_bytes(ELEMENT * values, c.BN))
    row_tile_bytes = c.row_tiles * tile_bytes(ELEMENT * max(padded, padded_v), ROWS)
    return row_tile_bytes + ring + _BARRIER * (6 * c.row_tiles + 4 * c.stages) + _ADDRESS + work
