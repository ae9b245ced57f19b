"""The work of tcgen05 if every table is full, counted from its loops; exact counts equal the emulator's counters."""

from dataclasses import replace

import numpy as np

from tuner.arch import GPU
from tuner.spec import Array, Work

from ...flash_attention.tcgen05.config import ROWS
from ...flash_attention.tcgen05.work import work_of
from ...flash_attention.wgmma.work import stored_bytes
from ..operator import cost
from ..problem import Problem, unpacked
from ..split_keys.work import Shared
from ..wgmma.work import cut_of, leaving, merging_work, places
from .config import Config, blocks, queries_of_block

_BARRIERS = 2  # barriers of an idle block


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    """Products, the bytes of TMA and those of the merge are exact; the rest is the minimum that the algorithm requires.

    Reads of tables and lengths are not counted. Packed queries are counted as if each sequence had the same number, in
    a grid for any numbers.
    """
    equal, ctas = unpacked(problem), blocks(problem, config)
    cut = cut_of(equal, config)
    visited = tiles(equal, config, cut)
    (main,) = work_of(equal, config, visited, float(cost(equal).bytes), capped=problem.use_softcap)
    if cut.parts > 1:
        main = leaving(equal, cut.parts, main, stored_bytes(equal, config, ROWS))
        # the barriers of TMA stores are omitted
        main = replace(main, barriers=main.barriers - main.ctas * config.row_tiles)
    idle = ctas - main.ctas
    longest = main.longest_cta * ctas / main.ctas  # idle blocks make the mean block shorter
    main = replace(main, ctas=ctas, longest_cta=longest, barriers=main.barriers + _BARRIERS * idle)
    return (main,) if config.splits == 1 else (main, merging_work(problem, cut.parts))


def tiles(problem: Problem, config: Config, cut: Shared) -> Array:
    """Key tiles that the row tiles of each share of a head visit, [blocks · parts, row tiles of a block]: at least one.

    `PagedRowKeys::visited` of tcgen05/keys.cuh: all row tiles of a block start at the same key, but end separately.
    """
    queries = queries_of_block(problem, config)
    rows_per_tile, count = queries // config.row_tiles, -(-problem.seq_q // queries)
    first = queries * np.arange(count)[:, None] + rows_per_tile * np.arange(config.row_tiles)
    last = np.minimum(queries * (1 + np.arange(count)), problem.seq_q)[:, None]
    # End of the keys that each row tile attends.
    ends = places(problem, config, queries, count)[:, None] - np.maximum(last - first - rows_per_tile, 0)
    begin = cut.most * np.arange(cut.parts)[:, None]
    visited = np.where(first < problem.seq_q, -(-ends // config.BN), 1)[:, None] - begin
    return np.clip(visited, 1, cut.most).reshape(-1, config.row_tiles)
