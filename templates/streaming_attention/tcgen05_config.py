"""What tcgen05 is free to choose: flash_attention's tiles and steps."""

from dataclasses import dataclass
from typing import Any

from ..flash_attention.tcgen05_config import ROWS
from ..flash_attention.wgmma_config import packed


@dataclass(frozen=True, slots=True)
class Config:
    BN: int  # keys a tile
    row_tiles: int  # of 128 rows of Q, a warpgroup each
    stages: int  # slots for tiles of K, and as many of V
    value_columns: int  # of a panel of V: one product spans panels of one width; 0: 64, 32 and 16, a product for each
    polynomial: int  # one pair of exponentials in so many is computed on the FMA pipe; 0: none
    lazy_rescale: bool  # O is scaled only when a maximum grows by more than a factor of 2^8
    overlaid: bool  # P lies over the scores that it was made of; the next ones then wait for its product
    packed_heads: int  # query heads of a KV head that share a tile's rows, as far as their number has this power of two


def queries(problem: Any, config: Config) -> int:
    """Of each head in a block."""
    return ROWS * config.row_tiles // int(packed(problem.heads, problem.kv_heads, config))


def blocks(problem: Any, config: Config) -> int:
    """Of one head, or of the heads that share their rows."""
    return -(-int(problem.seq_q) // queries(problem, config))
