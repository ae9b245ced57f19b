"""The work of tcgen05 on a problem, counted from its loops; exact counts equal the emulator's counters."""

import numpy as np

from tuner.arch import GPU
from tuner.spec import Array, Work

from ...flash_attention.tcgen05.work import work_of
from ..operator import cost
from ..problem import Problem
from ..wgmma.work import visited_tiles
from .config import Config, blocks, queries


def tiles(problem: Problem, config: Config) -> Array:
    """Key tiles that the row tiles of each block of a head visit, [blocks, row tiles of a block]: those of the
    block."""
    visited = visited_tiles(problem, blocks(problem, config), queries(problem, config), config.BN)
    return np.repeat(visited[:, None], config.row_tiles, axis=1)


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    """Products and the bytes of TMA are exact; the other instructions are the minimum that the algorithm requires."""
    return work_of(problem, config, tiles(problem, config), float(cost(problem).bytes))
