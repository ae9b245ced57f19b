"""The work of kernels for few queries, counted from their loops; exact counts equal the emulator's counters."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.spec import Array, Cost, Work

from ..mma_sync.config import ELEMENT
from .config import WARP, Config, merge_blocks


@dataclass(frozen=True, slots=True)
class Walked:
    """Key tiles that the blocks of one KV head visit."""

    tiles: Array  # [row tiles]: over all warps and splits
    rows_of_keys: int  # rows of K read from global memory, summed over row tiles


def work_of_walks(
    problem: Any, config: Config, walked: Walked, floor: Cost, element: int = ELEMENT
) -> tuple[Work, ...]:
    """Work of each launch if the row tiles of each KV head visit tiles as `walked` describes; `floor` is the cost of
    the problem, `element` the bytes of an element of K or V.

    mma, bytes and barriers are exact; the rest is the minimum that the algorithm requires.
    """
    split = config.splits > 1
    attend = _attend_work(problem, config, walked, floor, element)
    return (attend, _merge_work(problem, config)) if split else (attend,)


def _attend_work(problem: Any, config: Config, walked: Walked, floor: Cost, element: int) -> Work:
    """Work over the tiles of keys. With splits, partial results for the merge are written instead of the outputs."""
    D, DV = problem.head_dim, problem.head_dim_v
    heads, visited = problem.batch * problem.kv_heads, int(np.sum(walked.tiles))
    tiles, blocks = heads * visited, heads * len(walked.tiles) * config.splits
    scores = config.BM * config.BN / WARP
    query_steps = D // 16 + (D % 16) / 16  # a step of 8 columns is half an mma
    merged = 2 * (blocks * config.warps * config.BM * DV / WARP)  # elements stored and loaded, by warps
    queries = _items(problem) * config.warps * config.splits  # each warp reads Q by itself
    read = element * heads * walked.rows_of_keys * (D + DV) + ELEMENT * queries * D
    keys = config.BN * (D + DV) * element / ELEMENT  # elements of a tile, in units of 16 bits
    outputs = _output_bytes(problem)
    written = _parts(problem, config) * (4 * DV + 8) if config.splits > 1 else outputs
    return Work(
        ctas=blocks,
        warps=config.warps,
        mma=tiles * config.BM / 16 * (config.BN / 8) * (query_steps + DV / 16),
        fma=tiles * 3 * scores + merged,
        mufu=tiles * scores,
        alu=tiles * (scores + 5 * keys / 8 / WARP),
        smem_wavefronts=tiles * (3 * keys / 64 + config.BM * D / 32) + merged,
        l2_bytes=float(read + written),
        dram_bytes=float(floor.bytes - outputs + written),
        barriers=float(blocks),
        longest_cta=float(np.max(walked.tiles) * len(walked.tiles) / visited) if visited else 1.0,
        chain=float(-(-int(np.max(walked.tiles)) // (config.warps * config.splits))),
        stages=config.stages,
    )


def _merge_work(problem: Any, config: Config) -> Work:
    """A thread merges four elements of a row over its parts, and reads the two floats of each part by itself."""
    rows, DV = _parts(problem, config), problem.head_dim_v
    elements = rows * DV / WARP
    outputs = _output_bytes(problem)
    return Work(
        ctas=merge_blocks(problem, config),
        warps=config.warps,
        fma=elements * 2,
        mufu=elements / 2,
        alu=elements,
        l2_bytes=float(rows * (4 * DV + 8 * (DV // 4)) + outputs),
        dram_bytes=float(outputs),  # the few parts have just been written and are still in L2
        chain=1.0,
    )


def _items(problem: Any) -> int:
    """Rows of O."""
    return int(problem.batch * problem.heads * problem.seq_q)


def _parts(problem: Any, config: Config) -> int:
    """Partial rows of O that blocks pass to the merge."""
    return _items(problem) * config.splits


def _output_bytes(problem: Any) -> int:
    return _items(problem) * (ELEMENT * int(problem.head_dim_v) + 4)
