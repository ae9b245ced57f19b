"""The work of wgmma on a problem, counted from its loops; exact counts equal the emulator's counters."""

from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import heapreplace
from math import prod
from typing import Any

import numpy as np

from tuner.arch import GPU
from tuner.spec import Array, Work

from ..operator import cost
from ..problem import Problem, unpacked
from .config import ELEMENT, ROWS, WIDTHS, Config, packed, round_up, row_tiles, summed, walkers

_WARPS = 4  # warps per warpgroup
_WARP = 32
_PRODUCT = 16 * 8 * 16  # multiply-adds of an m16n8k16
_L2_BYTES = 24 << 20  # L2 capacity for keys and values of a section of heads: panels/schedule.cuh
_CLEARING = Work(
    ctas=1,
    warps=1,
    fma=0,
    alu=4,
    l2_bytes=4,
    dram_bytes=0,
    chain=1,
)


def tiles(problem: Problem, config: Config) -> Array:
    """Key tiles that each row tile visits, [clusters, blocks of a cluster]: at least one, so that rows without keys are
    written too.

    The row tiles are those of one head, or of the heads that share rows; the last may start beyond the last query.
    """
    rows = ROWS * config.warpgroups // int(packed(problem.heads, problem.kv_heads, config))
    count, clusters = int(row_tiles(problem, config)), -(-int(row_tiles(problem, config)) // config.cluster)
    last = rows * np.arange(1, count + 1)
    ends = last + problem.seq_k - problem.seq_q if problem.causal else np.full(count, problem.seq_k)
    keys = near_keys(problem, last - rows, last) if problem.use_window else np.minimum(ends, problem.seq_k)
    visited: Array = np.ones(clusters * config.cluster, np.int64)
    visited[:count] = np.maximum(1, -(-keys // config.BN))
    return visited.reshape(clusters, config.cluster)


def near_keys(problem: Problem, first: Array, end: Array) -> Array:
    """Keys from the start of the first window to the end of the last one, of the queries in [first, end): `NearKeys` of
    panels/near_keys.cuh."""
    own = problem.seq_k - problem.seq_q  # key of query 0
    begins = np.clip(first + own - problem.window_left, 0, problem.seq_k)
    ends = np.clip(np.minimum(end, problem.seq_q) + own + problem.window_right, 0, problem.seq_k)
    keys: Array = ends - begins
    return keys


def order(problem: Problem, config: Config) -> Array:
    """Key tiles of all row tiles, [clusters, blocks of a cluster], in the order of execution."""
    visited = tiles(problem, config)[:: -1 if config.heavy_first else 1]
    return in_order(visited, problem, _head_groups(problem, config))


def in_order(visited: Array, problem: Any, taken_heads: int) -> Array:
    """Key tiles of all row tiles in the order of execution, for any problem, from those of one head or group; a KV head
    has `taken_heads` of them: see panels/schedule.cuh."""
    heads = problem.batch * problem.kv_heads * taken_heads
    heads_in_l2 = max(1, _L2_BYTES // (ELEMENT * (problem.head_dim + problem.head_dim_v)) // problem.seq_k)  # KV heads
    max_heads = min(heads, heads_in_l2 * taken_heads)
    section = -(-heads // -(-heads // max_heads))
    full, remainder = divmod(heads, section)
    most_sections, last = np.repeat(visited, section, axis=0), np.repeat(visited, remainder, axis=0)
    return np.concatenate([np.tile(most_sections, (full, 1)), last])


def shares(problem: Problem, config: Config) -> Array:
    """Key tiles that each block of a persistent grid, or each cluster, computes, assuming equal time per tile."""
    return shared_out(order(problem, config), config)


def shared_out(visited: Array, config: Any) -> Array:
    """Key tiles that each block or cluster computes, from the row tiles in the order of execution."""
    loads = [0] * walkers(len(visited), config)
    for count in np.max(visited, axis=1).tolist():
        heapreplace(loads, loads[0] + count)  # the next row tile goes to the first block that is done
    return np.array(loads)


@dataclass(frozen=True, slots=True)
class Grid:
    """Number of blocks, key tiles of the longest block, and key tiles of all blocks."""

    blocks: int
    longest: float
    visits: float


def grid_of(visited: Array, ordered: Array, config: Any) -> Grid:
    """The grid, from the key tiles of the row tiles of one head, and of all in the order of execution."""
    if config.blocks:
        shares = shared_out(ordered, config)
        return Grid(len(shares) * config.cluster, float(np.max(shares)), float(np.sum(ordered)))
    return Grid(ordered.size, float(np.max(visited)), float(np.sum(ordered)))


@lru_cache(maxsize=4096)  # most parameters of a config do not affect it
def _grid(problem: Problem, config: Config) -> Grid:
    return grid_of(tiles(problem, config), order(problem, config), config)


def work(problem: Problem, config: Config, gpu: GPU) -> tuple[Work, ...]:
    """wgmma and the bytes of TMA are exact; the other instructions are the minimum that the algorithm requires.

    Packed sequences are counted as if their lengths were equal, except that the number of blocks is that of the
    longest.
    """
    if problem.use_cu_seqlens:
        (equal,) = work(unpacked(problem), config, gpu)
        heads = problem.sequences * problem.kv_heads * _head_groups(problem, config)
        blocks = prod(tiles(problem, config).shape) * heads
        lengthened = blocks / equal.ctas  # idle blocks make the mean block shorter
        return (replace(equal, ctas=blocks, longest_cta=equal.longest_cta * lengthened, dram_bytes=_dram(problem)),)
    grid = _grid(problem, _schedule_config(config))
    row_groups, capped = _head_groups(problem, config), problem.use_softcap
    return work_of(problem, config, tiles(problem, config), grid, _dram(problem), taken_heads=row_groups, capped=capped)


def work_of(
    problem: Any, config: Any, visited: Array, grid: Grid, dram: float, *, taken_heads: int, capped: bool = False
) -> tuple[Work, ...]:
    """Work of any problem, from the key tiles that row tiles visit, [clusters, blocks of a cluster], and how often each
    KV head is processed: once per query head, per group of heads that share rows, or per cluster of heads.
    """
    D, DV = problem.head_dim, problem.head_dim_v
    columns = int(summed(DV, config))  # columns of V that are multiplied
    heads = problem.batch * problem.kv_heads * taken_heads
    blocks, total, loaded = visited.size, int(np.sum(visited)), int(np.sum(np.max(visited, axis=1)))
    padded = round_up(D, 16)
    warps = heads * total * config.warpgroups * _WARPS  # warp passes over tiles
    scores = 16 * config.BN / _WARP  # scores per lane, for each warp and tile
    polynomials = scores / config.polynomial if config.polynomial else 0.0
    caps = scores if capped else 0.0  # two scores share a reciprocal: softcap.cuh
    lanes = 0 if config.lazy_rescale else 16 * columns / _WARP  # elements of O to rescale
    maxima = 0 if config.lazy_rescale else scores  # maxima of floats; lazy: of three integers at a time, half as many
    main = Work(
        ctas=grid.blocks,
        warps=_WARPS * (config.warpgroups + 1),
        fma=warps * (2 * scores + maxima + lanes + 12 + 7 * polynomials + 5 * caps),
        mufu=warps * (scores - polynomials + 2 + 1.5 * caps),
        alu=warps * (scores / 2 + (scores - maxima) / 2 + 40 + 2 * polynomials),
        smem_wavefronts=warps * _operand_bytes(padded, columns, config) / _WARPS / 128,
        l2_bytes=float(heads * _loaded_bytes(D, DV, config, blocks, loaded) + stored_bytes(problem, config)),
        dram_bytes=dram,
        barriers=float(heads * blocks),
        longest_cta=grid.longest * grid.blocks / grid.visits,
        chain=grid.longest * (1.0 if config.overlap else 2.0),  # the products, then the exponentials
        stages=config.stages,
        wgmma=heads * total * config.warpgroups * ROWS * config.BN * (padded + columns) / _PRODUCT,
    )
    return (_CLEARING, main) if config.blocks else (main,)


def _head_groups(problem: Problem, config: Config) -> int:
    """Per KV head: query heads, or groups of those that share rows."""
    return problem.heads // problem.kv_heads // int(packed(problem.heads, problem.kv_heads, config))


def _dram(problem: Problem) -> float:
    return float(cost(problem).bytes)


def _schedule_config(config: Config) -> Config:
    """The config with the parameters that do not affect the distribution of row tiles set to fixed values."""
    return replace(config, stages=2, overlap=1, ping_pong=False, value_columns=0, polynomial=0, lazy_rescale=False)


def _operand_bytes(padded: int, padded_v: int, config: Any) -> float:
    """Bytes of shared memory that the wgmmas of one warpgroup and tile read: Q and K, then V."""
    return ELEMENT * (padded * (ROWS + config.BN) + padded_v * config.BN)


def _loaded_bytes(D: int, DV: int, config: Any, blocks: int, loaded: int) -> int:
    """Bytes of the boxes that L2 delivers for the work items of one KV head, zeros included: Q of all blocks, and
    `loaded` tiles of K and V, each once per cluster.
    """
    padded = round_up(D, 16)
    width = config.value_columns if config.value_columns in WIDTHS else 16
    values = round_up(DV, width)
    return ELEMENT * (loaded * config.BN * (padded + values) + blocks * config.warpgroups * ROWS * padded)


def stored_bytes(problem: Any, config: Any, rows: int = ROWS) -> int:
    """Bytes of O, in boxes of `rows` rows that contain any of it, and of the log-sum-exp."""
    heads = int(packed(problem.heads, problem.kv_heads, config))
    boxes = problem.batch * (problem.heads // heads) * -(-problem.seq_q * heads // rows)
    queries = problem.batch * problem.heads * problem.seq_q
    return int(boxes * rows * ELEMENT * round_up(problem.head_dim_v, 16) + 4 * queries)
