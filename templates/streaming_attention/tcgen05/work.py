"""What tcgen05 does for a problem, counted from its loops: the emulator's counters agree with the exact ones."""

import numpy as np

from tuner.arch import GPU
from tuner.spec import Array, Work

from ...flash_attention.tcgen05.work import work_of
from ..operator import cost
from ..problem import Problem
from ..wgmma.work import visited_tiles
from .config import Config, blocks, queries


def tiles(problem: Problem, config: Config) -> Array:
    """Tiles of keys that the row tiles of each block of a head visit, [blocks, row tiles of one]: the block's."""
    visited = visited_tiles(problem, blocks(problem, config), queries(problem, config), config.BN)
    return np.repeat(visited[:, None], config.row_tiles, axis=1)


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    """Products and the bytes of TMA are exact; the other instructions are those that the mathematics needs."""
    return work_of(problem, config, tiles(problem, config), float(cost(problem).bytes))
