"""What mma_sync is free to choose: flash_attention's tiles, how closely the edges of a window are followed, and
whether query heads share a block's rows."""

from dataclasses import dataclass
from typing import Any

from ...flash_attention.mma_sync.config import Tiles


@dataclass(frozen=True, slots=True)
class Config(Tiles):
    narrow: int  # keys that a warp takes of a tile where it attends no others; 0: always the whole tile
    packed_heads: (
        int  # query heads of a KV head that share a block's rows, as far as their number has this power of two
    )


def packed(problem: Any, config: Config) -> int:
    """Query heads that share a block's rows: the choice, or what heads / kv_heads has of that power of two."""
    group: int = problem.heads // problem.kv_heads
    return min(config.packed_heads, group & -group)
