"""The search space of split_keys, and the sizes derived from it; functions accept a config or columns of many
configs."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from tuner.arch import Arch
from tuner.spec import Block, Constraint, DType, Launch, Plan, Space, Workspace, limits

from ...flash_attention.mma_sync.config import ELEMENT
from ...flash_attention.split_keys.config import SPLITS, WARP, filling, merge_blocks
from ..problem import Problem

ENTRIES = ("mla_decode_split_keys", "mla_decode_merge")
# Minimum number of splits of a batch, by BM, so that blocks of short sequences are available for longer ones; the more
# rows a block has, the larger are its partial results for the merge.
RAGGED = {16: 4, 32: 4, 64: 2}


@dataclass(frozen=True, slots=True)
class Config:
    BM: int  # rows per block: queries times query heads
    BN: int  # latent rows per tile
    warps: int
    parts: int  # warps that share their rows: each handles a part of the keys, then a part of O's columns
    stages: int  # slots for tiles: one is read while the others are filled
    splits: int  # shares per sequence, on average


def space(problem: Problem, arch: Arch) -> Space[Config]:
    return Space(
        Config,
        choices={
            "BM": (16, 32, 64),
            "BN": (16, 32, 64, 128),
            "warps": (2, 4, 8, 16),
            "parts": (1, 2, 4, 8),
            "stages": (2, 3, 4, 6),
            "splits": SPLITS,
        },
        constraints=_constraints(problem, arch),
    )


def _constraints(problem: Problem, arch: Arch) -> tuple[Constraint, ...]:
    DV = problem.head_dim_v
    return (
        Constraint("the number of warps is a multiple of the warps that share rows", lambda c: c.warps % c.parts == 0),
        Constraint("a warp owns 16 or 32 rows", lambda c: _rows_fit(c.BM * c.parts / c.warps)),
        Constraint(
            "warps that share rows compute scores of 8 keys, or of multiples of 16", lambda c: _scored(c.BN / c.parts)
        ),
        Constraint(
            "warps that share rows hold complete pairs of column tiles of O", lambda c: DV % (16 * c.parts) == 0
        ),
        *limits(arch, block(problem, ENTRIES[0])),
    )


def block(problem: Problem, entry: str) -> Block:
    smem, registers = partial(smem_bytes, problem.head_dim), partial(register_estimate, problem.head_dim_v)
    return Block(entry, lambda c: WARP * c.warps, smem, registers)


def _rows_fit(rows: Any) -> Any:
    return (rows == 16) | (rows == 32)


def _scored(keys: Any) -> Any:
    return (keys == 8) | (keys % 16 == 0) & (keys > 0)


def smem_bytes(D: int, c: Any) -> Any:
    """Shared memory of a block, in bytes: Q, the ring, P, and one float per row and part for maxima and sums."""
    weights = c.BM * (ELEMENT * c.BN + 4 * np.where(c.parts > 1, c.parts, 0))
    return (c.BM + c.stages * c.BN) * ELEMENT * D + weights


def register_estimate(DV: int, c: Any) -> Any:
    """Registers per thread: O, scores before and after rounding, the addresses of the rows it copies, and 60 for
    everything else."""
    return c.BM * (DV + 2 * c.BN) / (WARP * c.warps) + 9 * np.ceil(c.BN / (4 * c.warps)) + 60


def row_tiles(problem: Problem, config: Config) -> int:
    return -(-problem.seq_q * problem.heads // config.BM)


def plan(problem: Problem, config: Config, entries: tuple[str, str]) -> Plan:
    """Each sequence has `splits` shares on average, distributed by sequence length; the second kernel merges
    several."""
    split, threads, smem = config.splits > 1, WARP * config.warps, int(smem_bytes(problem.head_dim, config))
    shares = config.splits * problem.batch
    attend = Launch(entries[0], (shares * row_tiles(problem, config), 1, 1), threads, smem)
    merge = Launch(entries[1], (merge_blocks(problem, config), 1, 1), threads, 0)
    rows = (shares, problem.heads, problem.seq_q)
    spaces = (
        Workspace("part_o", DType.FP32, (*rows, problem.head_dim_v)),
        Workspace("part_rows", DType.FP32, (*rows, 2)),
        Workspace("shares", DType.INT32, (problem.batch, 2)),
    )
    workspaces = tuple(workspace if split else replace(workspace, shape=(1,)) for workspace in spaces)
    return Plan((attend, merge) if split else (attend,), {"smem_bytes": smem}, workspaces)


# BM, BN, warps, parts: the default is the first shape that fits and whose rows the problem fills. The last four are for
# values that several warps cannot share.
_SHAPES = (
    (64, 64, 8, 4),
    (64, 32, 8, 2),
    (32, 64, 8, 4),
    (32, 32, 4, 2),
    (32, 16, 4, 2),
    (16, 32, 4, 4),
    (64, 64, 4, 1),
    (32, 64, 2, 1),
    (32, 32, 2, 1),
    (32, 16, 2, 1),
)


def default(problem: Problem, arch: Arch) -> Config:
    """The widest tile that the rows fill and that fits shared memory, with the splits that fill the SMs; for a batch at
    least a few, as far as there are tiles."""
    return with_splits(problem, arch, deepest(_shape(problem, arch), problem.head_dim, arch))


def with_splits(problem: Problem, arch: Arch, config: Config) -> Config:
    steps = -(-problem.seq_k // config.BN)
    splits = filling(row_tiles(problem, config) * problem.batch, arch.sm_count, steps)
    min_splits = min(RAGGED[config.BM] if problem.batch > 1 else 1, steps)
    return replace(config, splits=max(splits, max(n for n in SPLITS if n <= min_splits)))


def _shape(problem: Problem, arch: Arch) -> Config:
    rows, constraints = problem.heads * problem.seq_q, _constraints(problem, arch)
    fitting = [
        config
        for config in (Config(*shape, stages=2, splits=1) for shape in _SHAPES)
        if all(constraint.holds(config) for constraint in constraints)
    ]
    filled = [config for config in fitting if 2 * rows > config.BM]
    return (filled or [config for config in fitting if config.BM <= 32])[0]


def deepest(config: Config, D: int, arch: Arch) -> Config:
    """The config with more stages if shared memory fits only one block."""
    if 2 * (smem_bytes(D, config) + arch.smem_reserved) <= arch.smem_per_sm:
        return config
    deeper = (replace(config, stages=stages) for stages in (4, 3, 2))
    return next(candidate for candidate in deeper if arch.fits_smem(smem_bytes(D, candidate)))
