"""The search space of wgmma: flash_attention's tiles and steps, and clusters of heads."""

from dataclasses import dataclass
from typing import Any

from ...flash_attention.wgmma.config import ROWS, Tiles, packed


@dataclass(frozen=True, slots=True)
class Config(Tiles):
    # query heads of a KV head that share a tile's rows, at most the largest power of two that divides their number
    packed_heads: int
    cluster: int  # blocks of heads of one KV head that load K and V for each other; 1: each for itself
    blocks: int  # persistent blocks per device at one block per SM; 0: one block per row tile


def taken_heads(problem: Any, c: Any) -> Any:
    """Per KV head: query heads, or groups of those that share rows, or clusters of these."""
    return -(-(problem.heads // problem.kv_heads // packed(problem.heads, problem.kv_heads, c)) // c.cluster)


def queries(problem: Any, config: Config) -> int:
    """Queries of each head in a row tile."""
    return ROWS * config.warpgroups // int(packed(problem.heads, problem.kv_heads, config))


def row_tiles(problem: Any, config: Config) -> int:
    """Row tiles of one head, or of the heads that share them."""
    return -(-problem.seq_q // queries(problem, config))
