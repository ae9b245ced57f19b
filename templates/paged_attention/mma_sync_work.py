"""What mma_sync does where every table is full: the emulator's counters agree with the exact ones."""

from dataclasses import dataclass, replace
from math import gcd

import numpy as np

from tuner.operator import Work

from ..flash_attention.mma_sync_work import WARP, Visits, with_softcap, work_of_visits
from ..streaming_attention.visits import Keys, Walks
from .mma_sync_config import Config
from .operator import cost
from .problem import Problem, unpacked

_INT = 4  # bytes


@dataclass(frozen=True, slots=True)
class Rows:
    """A problem as work_of_visits reads it, with rows in the place of queries."""

    batch: int
    heads: int
    seq_q: int
    head_dim: int

    @property
    def head_dim_v(self) -> int:
        return self.head_dim


def work(problem: Problem, config: Config) -> Work:
    """Work of the launch; mma, bytes and barriers are exact.

    Of packed queries as if each sequence had equally many, in a grid that has room for any; what threads read of
    cu_seqlens_q is not counted.
    """
    equal = unpacked(problem)
    rows = Rows(equal.batch, equal.kv_heads, equal.seq_q * (equal.heads // equal.kv_heads), equal.head_dim)
    found = visits(equal, config)
    attend = work_of_visits(rows, config, found, cost(problem))
    looked_up = equal.batch * equal.kv_heads * int(np.sum(found.blocks)) * keys_a_lane(equal.head_dim, config)
    read = _INT * config.warps * WARP * (looked_up + attend.ctas)  # and the sequence's length, by each thread
    ctas = row_tiles(problem, config) * problem.kv_heads
    longest = attend.longest_cta * ctas / attend.ctas
    attend = replace(attend, ctas=ctas, longest_cta=longest, l2_bytes=attend.l2_bytes + read)
    return with_softcap(problem.head_dim, attend) if problem.use_softcap else attend


def row_tiles(problem: Problem, config: Config) -> int:
    """Of all sequences; where queries are packed, the most that there may be."""
    group, N = problem.heads // problem.kv_heads, problem.sequences
    most = N * -(-problem.longest * group // config.BM)
    return min(most, (problem.seq_q * group + N * (config.BM - 1)) // config.BM) if problem.use_cu_seqlens_q else most


def visits(problem: Problem, config: Config) -> Visits:
    """Of one KV head of one sequence."""
    group = problem.heads // problem.kv_heads
    blocks, warps = -(-problem.seq_q * group // config.BM), config.BM // config.rows_per_warp
    walks = Walks(_keys(problem, config.BM, blocks), config.BN)
    whole, narrow = walks.spans(_keys(problem, config.rows_per_warp, blocks * warps), config.narrow)
    steps = (whole * config.BN + narrow * config.narrow) // 16
    return Visits(walks.tiles, whole + narrow, steps, int(np.sum(walks.keys_read)))


def _keys(problem: Problem, rows: int, tiles: int) -> Keys:
    return Keys.of(problem, rows, tiles, problem.heads // problem.kv_heads)  # type: ignore[arg-type]  # reads sizes


def keys_a_lane(D: int, config: Config) -> int:
    """Keys of a tile that each lane looks up in the table: `kKeys` of pages.cuh."""
    chunks = D // 8
    widest = WARP * config.warps // chunks
    regular = (gcd(chunks, 8) if config.swizzle else 1) > 1 and widest >= 8
    a_pass = widest // 8 * 8 if regular else widest
    of_warp = min((31 + 2 * chunks - gcd(chunks, 32)) // chunks, a_pass)
    last = (config.BN - 1) // a_pass
    return -(-(last * of_warp + min(of_warp, config.BN - last * a_pass)) // WARP)
