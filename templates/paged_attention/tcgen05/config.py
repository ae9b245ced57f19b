"""What tcgen05 is free to choose: flash_attention's tiles and steps, and whether blocks share the keys of row tiles."""

from dataclasses import dataclass

from tuner.arch import Arch

from ...flash_attention.tcgen05.config import LAST_COLUMNS, ROWS, Tiles, smem_bytes, tensor_columns
from ..problem import Problem
from ..wgmma.config import heads_of_tile, row_tiles

WORK = 64  # bytes of what is to be computed: PagedWork of panels/keys.cuh


@dataclass(frozen=True, slots=True)
class Config(Tiles):
    packed_heads: int  # query heads of a KV head that share a tile's rows, as far as their number has this power of two
    splits: int  # shares of a row tile's keys, on average, that blocks take and another launch merges


def queries_of_block(problem: Problem, c: Config) -> int:
    """Of each head."""
    return ROWS * c.row_tiles // heads_of_tile(problem, c)


def ctas(D: int, c: Config, arch: Arch) -> int:
    """Blocks that share an SM: one row tile leaves half of the registers, and may leave as much of both memories."""
    smem = int(smem_bytes(D, D, c, WORK)) + arch.smem_reserved
    room = min(LAST_COLUMNS // int(tensor_columns(D, c)), arch.smem_per_sm // smem)
    return max(min(room, 2 // c.row_tiles), 1)


def blocks(problem: Problem, c: Config) -> int:
    """Of the grid: shares of what all heads' row tiles are to blocks."""
    sharers = problem.heads // heads_of_tile(problem, c)
    return row_tiles(problem, queries_of_block(problem, c)) * sharers * c.splits
