"""What tcgen05 is free to choose, and the sizes that follow; every function takes a config or columns of many."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..problem import Problem
from ..wgmma.config import ELEMENT, packed, round_up, tile_bytes

ROWS = 128  # of a row tile: tensor memory has as many lanes
LAST_COLUMNS = 512  # of tensor memory

WORK = 48  # bytes of what is to be computed
_BARRIER, _ADDRESS = 8, 16  # bytes


@dataclass(frozen=True, slots=True)
class Tiles:
    BN: int  # keys per tile
    row_tiles: int  # of 128 rows of Q, a warpgroup each
    stages: int  # slots for tiles of K, and as many of V
    value_columns: int  # of a panel of V: one product spans panels of one width; 0: 64, 32 and 16, a product for each
    polynomial: int  # one pair of exponentials in so many is computed on the FMA pipe; 0: none
    lazy_rescale: bool  # O is scaled only when a maximum grows by more than a factor of 2^8
    overlaid: bool  # P lies over the scores that it was made of; the next ones then wait for its product


@dataclass(frozen=True, slots=True)
class Config(Tiles):
    heavy_first: bool  # causal: the row tiles with most keys first
    packed_heads: int  # query heads of a KV head that share a tile's rows, as far as their number has this power of two


def blocks(problem: Problem, c: Any) -> Any:
    """Of one head, or of the heads that share their rows."""
    queries = ROWS * c.row_tiles // packed(problem.heads, problem.kv_heads, c)
    return -(-problem.longest // queries)


def used_columns(DV: int, c: Any) -> Any:
    """Of tensor memory: O, scores, and P in half as many or over them."""
    return np.where(c.overlaid, c.row_tiles * (round_up(DV, 16) + c.BN), apart_columns(DV, c))


def apart_columns(DV: int, c: Any) -> Any:
    """The same where P has a place of its own."""
    return c.row_tiles * (round_up(DV, 16) + c.BN + c.BN // 2)


def tensor_columns(DV: int, c: Any) -> Any:
    """Columns that a block allocates."""
    return allocated(used_columns(DV, c))


def allocated(columns: Any) -> Any:
    """What a block allocates for these columns: a power of two."""
    return np.where(columns <= 64, 64, np.where(columns <= 128, 128, np.where(columns <= 256, 256, 512)))


def smem_bytes(D: int, DV: int, c: Any, work: int = WORK) -> Any:
    """Shared memory of a block, in bytes: Q, or O in its place, the rings of K and V, barriers, and what is to be
    computed."""
    padded, padded_v = round_up(D, 16), round_up(DV, 16)
    values = np.where(c.value_columns == 0, padded_v, round_up(padded_v, np.maximum(c.value_columns, 1)))
    ring = c.stages * (tile_bytes(ELEMENT * padded, c.BN) + tile_bytes(ELEMENT * values, c.BN))
    own = c.row_tiles * tile_bytes(ELEMENT * max(padded, padded_v), ROWS)
    return own + ring + _BARRIER * (6 * c.row_tiles + 4 * c.stages) + _ADDRESS + work
