"""The search space of mma_sync: flash_attention's tiles, the granularity at which mask edges are followed, and whether
blocks share the keys of a row tile."""

from dataclasses import dataclass

from ...flash_attention.mma_sync.config import Tiles


@dataclass(frozen=True, slots=True)
class Config(Tiles):
    narrow: int  # keys of a tile that a warp computes if it attends no others; 0: always the complete tile
    splits: int  # shares of a row tile's keys, on average, that separate blocks compute and a second launch merges
