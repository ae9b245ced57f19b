"""The search space of kernels for few queries, and the sizes and launches that follow, for any set of attended keys."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tuner.arch import Arch
from tuner.spec import Block, DType, Launch, Plan, Space, Workspace, limits

from ..mma_sync.config import ELEMENT, ring_bytes
from ..mma_sync.implementation import MAX_GRID_YZ

WARP = 32
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


@dataclass(frozen=True, slots=True)
class Config:
    BM: int  # rows per block: queries times the query heads of a KV head
    BN: int  # keys per tile; one warp computes a tile
    warps: int
    stages: int  # slots per warp for tiles of K and V: one is read while the others are filled
    splits: int  # blocks that share the keys of a row tile
    q_in_registers: bool  # Q is kept in registers, and is not read from shared memory again for each tile


def refusal(problem: Any, _arch: Arch) -> str | None:
    if problem.dtype is DType.FP32:
        return "dtype fp32: mma.sync multiplies 16-bit operands"
    if max(problem.kv_heads, problem.batch) > MAX_GRID_YZ:
        return f"batch {problem.batch} or kv_heads {problem.kv_heads} exceeds {MAX_GRID_YZ}, a grid's limit in y and z"
    return None


def space(problem: Any, arch: Arch, element: int = ELEMENT) -> Space[Config]:
    """`element`: bytes of an element of K or V."""
    return Space(
        Config,
        choices={
            "BM": (16, 32),
            "BN": (16, 32, 48, 64),
            "warps": (1, 2, 4, 8),
            "stages": (2, 3, 4, 6, 8),
            "splits": SPLITS,
            "q_in_registers": (False, True),
        },
        constraints=limits(arch, block("flash_attention", problem, element)),
    )


def block(operator: str, problem: Any, element: int = ELEMENT) -> Block:
    """Limits of the kernel `operator`_split_keys. `element`: bytes of an element of K or V."""
    D, DV = problem.head_dim, problem.head_dim_v
    return Block(
        f"{operator}_split_keys",
        lambda c: WARP * c.warps,
        lambda c: smem_bytes(D, c, DV, element),
        lambda c: register_estimate(D, c, DV),
    )


def smem_bytes(D: int, c: Any, DV: int = 0, element: int = ELEMENT) -> Any:
    """Shared memory of a block, in bytes; `c` is a config or columns of many configs. DV: head_dim_v (0: D). `element`:
    bytes of an element of K or V; for one byte, lanes store four sums at once
    (paged_attention/split_keys/byte_tiles.cuh)."""
    DV = DV or D
    tiles = c.BM * ELEMENT * D + ring_bytes(element * D, element * DV, c)
    padded_stride = DV + 16 if element == 1 else 8 * (DV // 8 | 1)
    merged = (
        c.BM * 4 * (DV if DV % 32 == 16 else padded_stride)
    )  # rows of O of a warp in fp32, in the space of its tiles
    return c.warps * (np.maximum(tiles, merged) + 8 * c.BM)


def register_estimate(D: int, c: Any, DV: int = 0) -> Any:
    """Registers per thread: O, scores, Q if kept in registers, and 50 for everything else. DV: columns of O (0: D)."""
    return c.BM * ((DV or D) + c.BN + np.where(c.q_in_registers, D / 2, 0)) / WARP + 50


def plan(problem: Any, config: Config, operator: str) -> Plan:
    """The kernels are named `operator`_split_keys and `operator`_merge; the second runs only if there are splits."""
    D, DV, split = problem.head_dim, problem.head_dim_v, config.splits > 1
    smem, threads = int(smem_bytes(D, config, DV)), WARP * config.warps
    items = (problem.batch, problem.heads, problem.seq_q)
    spaces = (("part_o", (*items, DV)), ("part_rows", (*items, 2)))
    grid = (config.splits * row_tiles(problem, config), problem.kv_heads, problem.batch)
    attend = Launch(f"{operator}_split_keys", grid, threads, smem)
    merge = Launch(f"{operator}_merge", (merge_blocks(problem, config), 1, 1), threads, 0)
    return Plan(
        launches=(attend, merge) if split else (attend,),
        constants={"smem_bytes": smem},
        workspaces=tuple(
            Workspace(name, DType.FP32, (config.splits, *shape) if split else (1,)) for name, shape in spaces
        ),
    )


def row_tiles(problem: Any, config: Config) -> int:
    """Number of tiles of the rows that share a KV head."""
    return -(-problem.seq_q * (problem.heads // problem.kv_heads) // config.BM)


def merge_blocks(problem: Any, config: Any) -> int:
    """A thread merges 4 elements of a row of O."""
    parts = problem.batch * problem.heads * problem.seq_q * (problem.head_dim_v // 4)
    return -(-parts // (WARP * config.warps))


def default(problem: Any, arch: Arch, keys: int, min_splits: int = 1, element: int = ELEMENT) -> Config:
    """Four warps, and enough splits of `keys` keys to fill the SMs, at least `min_splits` as long as each warp has a
    tile.

    `element`: bytes of an element of K or V.
    """
    D, DV, rows = problem.head_dim, problem.head_dim_v, problem.seq_q * (problem.heads // problem.kv_heads)
    config = Config(16, 32 if DV <= 128 else 16, 4, 4, 1, False)
    if rows > 16 and DV <= 128:  # K and V are read half as often; wider tiles or values than these would spill
        config = replace(config, BM=32, BN=32 if DV <= 112 else 16)
    if 2 * smem_bytes(D, config, DV, element) > arch.smem_per_sm:  # two blocks per SM have priority over four stages
        config = replace(config, stages=2)
    narrower = config, replace(config, BN=16), replace(config, BM=16, BN=16)  # for keys much wider than values
    config = next(candidate for candidate in narrower if arch.fits_smem(smem_bytes(D, candidate, DV, element)))
    steps = -(-keys // (config.BN * config.warps))
    blocks = row_tiles(problem, config) * problem.kv_heads * problem.batch
    splits = filling(blocks, arch.sm_count, steps)
    return replace(config, splits=max(splits, max(n for n in SPLITS if n <= min(min_splits, steps) or n == 1)))


def filling(blocks: int, sms: int, max_splits: int) -> int:
    """The fewest splits, up to `max_splits`, that fill the waves of a grid at least 85 % as well as the best number of
    splits.

    FlashAttention chooses its number of splits the same way (num_splits_heuristic). A wave is one block per SM.
    """
    filled = {n: blocks * n / (sms * -(-blocks * n // sms)) for n in SPLITS if n <= max(max_splits, 1)}
    return next(n for n, share in filled.items() if share >= 0.85 * max(filled.values()))
