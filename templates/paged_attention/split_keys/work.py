"""The work of split_keys if every table is full; exact counts equal the emulator's counters."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tuner.arch import Arch
from tuner.spec import DType, Work

from ...flash_attention.split_keys import config as shared
from ...flash_attention.split_keys.config import WARP, Config
from ...flash_attention.split_keys.work import Walked, work_of_walks
from ...streaming_attention.visits import Keys, Walks
from ..operator import cost
from ..problem import Problem

_INT = 4  # bytes of one int32


@dataclass(frozen=True, slots=True)
class Shared:
    """How full sequences are split: `share_of` of shares.cuh if all have the same number of steps."""

    steps: int  # steps of a block, one tile per warp each
    most: int  # steps per part
    parts: int  # parts per sequence

    @classmethod
    def of(cls, tiles: int, config: Any) -> "Shared":
        steps = -(-tiles // config.warps)
        most = max(-(-steps // config.splits), 1)
        return cls(steps, most, max(-(-steps // most), 1))


def work(problem: Problem, config: Config) -> tuple[Work, ...]:
    """Work of each launch; mma, bytes and barriers are exact."""
    walks = _walked_tiles(problem, config, config.BM, shared.row_tiles(problem, config))
    walked = Walked(walks.tiles, int(np.sum(walks.keys_read)))
    cut = Shared.of(_most_tiles(problem, config), config)
    attend, *merge = work_of_walks(
        problem, replace(config, splits=cut.parts), walked, cost(problem), problem.kv_cache_dtype.itemsize
    )
    blocks = config.splits * problem.batch * problem.kv_heads * len(walked.tiles)
    looked_up = problem.batch * problem.kv_heads * int(np.sum(walked.tiles)) * WARP * -(-config.BN // WARP)
    shares = 2 * problem.batch if config.splits > 1 else 0
    scales = 2 * attend.ctas * config.warps * WARP if problem.descales else 0  # each thread reads those of its sequence
    attend = replace(
        attend,
        ctas=blocks,
        longest_cta=attend.longest_cta * blocks / attend.ctas,
        chain=float(cut.most),
        l2_bytes=attend.l2_bytes
        + _INT * (looked_up + lengths_read(problem, config, cut, attend.ctas) + shares + scales),
    )
    return (attend, merge_work(problem, config, merge[0] if merge else None)) if config.splits > 1 else (attend,)


def with_widening(problem: Problem, arch: Arch, attend: Work, whole: float, apart: float = 0.0) -> Work:
    """Adds the conversions of fp8.cuh for registers of four 8-bit elements: `whole` become pairs of the dtype of q, and
    `apart` become pairs of fp16 that are two bytes apart."""
    through_fp32 = whole if problem.dtype is DType.BF16 else 0.0
    direct = arch.compute_capability >= 89
    fma, alu = (0.0, 2 * whole + 3 * apart) if direct else (6 * (whole + apart), 6 * (whole + apart))
    return replace(attend, fma=attend.fma + fma + 4 * through_fp32, alu=attend.alu + alu + 2 * through_fp32)


def _walked_tiles(problem: Problem, config: Config, rows: int, tiles: int) -> Walks:
    keys = Keys.of(problem, rows, tiles, problem.heads // problem.kv_heads)  # type: ignore[arg-type]  # only sizes are read
    return Walks(keys, config.BN)


def _most_tiles(problem: Problem, config: Config) -> int:
    """Tiles of all rows of a sequence together, which determine the split."""
    rows = problem.seq_q * problem.heads // problem.kv_heads
    return int(_walked_tiles(problem, config, rows, 1).tiles[0])


def lengths_read(problem: Problem, config: Any, cut: Shared, active: int) -> int:
    """Entries of cache_seqlens that the lanes of all blocks read."""
    single_reads = active * config.warps * WARP
    a_sequence = config.warps * problem.kv_heads * shared.row_tiles(problem, config)  # warps of one part of a sequence
    if config.splits == 1:
        return single_reads + a_sequence * problem.batch * WARP
    blocks = config.splits * problem.batch
    bound = -(-problem.batch * cut.steps // (blocks - problem.batch))
    with_bound = cut.most < max(min(bound, max(cut.steps, 1)), cut.most)
    before = [min(WARP * (b // WARP + 1), problem.batch) for b in range(problem.batch)]
    lookups = cut.parts * sum(before) + (blocks - cut.parts * problem.batch) * problem.batch
    return single_reads + a_sequence * ((1 + with_bound) * problem.batch * blocks + lookups)


def merge_work(problem: Problem, config: Any, merge: Work | None) -> Work:
    """Each thread reads which parts its sequence has, and nothing else if there is only one."""
    blocks, items = shared.merge_blocks(problem, config), problem.batch * problem.heads * problem.seq_q
    read = 2.0 * _INT * items * (problem.head_dim // 4)
    if merge is not None:
        return replace(merge, l2_bytes=merge.l2_bytes + read)
    return Work(
        ctas=blocks,
        warps=config.warps,
        fma=0.0,
        alu=read / (2 * _INT) / WARP,
        l2_bytes=read,
        dram_bytes=0.0,
        chain=1.0,
    )
