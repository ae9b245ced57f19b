"""The work of mma_sync if every table is full; exact counts equal the emulator's counters."""

from dataclasses import replace
from math import gcd
from typing import Any

import numpy as np

from tuner.arch import Arch
from tuner.spec import Work

from ...flash_attention.mma_sync.config import ELEMENT
from ...flash_attention.mma_sync.work import WARP, Rows, Visits, with_softcap, work_of_visits
from ...flash_attention.split_keys.config import merge_blocks
from ...flash_attention.split_keys.work import Walked, work_of_walks
from ...streaming_attention.visits import Keys, Walks
from ..operator import cost
from ..problem import Problem, unpacked
from ..split_keys.work import Shared, lengths_read, merge_work, with_widening
from .config import Config

_INT = 4  # bytes of one int32


def work(problem: Problem, config: Config, arch: Arch) -> tuple[Work, ...]:
    """Work of each launch; mma, bytes and barriers are exact.

    Packed queries are counted as if each sequence had the same number, in a grid for any numbers; reads of cu_seqlens_q
    are not counted.
    """
    equal = unpacked(problem)
    visited, cut = visits(equal, config), _key_split(equal, config)
    attend = _attend(equal, config, visited, cut)
    if problem.eight_bits:  # each block widens its tiles once
        tiles = equal.batch * equal.kv_heads * int(np.sum(visited.blocks))
        attend = with_widening(problem, arch, attend, tiles * config.BN * 2 * problem.head_dim / (4 * WARP))
    attend = with_softcap(problem.head_dim, attend) if problem.use_softcap else attend
    ctas = blocks(problem, config)
    attend = replace(attend, ctas=ctas, longest_cta=attend.longest_cta * ctas / attend.ctas)
    if config.splits == 1:
        return (attend,)
    parted: Any = replace(config, splits=cut.parts)  # with the fields of its config that split_keys reads
    _, *merge = work_of_walks(equal, parted, Walked(visited.blocks, visited.rows_of_keys), cost(problem))
    merged = merge_work(equal, config, merge[0] if merge else None)
    return attend, replace(merged, ctas=merge_blocks(problem, parted))


def blocks(problem: Problem, config: Config) -> int:
    """Blocks for the shares of the row tiles of all KV heads; with packed queries, for the maximum possible number of
    tiles."""
    group, N = problem.heads // problem.kv_heads, problem.sequences
    max_tiles = N * -(-problem.longest * group // config.BM)
    if problem.use_cu_seqlens_q:
        max_tiles = min(max_tiles, (problem.seq_q * group + N * (config.BM - 1)) // config.BM)
    return max_tiles * config.splits * problem.kv_heads


def _attend(problem: Problem, config: Config, visited: Visits, cut: Shared) -> Work:
    """Work if each sequence has the same number of queries: each part of its keys loads Q and has barriers and outputs
    of its own."""
    D, heads = problem.head_dim, problem.batch * problem.kv_heads
    rows = Rows(problem.batch, problem.kv_heads, problem.seq_q * (problem.heads // problem.kv_heads), D)
    unsplit = work_of_visits(rows, config, visited, cost(problem))
    narrower = (
        heads * visited.rows_of_keys * 2 * D * (ELEMENT - problem.kv_cache_dtype.itemsize)
    )  # bytes saved compared with 16 bits
    items, tiles = heads * rows.seq_q, heads * int(np.sum(visited.blocks))
    results = cut.parts * (4 * D + 8) if cut.parts > 1 else ELEMENT * D + 4
    written = items * (results - ELEMENT * D - 4)  # bytes in excess of the outputs
    active, longest = unsplit.ctas * cut.parts, min(cut.most, unsplit.chain)
    lengths = lengths_read(problem, config, cut, active) if config.splits > 1 else active * config.warps * WARP
    integers = lengths + tiles * config.warps * WARP * keys_a_lane(problem, config)
    integers += 2 * problem.batch * (config.splits > 1)
    integers += 2 * active * config.warps * WARP * (problem.descales > 0)
    return replace(
        unsplit,
        ctas=blocks(problem, config),
        barriers=2 * tiles + cut.parts * (unsplit.barriers - 2 * tiles),
        l2_bytes=unsplit.l2_bytes - narrower + written + items * (cut.parts - 1) * ELEMENT * D + _INT * integers,
        dram_bytes=unsplit.dram_bytes + written,
        longest_cta=max(longest * blocks(problem, config) / max(tiles, 1), 1.0),
        chain=float(longest),
    )


def _key_split(problem: Problem, config: Config) -> Shared:
    """How the keys that all rows of a sequence attend are split."""
    rows = problem.seq_q * (problem.heads // problem.kv_heads)
    tiles = int(Walks(_keys(problem, rows, 1), config.BN).tiles[0])
    return Shared.of(tiles, replace(config, warps=1))  # a step is a tile


def visits(problem: Problem, config: Config) -> Visits:
    """Visits of one KV head of one sequence."""
    group = problem.heads // problem.kv_heads
    blocks, warps = -(-problem.seq_q * group // config.BM), config.BM // config.rows_per_warp
    walks = Walks(_keys(problem, config.BM, blocks), config.BN)
    full, narrow = walks.spans(_keys(problem, config.rows_per_warp, blocks * warps), config.narrow)
    steps = (full * config.BN + narrow * config.narrow) // 16
    return Visits(walks.tiles, full + narrow, steps, int(np.sum(walks.keys_read)))


def _keys(problem: Problem, rows: int, tiles: int) -> Keys:
    return Keys.of(problem, rows, tiles, problem.heads // problem.kv_heads)  # type: ignore[arg-type]  # only sizes are read


def keys_a_lane(problem: Problem, config: Config) -> int:
    """Keys of a tile that each lane looks up in the table: `kKeys` of pages.cuh."""
    chunks = problem.head_dim * problem.kv_cache_dtype.itemsize // 16
    widest = WARP * config.warps // chunks
    regular = (gcd(chunks, 8) if config.swizzle or problem.eight_bits else 1) > 1 and widest >= 8
    pass_rows = widest // 8 * 8 if regular else widest
    warp_rows = min((31 + 2 * chunks - gcd(chunks, 32)) // chunks, pass_rows)
    last = (config.BN - 1) // pass_rows
    return -(-(last * warp_rows + min(warp_rows, config.BN - last * pass_rows)) // WARP)
