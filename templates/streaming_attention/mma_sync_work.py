"""What mma_sync does for a problem, counted from its loops: the emulator's counters agree with the exact ones."""

import numpy as np

from tuner.arch import GPU
from tuner.operator import Work

from ..flash_attention.mma_sync_work import Visits, work_of_visits
from .mma_sync_config import Config
from .operator import Problem, cost
from .visits import Keys, Walks


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    return (work_of_visits(problem, config, visits(problem, config), cost(problem)),)


def visits(problem: Problem, config: Config) -> Visits:
    """Of one head. Their number grows as T · (sinks + window)."""
    blocks, groups = -(-problem.seq_q // config.BM), config.BM // config.rows_per_warp
    walks = Walks(Keys.of(problem, config.BM, blocks), config.BN)
    of_groups = Keys.of(problem, config.rows_per_warp, blocks * groups)
    tiles = walks.visited(of_groups, config.BN)
    steps = walks.visited(of_groups, 16) if config.skip_steps else tiles * config.BN // 16
    return Visits(walks.tiles, tiles, steps, int(np.sum(walks.keys_read)))
