"""What mma_sync is free to choose: flash_attention's tiles, how closely the edges of masks are followed, and
whether blocks share the keys of a tile of rows."""

from dataclasses import dataclass

from ...flash_attention.mma_sync.config import Tiles


@dataclass(frozen=True, slots=True)
class Config(Tiles):
    narrow: int  # keys that a warp takes of a tile where it attends no others; 0: always the whole tile
    splits: int  # shares of a row tile's keys, on average, that blocks take and another launch merges
