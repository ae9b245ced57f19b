"""What wgmma is free to choose: flash_attention's tiles and steps, and clusters of heads."""

from dataclasses import dataclass
from typing import Any

from ...flash_attention.wgmma.config import ROWS, Tiles, packed


@dataclass(frozen=True, slots=True)
class Config(Tiles):
    packed_heads: int  # query heads of a KV head that share a tile's rows, as far as their number has this power of two
    cluster: int  # blocks of heads of one KV head that load K and V for each other; 1: each for itself
    blocks: int  # that walk over the row tiles, on each SM's share of blocks; 0: a block for each row tile


def taken_heads(problem: Any, c: Any) -> Any:
    """Of a KV head: heads, or groups of those that share rows, or as many of these as clusters take."""
    return -(-(problem.heads // problem.kv_heads // packed(problem.heads, problem.kv_heads, c)) // c.cluster)


def queries(problem: Any, config: Config) -> int:
    """Of each head in a row tile."""
    return ROWS * config.warpgroups // int(packed(problem.heads, problem.kv_heads, config))


def row_tiles(problem: Any, config: Config) -> int:
    """Of one head, or of the heads that share them."""
    return -(-problem.seq_q // queries(problem, config))
