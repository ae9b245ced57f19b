"""The work of wgmma on a problem, counted from its loops; exact counts equal the emulator's counters."""

from dataclasses import replace
from functools import lru_cache

import numpy as np

from tuner.arch import GPU
from tuner.spec import Array, Work

from ...flash_attention.wgmma.work import Grid, grid_of, in_order, work_of
from ..operator import cost
from ..problem import Problem
from .config import Config, queries, row_tiles, taken_heads

PIECE = 16  # keys per piece: the sinks are padded to a multiple of it


def tiles(problem: Problem, config: Config) -> Array:
    """Key tiles that each row tile of a head visits, [row tiles, heads of a cluster]: `WindowKeys` of
    panels/keys.cuh."""
    visited = visited_tiles(problem, row_tiles(problem, config), queries(problem, config), config.BN)
    return np.repeat(visited[:, None], config.cluster, axis=1)


def visited_tiles(problem: Problem, row_tiles: int, queries: int, BN: int) -> Array:
    """Number of tiles of BN keys that each row tile of `queries` queries of a head visits."""
    first = np.arange(row_tiles, dtype=np.int64) * queries
    before = problem.seq_k - problem.seq_q
    padded = -(-problem.sinks // PIECE) * PIECE
    shift = np.minimum(padded - (first + before - problem.window + 1), 0)
    ends = np.minimum(first + queries, problem.seq_q) + before + shift
    visited: Array = np.maximum(-(-ends // BN), 1)
    return visited


@lru_cache(maxsize=4096)  # most parameters of a config do not affect it
def _grid(problem: Problem, config: Config) -> Grid:
    visited = tiles(problem, config)
    return grid_of(visited, in_order(visited, problem, int(taken_heads(problem, config))), config)


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    """wgmma and the bytes of TMA are exact; the other instructions are the minimum that the algorithm requires."""
    dealt = replace(
        config, stages=2, overlap=1, ping_pong=False, value_columns=0, polynomial=0, lazy_rescale=False
    )  # parameters that do not affect the distribution of row tiles are fixed
    heads, grid = int(taken_heads(problem, config)), _grid(problem, dealt)
    return work_of(problem, config, tiles(problem, config), grid, float(cost(problem).bytes), taken_heads=heads)
