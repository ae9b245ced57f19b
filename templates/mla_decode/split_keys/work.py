"""The work of split_keys of mla_decode if every table is full; exact counts equal the emulator's counters."""

from dataclasses import dataclass

import numpy as np

from tuner.spec import Array, Work

from ...flash_attention.mma_sync.config import ELEMENT
from ...flash_attention.split_keys.config import WARP, merge_blocks
from ..operator import cost
from ..problem import Problem, attended_rows
from .config import Config, row_tiles

_INT = 4  # bytes of one int32


@dataclass(frozen=True, slots=True)
class Visits:
    """The tiles that the blocks of one sequence visit; its rows are split into `parts` shares of at most `most`
    tiles."""

    parts: int
    most: int
    steps: int  # tiles that the last query attends
    keys: Array  # [row tiles]: cache rows that the last query of each tile attends

    @classmethod
    def of(cls, problem: Problem, config: Config) -> "Visits":
        steps = -(-problem.seq_k // config.BN)
        most = max(-(-steps // config.splits), 1)
        end = (np.arange(row_tiles(problem, config)) + 1) * config.BM
        last = (np.minimum(end, problem.seq_q * problem.heads) - 1) // problem.heads
        return cls(max(-(-steps // most), 1), most, steps, attended_rows(problem)[last])

    def tiles(self, BN: int) -> Array:
        return -(-self.keys // BN)


def work(problem: Problem, config: Config) -> tuple[Work, ...]:
    """Work of each launch; mma, bytes and barriers are exact."""
    visits = Visits.of(problem, config)
    attend = _attend(problem, config, visits)
    return (attend, _merge(problem, config, visits)) if config.splits > 1 else (attend,)


def _attend(problem: Problem, config: Config, visits: Visits) -> Work:
    D, DV, BM, BN = problem.head_dim, problem.head_dim_v, config.BM, config.BN
    row_tile_tiles = visits.tiles(BN)
    tiles, rows = problem.batch * int(np.sum(row_tile_tiles)), _rows(problem)
    blocks = config.splits * problem.batch * len(row_tile_tiles)
    active = visits.parts * problem.batch * len(row_tile_tiles)
    groups = BM * config.parts // config.warps // 16  # mma tiles of 16 rows per warp
    scored, weighed = BM * BN * D / 16**3 * 2, BM * BN * DV / 16**3 * 2  # mma per tile
    keys = 4 * D / 16 * config.warps * (groups + BN / config.parts / 16)  # wavefronts of Q and of K
    values = 4 * BN / 16 * config.warps * (groups + DV / config.parts / 16)  # wavefronts of P and of V
    exponentials = BM * BN / WARP
    written = visits.parts * rows * (4 * DV + 8) if visits.parts > 1 else rows * (ELEMENT * DV + 4)
    shares = 2 * _INT * problem.batch if config.splits > 1 else 0
    read = ELEMENT * D * (problem.batch * int(np.sum(visits.keys)) + rows * visits.parts)
    looked_up = _INT * tiles * _lookups(config)
    floor, named = cost(problem), _named_barriers(config)
    return Work(
        ctas=blocks,
        warps=config.warps,
        mma=tiles * (scored + weighed),
        fma=tiles * 3 * exponentials,
        mufu=tiles * exponentials,
        alu=tiles * (exponentials + 3 * BN * D / 8 / WARP),
        smem_wavefronts=tiles * (keys + values + BN * D / 64 + BM * BN / 64),
        l2_bytes=float(read + looked_up + written + shares + _INT * _lengths_read(problem, config, visits, active)),
        dram_bytes=float(floor.bytes - rows * (ELEMENT * DV + 4) + written),
        barriers=float(tiles * (1 + 2 * named) + active * (1 + named * (2 if visits.parts == 1 else 1))),
        longest_cta=visits.most * blocks * int(np.max(row_tile_tiles) > 0) / max(tiles, 1) or 1.0,
        chain=float(visits.most),
        stages=config.stages,
    )


def _rows(problem: Problem) -> int:
    """Rows of O."""
    return problem.batch * problem.heads * problem.seq_q


def _lookups(config: Config) -> int:
    """Table entries that the threads of a block read for a tile: 8 threads copy a row."""
    return 8 * config.BN


def _named_barriers(config: Config) -> int:
    """Groups of warps with a named barrier."""
    return config.warps // config.parts if config.parts > 1 else 0


def _lengths_read(problem: Problem, config: Config, visits: Visits, active: int) -> int:
    """Entries of cache_seqlens that the lanes of all blocks read: `share_of` of shares.cuh if all lengths are equal."""
    batch, blocks = problem.batch, config.splits * problem.batch
    single_reads = active * config.warps * WARP
    if config.splits == 1:
        return single_reads
    a_share = config.warps * row_tiles(problem, config)  # warps that search for a share
    bound = -(-batch * visits.steps // (blocks - batch))
    with_bound = visits.most < max(min(bound, max(visits.steps, 1)), visits.most)
    before = [min(WARP * (b // WARP + 1), batch) for b in range(batch)]
    lookups = visits.parts * sum(before) + (blocks - visits.parts * batch) * batch
    return single_reads + a_share * ((1 + with_bound) * batch * blocks + lookups)


def _merge(problem: Problem, config: Config, visits: Visits) -> Work:
    """A thread merges four elements of a row over its parts, and reads the range of parts and their sums by itself."""
    rows, vectors = _rows(problem), problem.head_dim_v // 4
    parts = visits.parts if visits.parts > 1 else 0  # with one part, the outputs are already stored
    elements = rows * parts * problem.head_dim_v / WARP
    outputs = rows * (ELEMENT * problem.head_dim_v + 4) if parts else 0
    looked_up = 2 * _INT * rows * vectors
    return Work(
        ctas=merge_blocks(problem, config),
        warps=config.warps,
        fma=elements * 2,
        mufu=elements / 2,
        alu=elements + rows * vectors / WARP,
        l2_bytes=float(rows * parts * (4 * problem.head_dim_v + 8 * vectors) + outputs + looked_up),
        dram_bytes=float(outputs),  # the few parts have just been written and are still in L2
        chain=1.0,
    )
