"""What kernels for few queries choose, and the sizes and launches that follow, whichever keys they attend."""

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
    BN: int  # keys per tile; each is one warp's
    warps: int
    stages: int  # slots of a warp for tiles of K and V: one is read while the others are filled
    splits: int  # blocks that share the keys of a tile of rows
    q_in_registers: bool  # or read again from shared memory for each tile


def refusal(problem: Any, _arch: Arch) -> str | None:
    if problem.dtype is DType.FP32:
        return "dtype fp32: mma.sync multiplies 16-bit operands"
    if max(problem.kv_heads, problem.batch) > MAX_GRID_YZ:
        return f"batch {problem.batch} or kv_heads {problem.kv_heads} exceeds {MAX_GRID_YZ}, a grid's limit in y and z"
    return None


def space(problem: Any, arch: Arch, element: int = ELEMENT) -> Space[Config]:
    """`element`: bytes of one of K or V."""
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
    """Of `operator`_split_keys. `element`: bytes of one of K or V."""
    D, DV = problem.head_dim, problem.head_dim_v
    return Block(
        f"{operator}_split_keys",
        lambda c: WARP * c.warps,
        lambda c: smem_bytes(D, c, DV, element),
        lambda c: register_estimate(D, c, DV),
    )


def smem_bytes(D: int, c: Any, DV: int = 0, element: int = ELEMENT) -> Any:
    """Shared memory of a block, in bytes; `c` is a config or columns of many. DV: of values (0: D). `element`: bytes of
    one of K or V; of one byte, lanes store four sums at once (paged_attention/split_keys/byte_tiles.cuh)."""
    DV = DV or D
    tiles = c.BM * ELEMENT * D + ring_bytes(element * D, element * DV, c)
    apart = DV + 16 if element == 1 else 8 * (DV // 8 | 1)
    merged = c.BM * 4 * (DV if DV % 32 == 16 else apart)  # a warp's rows of O in fp32, in its tiles' place
    return c.warps * (np.maximum(tiles, merged) + 8 * c.BM)


def register_estimate(D: int, c: Any, DV: int = 0) -> Any:
    """Registers a thread: O, scores, Q where it stays, and 50 for what no config does without. DV: of O (0: D)."""
    return c.BM * ((DV or D) + c.BN + np.where(c.q_in_registers, D / 2, 0)) / WARP + 50


def plan(problem: Any, config: Config, operator: str) -> Plan:
    """The kernels are named `operator`_split_keys and `operator`_merge; the second runs where there are splits."""
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
    """Of the rows that share a KV head."""
    return -(-problem.seq_q * (problem.heads // problem.kv_heads) // config.BM)


def merge_blocks(problem: Any, config: Any) -> int:
    """A thread merges 4 elements of a row of O."""
    parts = problem.batch * problem.heads * problem.seq_q * (problem.head_dim_v // 4)
    return -(-parts // (WARP * config.warps))


def default(problem: Any, arch: Arch, keys: int, least: int = 1, element: int = ELEMENT) -> Config:
    """Four warps, and the splits of `keys` keys that fill the SMs; `least` of them, as far as warps have tiles.

    `element`: bytes of one of K or V.
    """
    D, DV, rows = problem.head_dim, problem.head_dim_v, problem.seq_q * (problem.heads // problem.kv_heads)
    config = Config(16, 32 if DV <= 128 else 16, 4, 4, 1, False)
    if rows > 16 and DV <= 128:  # K and V are read half as often; wider tiles or values than here would spill
        config = replace(config, BM=32, BN=32 if DV <= 112 else 16)
    if 2 * smem_bytes(D, config, DV, element) > arch.smem_per_sm:  # two blocks an SM before four stages
        config = replace(config, stages=2)
    narrower = config, replace(config, BN=16), replace(config, BM=16, BN=16)  # for keys much wider than values
    config = next(candidate for candidate in narrower if arch.fits_smem(smem_bytes(D, candidate, DV, element)))
    steps = -(-keys // (config.BN * config.warps))
    blocks = row_tiles(problem, config) * problem.kv_heads * problem.batch
    splits = filling(blocks, arch.sm_count, steps)
    return replace(config, splits=max(splits, max(n for n in SPLITS if n <= min(least, steps) or n == 1)))


def filling(blocks: int, sms: int, most: int) -> int:
    """The fewest splits, up to `most`, that fill the waves of a grid 85 % as well as the best number of them does.

    So does FlashAttention choose its number of splits (num_splits_heuristic). A wave is a block on each SM.
    """
    filled = {n: blocks * n / (sms * -(-blocks * n // sms)) for n in SPLITS if n <= max(most, 1)}
    return next(n for n, share in filled.items() if share >= 0.85 * max(filled.values()))
