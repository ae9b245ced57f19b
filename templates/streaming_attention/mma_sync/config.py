"""The search space of mma_sync: flash_attention's tiles, the granularity at which window edges are followed, and
whether query heads share a block's rows."""

from dataclasses import dataclass
from typing import Any

from ...flash_attention.mma_sync.config import Tiles


@dataclass(frozen=True, slots=True)
class Config(Tiles):
    narrow: int  # keys of a tile that a warp computes if it attends no others; 0: always the complete tile
    # query heads of a KV head that share a block's rows, at most the largest power of two that divides their number
    packed_heads: int


def packed(problem: Any, config: Config) -> int:
    """Query heads that share a block's rows: the config's number, at most the largest power of two that divides heads /
    kv_heads."""
    group: int = problem.heads // problem.kv_heads
    return min(config.packed_heads, group & -group)
