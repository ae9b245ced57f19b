"""The search space of wgmma, and the sizes derived from it; every function accepts a config or columns of many
configs."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ...flash_attention.wgmma import config as dense
from ...flash_attention.wgmma.config import ROWS, Tiles, packed
from ..problem import Problem

LEAST_BOX = 8  # rows: period of the swizzles
WINDOW_BOX = 16  # rows, with a window: a row tile starts at a box
MERGE_THREADS = 128
# Registers per thread by number of warpgroups, of consumers and of the producer: almost all registers of an SM.
_CONSUMER_REGISTERS = np.array([0, 216, 232, 160])
_PRODUCER_REGISTERS = np.array([0, 40, 40, 32])


@dataclass(frozen=True, slots=True)
class Config(Tiles):
    # query heads of a KV head that share a tile's rows, at most the largest power of two that divides their number
    packed_heads: int
    splits: int  # shares of a row tile's keys, on average, that separate blocks compute and a second launch merges
    blocks: int  # persistent blocks per device at one block per SM; 0: one block per row tile

    @property
    def tile(self) -> dense.Config:
        """flash_attention's config with the same tiles and steps."""
        shared = {field.name: getattr(self, field.name) for field in fields(Tiles)}
        return dense.Config(**shared, heavy_first=True, packed_heads=self.packed_heads, cluster=1, blocks=self.blocks)


def consumer_registers(c: Any) -> Any:
    """Registers of a consumer thread."""
    return _CONSUMER_REGISTERS[c.warpgroups] - _ceded_registers(c)


def producer_registers(c: Any) -> Any:
    """Registers of a thread of the producer warpgroup."""
    return _PRODUCER_REGISTERS[c.warpgroups] + 3 * _ceded_registers(c)


def _ceded_registers(c: Any) -> Any:
    """Registers that each of three consumer warpgroups cedes to the producer of a persistent grid, which spills with
    32."""
    return np.where((c.warpgroups == 3) & (c.blocks != 0), 8, 0)


def heads_of_tile(problem: Problem, c: Any) -> int:
    """Query heads that share the rows of a tile."""
    return int(packed(problem.heads, problem.kv_heads, c))


def queries_of_tile(problem: Problem, c: Any) -> int:
    """Queries of each head in a row tile."""
    return ROWS * int(c.warpgroups) // heads_of_tile(problem, c)


def shares(problem: Problem, c: Any) -> int:
    """Shares of the row tiles of all heads: the work items of the grid."""
    sharers = problem.heads // heads_of_tile(problem, c)
    return row_tiles(problem, queries_of_tile(problem, c)) * sharers * int(c.splits)


def blocks(problem: Problem, c: Config) -> int:
    """Blocks of the grid."""
    work_items = shares(problem, c)
    return dense.walkers(work_items, c.tile) if c.blocks else work_items


def merge_blocks(problem: Problem) -> int:
    """A thread merges 4 elements of a row of O."""
    return -(-problem.batch * problem.heads * problem.seq_q * (problem.head_dim // 4) // MERGE_THREADS)


def row_tiles(problem: Problem, queries: int) -> int:
    """Row tiles of `queries` queries over all sequences, for heads that share rows; with packed queries, the maximum
    possible number."""
    N = problem.sequences
    max_tiles = N * -(-problem.longest // queries)
    return min(max_tiles, (problem.seq_q + N * (queries - 1)) // queries) if problem.use_cu_seqlens_q else max_tiles


def box_rows(problem: Problem, c: Any) -> int:
    """Rows of a box: a common divisor of page and tile, and small if row tiles may start anywhere."""
    BN = int(c.BN)
    return min(problem.page_size, WINDOW_BOX if problem.window < problem.seq_k else BN & -BN)
