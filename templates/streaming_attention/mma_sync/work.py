"""The work of mma_sync on a problem, counted from its loops; exact counts equal the emulator's counters."""

import numpy as np

from tuner.arch import GPU
from tuner.spec import Work

from ...flash_attention.mma_sync.work import Rows, Visits, work_of_visits
from ..operator import cost
from ..problem import Problem
from ..visits import Keys, Walks
from .config import Config, packed


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    heads = packed(problem, config)
    rows = Rows(problem.batch, problem.heads // heads, problem.seq_q * heads, problem.head_dim)
    return (work_of_visits(rows, config, visits(problem, config), cost(problem)),)


def visits(problem: Problem, config: Config) -> Visits:
    """Visits of one head, or of packed heads. Their number grows as T · (sinks + window)."""
    queries = config.BM // packed(problem, config)  # queries of each head per block
    warp_queries = min(config.rows_per_warp, queries)
    blocks, parts = -(-problem.seq_q // queries), queries // warp_queries
    walks = Walks(Keys.of(problem, queries, blocks), config.BN)
    spans = walks.spans(Keys.of(problem, warp_queries, blocks * parts), config.narrow)
    full, narrow = (count * (config.BM // config.rows_per_warp // parts) for count in spans)
    steps = (full * config.BN + narrow * config.narrow) // 16
    return Visits(walks.tiles, full + narrow, steps, int(np.sum(walks.keys_read)))
