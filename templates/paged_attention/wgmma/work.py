"""The work of wgmma if every table is full, counted from its loops; exact counts equal the emulator's counters."""

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from tuner.arch import GPU
from tuner.spec import Array, Work

from ...flash_attention.split_keys import config as merging
from ...flash_attention.split_keys.work import Walked, work_of_walks
from ...flash_attention.wgmma.config import ELEMENT
from ...flash_attention.wgmma.work import Grid, shared_out, stored_bytes, work_of
from ..operator import cost
from ..problem import Problem, unpacked
from ..split_keys.work import Shared, merge_work
from .config import MERGE_THREADS, Config, blocks, box_rows, heads_of_tile, merge_blocks, queries_of_tile

_WARP = 32


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    """wgmma, the bytes of TMA and those of the merge are exact; the rest is the minimum that the algorithm requires.

    Reads of tables and lengths are not counted. Packed queries are counted as if each sequence had the same number, in
    a grid for any numbers.
    """
    equal, ctas = unpacked(problem), blocks(problem, config)
    cut = cut_of(equal, config)
    *clear, main = _attend(equal, config, cut, ctas)
    return (*clear, main) if config.splits == 1 else (main, merging_work(problem, cut.parts))


def merging_work(problem: Problem, parts: int) -> Work:
    """Work of the launch that merges `parts` parts of each row."""
    equal = unpacked(problem)
    return replace(merge_work(equal, _merge_config(parts), _merge(equal, parts)), ctas=merge_blocks(problem))


def cut_of(problem: Problem, config: Any) -> Shared:
    """How the tiles that all rows of a sequence attend are split."""
    steps = int(places(problem, config, problem.seq_q, 1)[0])
    steps = max(-(-steps // config.BN), 1)
    max_steps = -(-steps // config.splits)
    return Shared(steps, max_steps, -(-steps // max_steps))


def tiles(problem: Problem, config: Config, cut: Shared) -> Array:
    """Key tiles that each share of a head's row tiles visits, [row tiles · parts, 1]: at least one."""
    queries = queries_of_tile(problem, config)
    ends = places(problem, config, queries, -(-problem.seq_q // queries))
    visited = np.maximum(-(-ends // config.BN), 1)[:, None]
    begin = cut.most * np.arange(cut.parts)
    return np.maximum(np.minimum(visited, begin + cut.most) - begin, 1).reshape(-1, 1)


def _attend(problem: Problem, config: Config, cut: Shared, ctas: int) -> tuple[Work, ...]:
    """Work if each sequence has the same number of queries: each share loads Q, and writes partial results for the
    merge instead of outputs."""
    packed = heads_of_tile(problem, config)
    row_groups, floor = problem.heads // problem.kv_heads // packed, cost(problem).bytes
    visited, (longest, visits) = tiles(problem, config, cut), _scheduled_tiles(problem, _schedule_config(config))
    grid = Grid(ctas, longest, visits)
    works = work_of(problem, config.tile, visited, grid, floor, taken_heads=row_groups, capped=problem.use_softcap)
    if cut.parts == 1:
        return works
    (unsplit,) = works
    return (leaving(problem, cut.parts, unsplit, stored_bytes(problem, config)),)


def leaving(problem: Problem, parts: int, unsplit: Work, stored: int) -> Work:
    """The work of blocks that write `parts` parts of each row for the merge instead of results."""
    D, items = problem.head_dim, problem.batch * problem.heads * problem.seq_q
    part_bytes = items * parts * (4 * D + 8)
    dram = cost(problem).bytes - items * (ELEMENT * D + 4) + part_bytes
    return replace(unsplit, l2_bytes=unsplit.l2_bytes - stored + part_bytes, dram_bytes=dram)


def _schedule_config(config: Config) -> Config:
    """The config with the parameters that do not affect the distribution of row tiles set to fixed values."""
    return replace(config, stages=2, overlap=1, ping_pong=False, value_columns=16, polynomial=0, lazy_rescale=False)


@lru_cache(maxsize=4096)
def _scheduled_tiles(problem: Problem, config: Config) -> tuple[float, float]:
    """Key tiles of the block with the most, and of all blocks. The last row tiles of a sequence are computed first."""
    visited = tiles(problem, config, cut_of(problem, config))
    sharers = problem.heads // heads_of_tile(problem, config)
    visits = float(problem.batch * sharers * np.sum(visited))
    if not config.blocks:
        return float(np.max(visited)), visits
    in_turn = np.tile(np.repeat(visited[::-1], sharers, axis=0), (problem.batch, 1))
    return float(np.max(shared_out(in_turn, config.tile))), visits


def places(problem: Problem, config: Any, queries: int, count: int) -> Array:
    """End of the positions that `count` row tiles of `queries` queries of a sequence visit: `PagedKeys::end` of
    panels/keys.cuh."""
    box, before = box_rows(problem, config), problem.seq_k - problem.seq_q
    first = np.arange(count, dtype=np.int64) * queries
    begin = np.maximum(first + before - problem.window + 1, 0) // box * box
    shift = np.minimum(-(-problem.sinks // box) * box - begin, 0)
    ends: Array = np.minimum(first + queries, problem.seq_q) + before + shift
    return ends


def _merge_config(parts: int) -> merging.Config:
    """A config of split_keys whose merge has the same threads and parts."""
    return merging.Config(BM=16, BN=16, warps=MERGE_THREADS // _WARP, stages=2, splits=parts, q_in_registers=False)


def _merge(problem: Problem, parts: int) -> Work | None:
    """The merge of split_keys, if there is more than one part."""
    _, *merge = work_of_walks(problem, _merge_config(parts), Walked(np.ones(1, np.int64), 0), cost(problem))
    return merge[0] if merge else None
