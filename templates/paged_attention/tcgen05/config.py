"""The search space of tcgen05: flash_attention's tiles and steps, and whether blocks share the keys of row tiles."""

from dataclasses import dataclass

from tuner.arch import Arch

from ...flash_attention.tcgen05.config import LAST_COLUMNS, ROWS, Tiles, smem_bytes, tensor_columns
from ..problem import Problem
from ..wgmma.config import heads_of_tile, row_tiles

WORK = 64  # bytes of a work item: PagedWork of panels/keys.cuh


@dataclass(frozen=True, slots=True)
class Config(Tiles):
    # query heads of a KV head that share a tile's rows, at most the largest power of two that divides their number
    packed_heads: int
    splits: int  # shares of a row tile's keys, on average, that separate blocks compute and a second launch merges


def queries_of_block(problem: Problem, c: Config) -> int:
    """Queries of each head per block."""
    return ROWS * c.row_tiles // heads_of_tile(problem, c)


def ctas(D: int, c: Config, arch: Arch) -> int:
    """Blocks per SM: one row tile leaves half of the registers free, and may leave half of both memories."""
    smem = int(smem_bytes(D, D, c, WORK)) + arch.smem_reserved
    room = min(LAST_COLUMNS // int(tensor_columns(D, c)), arch.smem_per_sm // smem)
    return max(min(room, 2 // c.row_tiles), 1)


def blocks(problem: Problem, c: Config) -> int:
    """Blocks of the grid: shares of the row tiles of all heads."""
    sharers = problem.heads // heads_of_tile(problem, c)
    return row_tiles(problem, queries_of_block(problem, c)) * sharers * c.splits
