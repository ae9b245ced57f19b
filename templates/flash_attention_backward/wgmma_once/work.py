"""The work of wgmma_once on a problem, counted from its loops; exact counts equal the emulator's counters."""

import numpy as np

from tuner.arch import GPU
from tuner.spec import Array, Work

from ...flash_attention.wgmma.config import ELEMENT, round_up
from ..mma_sync.work import in_grid, rows_in_tiles, tiles, work_of_rows
from ..problem import Problem, key_rows, query_rows
from ..wgmma.config import ROWS, VALUES_BYTES, padded
from .config import BLOCK_KEYS, TILE_ROWS, WARPGROUPS, Config, part_bytes

_WARPS = 4  # warps per warpgroup
_WARP = 32
_PRODUCT = 16 * 8 * 16  # multiply-adds of an m16n8k16
_SECTION_BYTES = 24 << 20
_TURN_STEPS = 0.5  # assumed: delay between the sums of one block and of the next, in steps


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    """wgmma and the bytes of bulk copies are exact; the other instructions are the minimum that the algorithm
    requires."""
    rows = rows_in_tiles(problem, query_tiles(problem) * TILE_ROWS)
    keys = in_grid(problem, config, keys_work, problem.kv_heads, problem.seq_k, BLOCK_KEYS)
    return rows, keys, sums_work(problem)


def keys_work(problem: Problem, config: Config) -> Work:
    """dK, dV and parts of dQ: tiles of queries are streamed, back to the first that attends any key of the block."""
    D, all_heads = problem.head_dim, problem.batch * problem.kv_heads
    steps = key_steps(problem)
    passed = all_heads * int(np.sum(steps))
    warps = passed * WARPGROUPS * _WARPS
    lanes = 16 * TILE_ROWS / _WARP
    row = ELEMENT * int(padded(D, config.columns))
    block_keys = all_heads * len(steps) * BLOCK_KEYS
    loaded = 2 * row * block_keys + passed * TILE_ROWS * (2 * row + VALUES_BYTES)
    stored = 2 * row * all_heads * round_up(problem.seq_k, ROWS)
    return Work(
        ctas=all_heads * len(steps),
        warps=_WARPS * (WARPGROUPS + 1),
        fma=warps * lanes * 3,
        mufu=warps * lanes,
        alu=warps * (lanes + 80),
        smem_wavefronts=passed * _shared_bytes(D, config.held) / 128,
        l2_bytes=float(loaded + stored + passed * part_bytes(D)),
        dram_bytes=float(2 * _query_bytes(problem) + 4 * _key_bytes(problem) + _sum_bytes(problem)),
        barriers=float(all_heads * len(steps)),
        longest_cta=_critical_steps(steps) / max(float(np.mean(steps)), 1e-9),
        chain=float(np.max(steps)),
        stages=config.stages,
        wgmma=passed * BLOCK_KEYS * TILE_ROWS * (2 * round_up(D, 16) + 3 * D) / _PRODUCT,
    )


def sums_work(problem: Problem) -> Work:
    """The sums of dQ, scaled and rounded."""
    threads = problem.batch * problem.heads * query_tiles(problem) * TILE_ROWS // 2 * problem.head_dim // 8
    moved = float(_sum_bytes(problem) + _query_bytes(problem))
    return work_of_rows(-(-threads // _WARP), moved, moved)


def query_tiles(problem: Problem) -> int:
    """Tiles of queries per head."""
    return tiles(problem, problem.seq_q, TILE_ROWS)


def key_steps(problem: Problem) -> Array:
    """Tiles of queries, of all heads that share them, that stream through each block of keys."""
    first_keys = np.arange(0, problem.seq_k, BLOCK_KEYS)
    reach = problem.seq_k - problem.seq_q
    skipped = np.maximum(first_keys - reach, 0) // TILE_ROWS if problem.causal else np.zeros_like(first_keys)
    steps: Array = problem.heads // problem.kv_heads * np.maximum(query_tiles(problem) - skipped, 0)
    return steps


def sections(problem: Problem) -> list[int]:
    """Heads of K and V whose blocks start together, section by section: sections of equal size, for which Q, dO and the
    sums of dQ fit in half of L2 (`Owned` of the template)."""
    all_heads, group = problem.batch * problem.kv_heads, problem.heads // problem.kv_heads
    fit = min(all_heads, max(1, _SECTION_BYTES // (8 * problem.head_dim) // group // problem.seq_q))
    count = (2 * all_heads + fit) // (2 * fit)
    return [all_heads // count + (i < all_heads % count) for i in range(count)]


def _critical_steps(steps: Array) -> float:
    """Steps until the last block of a head is done, if all start together and each waits for the previous one."""
    return float(np.max(steps + _TURN_STEPS * np.arange(len(steps))))


def _shared_bytes(D: int, held: int) -> int:
    """Bytes that a tile moves in shared memory: operands of wgmma, dS, and a part of dQ, which is written and read."""
    scores = WARPGROUPS * ((2 - held) * ROWS + 2 * TILE_ROWS) * round_up(D, 16)
    sums = 2 * WARPGROUPS * TILE_ROWS * D
    part_elements = TILE_ROWS * BLOCK_KEYS + BLOCK_KEYS * D
    return ELEMENT * (scores + sums + part_elements + TILE_ROWS * BLOCK_KEYS) + 2 * part_bytes(D)


def _query_bytes(problem: Problem) -> int:
    """Bytes of one of dO, Q, O, dQ."""
    return ELEMENT * problem.head_dim * query_rows(problem)


def _key_bytes(problem: Problem) -> int:
    """Bytes of one of K, V, dK, dV."""
    return ELEMENT * problem.head_dim * key_rows(problem)


def _sum_bytes(problem: Problem) -> int:
    """Bytes of dQ in fp32."""
    return part_bytes(problem.head_dim) * problem.batch * problem.heads * query_tiles(problem)
