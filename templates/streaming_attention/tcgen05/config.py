"""The search space of tcgen05: flash_attention's tiles and steps."""

from dataclasses import dataclass
from typing import Any

from ...flash_attention.tcgen05.config import ROWS, Tiles
from ...flash_attention.wgmma.config import packed


@dataclass(frozen=True, slots=True)
class Config(Tiles):
    # query heads of a KV head that share a tile's rows, at most the largest power of two that divides their number
    packed_heads: int


def queries(problem: Any, config: Config) -> int:
    """Queries of each head per block."""
    return ROWS * config.row_tiles // int(packed(problem.heads, problem.kv_heads, config))


def blocks(problem: Any, config: Config) -> int:
    """Blocks of one head, or of the heads that share their rows."""
    return -(-problem.seq_q // queries(problem, config))
