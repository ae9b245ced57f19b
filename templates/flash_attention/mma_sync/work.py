"""The work of mma_sync on a problem, counted from its loops; exact counts equal the emulator's counters."""

from dataclasses import astuple, dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from tuner.arch import GPU
from tuner.spec import Array, Cost, Work

from ..operator import cost
from ..problem import Problem, first_keys, unpacked, visible_keys
from .config import ELEMENT, Config, q_in_ring, row_bytes

WARP = 32
CHUNK = 16  # bytes of a chunk of a row


@dataclass(frozen=True, slots=True)
class Visits:
    """Key tiles visited for one head, by blocks and by groups of warps that share rows."""

    blocks: Array  # tiles that each block visits, [blocks]
    groups: int  # summed over all groups
    steps: int  # steps of 16 keys in the tiles that the groups do not skip
    rows_of_keys: int  # rows of K read from global memory, summed over blocks

    @classmethod
    def of(cls, problem: Problem, config: Config) -> "Visits":
        return cls.of_tiles(problem, config.BM, config.rows_per_warp, config.BN)

    @classmethod
    def of_tiles(cls, problem: Problem, BM: int, rows: int, BN: int) -> "Visits":
        """Visits of blocks of BM queries, in groups of `rows`, to tiles of BN keys."""
        starts, group_starts = (np.arange(0, problem.seq_q, step) for step in (BM, rows))
        begins = first_keys(problem)[starts]
        blocks = -(-np.maximum(_end_of_keys(problem, starts, BM) - begins, 0) // BN)
        block_begins = begins[group_starts // BM]  # first key of the tiles that the block of each group visits
        first = first_keys(problem)[group_starts] - block_begins
        end = _end_of_keys(problem, group_starts, rows) - block_begins
        groups = np.where(first < end, -(-end // BN) - first // BN, 0)
        read = np.minimum(blocks * BN, problem.seq_k - begins)
        tiles = int(np.sum(groups))
        return cls(blocks, tiles, tiles * BN // 16, int(np.sum(read)))


@dataclass(frozen=True, slots=True)
class Rows:
    """The fields of a problem that work_of_visits reads, with rows in place of queries: packed heads count as one."""

    batch: int
    heads: int
    seq_q: int
    head_dim: int

    @property
    def head_dim_v(self) -> int:
        """Columns of V: always head_dim."""
        return self.head_dim


def _end_of_keys(problem: Problem, starts: Array, rows: int) -> Array:
    """End of the keys that any of `rows` rows from each start attends: that of the last row."""
    last = np.minimum(starts + rows, problem.seq_q) - 1
    return visible_keys(problem)[last]


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    """The work of packed sequences is counted as if their lengths were equal, in a grid sized for the longest. Reads of
    cu_seqlens are not counted."""
    equal = unpacked(problem)
    launch_work = work_of_visits(equal, config, Visits.of(equal, config), cost(problem))
    ctas = problem.sequences * problem.heads * -(-problem.longest // config.BM)
    launch_work = replace(launch_work, ctas=ctas, longest_cta=launch_work.longest_cta * ctas / launch_work.ctas)
    return (with_softcap(problem.head_dim, launch_work, problem.head_dim_v) if problem.use_softcap else launch_work,)


def with_softcap(D: int, work: Work, DV: int = 0) -> Work:
    """Adds five FMA and 1.5 MUFU operations per score; one score takes D + DV (0: D) of the 2048 multiply-adds of an
    mma."""
    scores = work.mma * 2048 / ((D + (DV or D)) * WARP)
    return replace(work, fma=work.fma + 5 * scores, mufu=work.mufu + 1.5 * scores)


def work_of_visits(problem: Any, config: Any, visits: Visits, floor: Cost) -> Work:
    """Work of all heads of an attention that visits tiles as `visits` describes; `floor` is the cost of the problem.

    mma, bytes, barriers and the wavefronts of ldmatrix and cp.async are exact; FMA and integer instructions are the
    minimum that the algorithm requires, with address arithmetic estimated.
    """
    heads, blocks, tiles = problem.batch * problem.heads, len(visits.blocks), int(np.sum(visits.blocks))
    widths = problem.head_dim, problem.head_dim_v
    groups = _group_tiles(*widths, config, visits)
    return Work(
        ctas=heads * blocks,
        warps=config.warps,
        mma=heads * groups.mma,
        fma=heads * groups.fma,
        mufu=heads * groups.mufu,
        alu=heads * (groups.alu + tiles * sum(_copy_instructions(width, config) for width in widths)),
        smem_wavefronts=heads * (groups.ldmatrix + groups.stores + _wavefronts(problem, config, visits)),
        l2_bytes=float(heads * global_bytes(problem, visits)),
        dram_bytes=float(floor.bytes),
        barriers=heads * (2 * tiles + blocks * _barriers_outside_the_loop(*widths, config)),
        longest_cta=float(np.max(visits.blocks) * blocks / tiles) if tiles else 1.0,
        chain=float(np.max(visits.blocks, initial=0)),
        stages=config.stages,
    )


@dataclass(frozen=True, slots=True)
class GroupTile:
    """Warp instructions of the warps that share rows, for one tile of keys or for many."""

    mma: float
    fma: float
    mufu: float
    alu: float
    ldmatrix: float  # one wavefront per 8x8 matrix
    stores: float  # wavefronts of stores of P and of row maxima, if warps share rows


def _group_tiles(D: int, DV: int, config: Any, visits: Visits) -> GroupTile:
    """Instructions of a head: the cost of a tile without keys for all tiles, plus the cost of each step of keys."""
    bare, full = (astuple(_group_tile(D, DV, replace(config, BN=keys))) for keys in (0, config.BN))
    steps = config.BN // 16
    return GroupTile(*(visits.groups * b + visits.steps * (w - b) / steps for b, w in zip(bare, full, strict=True)))


def _group_tile(D: int, DV: int, config: Any) -> GroupTile:
    m, parts, n = config.rows_per_warp // 16, config.d_warps, config.BN // 8
    scores = m * 16 * config.BN / WARP
    query_steps = D // 16 + (D % 16) / 16  # a step of 8 columns is half an mma
    row_values = 2 * m * parts  # rows of a lane
    shared = parts > 1
    return GroupTile(
        mma=m * n * query_steps + m * (n / 2) * (DV / 8),
        # scale, maximum and sum of each score; rescaling of O, which is too rare to count when lazy
        fma=3 * scores + 6 * row_values + (0 if config.lazy_rescale else m * 16 * DV / WARP),
        mufu=scores + row_values,
        # one conversion per two scores; shuffles; one XOR or addition per step of D
        alu=scores / 2 + 6 * row_values + parts * 2 * (D / 16 + n / 2),
        ldmatrix=n * (D + DV) / 8 + (0 if config.q_in_registers else parts * m * D / 4) + shared * parts * m * 2 * n,
        stores=shared * (m * 2 * n + row_values * parts),
    )


def _wavefronts(problem: Any, config: Any, visits: Visits) -> float:
    """Shared-memory wavefronts for one head, except those of the group tiles."""
    D, DV = problem.head_dim, problem.head_dim_v
    blocks, groups = len(visits.blocks), -(-problem.seq_q // config.rows_per_warp)
    m, threads = config.rows_per_warp // 16, WARP * config.warps
    tile = sum(copy_wavefronts(width, config.swizzle, config.BN, threads) for width in (D, DV))
    copies = int(np.sum(visits.blocks)) * tile
    query = blocks * copy_wavefronts(D, config.swizzle, config.BM, threads)
    query += groups * config.d_warps * m * D / 4 * config.q_in_registers
    epilogue = groups * m * 2 * (DV / 8) * 2  # O is stored in fragments of row pairs and loaded in 16-byte chunks
    return copies + query + epilogue


@cache
def copy_wavefronts(D: int, swizzle: bool, rows: int, threads: int) -> int:
    """Shared-memory wavefronts of writing a tile with cp.async: per 8 lanes, the largest number that share a 16-byte
    column."""
    chunks = D // 8
    rows_per_pass = threads // chunks
    if swizzle and chunks % 2 == 0 and rows_per_pass >= 8:
        rows_per_pass = rows_per_pass // 8 * 8
    thread = np.arange(threads)
    row = thread // chunks + np.arange(-(-rows // rows_per_pass))[:, None] * rows_per_pass  # [passes, threads]
    active = (thread // chunks < rows_per_pass) & (row < rows)
    column = chunk_offset(D, swizzle, row, thread % chunks) // CHUNK % 8
    hits = (column[..., None] == np.arange(8)) & active[..., None]
    return int(np.sum(np.max(np.sum(hits.reshape(-1, 8, 8), axis=1), axis=1)))


def chunk_offset(D: int, swizzle: bool, row: Array, chunk: Array) -> Array:
    """Byte offset of a chunk in a tile: `Rows::offset` of rows.cuh."""
    group = int(np.gcd(D // 8, 8)) if swizzle else 1
    return row * row_bytes(D, swizzle) + CHUNK * (chunk ^ row // (8 // group) % group)


def _copy_instructions(D: int, config: Any) -> float:
    """Integer instructions that a block's warps need to copy one tile: address, bound and pointer of each chunk."""
    return 5 * config.BN * (D // 8) / WARP + 12 * config.warps


def global_bytes(problem: Any, visits: Visits, element: int = ELEMENT) -> int:
    """Bytes read and written by the blocks of one head: K and V are read again for each row tile."""
    row_pair_bytes = element * (problem.head_dim + problem.head_dim_v)  # bytes of a row of K and of V, or of Q and of O
    return (visits.rows_of_keys + problem.seq_q) * row_pair_bytes + 4 * problem.seq_q


def _barriers_outside_the_loop(D: int, DV: int, config: Any) -> int:
    """One barrier before O overwrites Q; Q on its way to registers needs one more, or two if staged in the ring."""
    return 1 + int(config.q_in_registers) + int(q_in_ring(D, config, DV))
