"""What wgmma is free to choose, and the sizes that follow; every function takes a config or columns of many."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ...flash_attention.wgmma import config as dense
from ...flash_attention.wgmma.config import ROWS, Tiles, packed
from ..problem import Problem

LEAST_BOX = 8  # rows, in which swizzles repeat
WINDOW_BOX = 16  # rows, where there is a window: a row tile begins with a box
MERGE_THREADS = 128
# Registers of a thread by warpgroups, of those that compute and of the one that loads: hardly any of an SM are left.
_CONSUMER_REGISTERS = np.array([0, 216, 232, 160])
_PRODUCER_REGISTERS = np.array([0, 40, 40, 32])


@dataclass(frozen=True, slots=True)
class Config(Tiles):
    packed_heads: int  # query heads of a KV head that share a tile's rows, as far as their number has this power of two
    splits: int  # shares of a row tile's keys, on average, that blocks take and another launch merges
    blocks: int  # that walk over the row tiles, on each SM's share of blocks; 0: a block for each row tile

    @property
    def tile(self) -> dense.Config:
        """flash_attention's config with the same tiles and steps."""
        shared = {field.name: getattr(self, field.name) for field in fields(Tiles)}
        return dense.Config(**shared, heavy_first=True, packed_heads=self.packed_heads, cluster=1, blocks=self.blocks)


def consumer_registers(c: Any) -> Any:
    """Registers of a thread that computes."""
    return _CONSUMER_REGISTERS[c.warpgroups] - _moved(c)


def producer_registers(c: Any) -> Any:
    """Registers of a thread of the warpgroup that loads."""
    return _PRODUCER_REGISTERS[c.warpgroups] + 3 * _moved(c)


def _moved(c: Any) -> Any:
    """Registers that each of three warpgroups leaves to the one that loads and finds row tiles: with 32 that spills."""
    return np.where((c.warpgroups == 3) & (c.blocks != 0), 8, 0)


def heads_of_tile(problem: Problem, c: Any) -> int:
    """Query heads that share the rows of a tile."""
    return int(packed(problem.heads, problem.kv_heads, c))


def queries_of_tile(problem: Problem, c: Any) -> int:
    """Of each head in a row tile."""
    return ROWS * int(c.warpgroups) // heads_of_tile(problem, c)


def shares(problem: Problem, c: Any) -> int:
    """Of row tiles of all heads: what blocks take."""
    sharers = problem.heads // heads_of_tile(problem, c)
    return row_tiles(problem, queries_of_tile(problem, c)) * sharers * int(c.splits)


def blocks(problem: Problem, c: Config) -> int:
    """Of the grid."""
    taken = shares(problem, c)
    return dense.walkers(taken, c.tile) if c.blocks else taken


def merge_blocks(problem: Problem) -> int:
    """A thread merges 4 elements of a row of O."""
    return -(-problem.batch * problem.heads * problem.seq_q * (problem.head_dim // 4) // MERGE_THREADS)


def row_tiles(problem: Problem, queries: int) -> int:
    """Of so many queries of all sequences, for heads that share rows; where queries are packed, as many as may be."""
    N = problem.sequences
    most = N * -(-problem.longest // queries)
    return min(most, (problem.seq_q + N * (queries - 1)) // queries) if problem.use_cu_seqlens_q else most


def box_rows(problem: Problem, c: Any) -> int:
    """Of a page and a tile of keys: what they have in common, and little where a row tile begins anywhere."""
    BN = int(c.BN)
    return min(problem.page_size, WINDOW_BOX if problem.window < problem.seq_k else BN & -BN)
