"""mla_decode on wgmma (sm_90a): each of two warpgroups computes the scores of half of the keys, then half of O's
columns."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tuner.arch import GPU, Arch
from tuner.spec import Block, Constraint, DType, Implementation, Plan, Space, Work, limits

from ...flash_attention.mma_sync.config import ELEMENT
from ...flash_attention.split_keys.config import SPLITS
from ..problem import Problem
from ..split_keys import config as tiles
from ..split_keys.work import Visits
from ..split_keys.work import work as work_on_mma

ENTRIES = ("mla_decode_wgmma", "mla_decode_wgmma_merge")
ROWS = 64  # rows per block
PRODUCT = 16 * 8 * 16  # multiply-adds of an m16n8k16, the unit of Work
HELD = (0, 64, 128, 192, 256)
MOST_HELD = 192  # the default maximum: with 256, only 10 of the 255 registers are left
THREADS = 256
PAIRS = 4  # pairs of warps, one from each warpgroup, that have the same rows


@dataclass(frozen=True, slots=True)
class Config:
    BN: int  # latent rows per tile
    stages: int  # slots for tiles: one is read while the others are filled
    held: int  # columns of Q that are kept in registers
    late: int  # the last rows of a tile, whose product with P overlaps the exponentials of the next tile
    splits: int  # shares per sequence, on average

    @property
    def tile(self) -> tiles.Config:
        """The config of split_keys with the same tiles, copies, shares and merge."""
        return tiles.Config(BM=ROWS, BN=self.BN, warps=8, parts=2, stages=self.stages, splits=self.splits)


def refusal(problem: Problem, arch: Arch) -> str | None:
    D, DV = problem.head_dim, problem.head_dim_v
    if not arch.has_wgmma:
        return f"{arch.name} has no wgmma instructions: sm_90a has them"
    if problem.dtype is DType.FP32:
        return "dtype fp32: wgmma operands have 16 bits"
    if D % 64:
        return f"head_dim {D}: panels of the latent rows have 64 columns"
    if DV % 128 or DV > 512:
        return f"head_dim_v {DV}: two warpgroups compute up to four panels of 64 columns each: 128, 256, 384 or 512"
    return None


def space(problem: Problem, arch: Arch) -> Space[Config]:
    D = problem.head_dim
    return Space(
        Config,
        choices={"BN": (32, 64), "stages": (2, 3, 4), "held": HELD, "late": (16, 32), "splits": SPLITS},
        constraints=(
            Constraint("Q has the columns that are kept in registers", lambda c: c.held <= D),
            Constraint("some rows of a tile are not late", lambda c: c.late < c.BN),
            *limits(arch, *blocks(problem)),
        ),
    )


def blocks(problem: Problem) -> tuple[Block, ...]:
    return (Block(ENTRIES[0], lambda _: THREADS, lambda c: smem_bytes(problem.head_dim, c)),)


def smem_bytes(D: int, c: Any) -> Any:
    """Shared memory of a block, in bytes: Q, the ring, P, and one float per row and warpgroup; `c` may be columns of
    many configs."""
    return (ROWS + c.stages * c.BN) * ELEMENT * D + ROWS * (ELEMENT * c.BN + 8)


def plan(problem: Problem, config: Config) -> Plan:
    return tiles.plan(problem, config.tile, ENTRIES)


def default(problem: Problem, arch: Arch) -> Config:
    deepest = tiles.deepest(Config(BN=64, stages=2, held=0, late=16, splits=1).tile, problem.head_dim, arch)
    chosen = tiles.with_splits(problem, arch, deepest)
    held = max(n for n in HELD if n <= min(problem.head_dim, MOST_HELD))
    return Config(chosen.BN, chosen.stages, held, 16, chosen.splits)


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    """The work of split_keys with the same tiles, with the products and barriers of wgmma."""
    attend, *merge = work_on_mma(problem, config.tile)
    D, DV, BN = problem.head_dim, problem.head_dim_v, config.BN
    visits = Visits.of(problem, config.tile)
    row_tile_tiles = visits.tiles(BN)
    visited = problem.batch * int(np.sum(row_tile_tiles))
    walks = problem.batch * int(np.sum(-(-row_tile_tiles // visits.most)))  # shares of row tiles that have a tile
    idle = walks * ROWS * config.late * DV / PRODUCT  # before a block's first tile, zeros are multiplied
    from_shared = 2 * ROWS * (D - config.held) + BN * (D + 2 * ROWS + DV)  # operands of both warpgroups per tile
    into_shared = BN * (D + 2 * ROWS)  # the tile, and P
    holding = visits.parts * problem.batch * len(row_tile_tiles) if config.held else 0
    return (
        replace(
            attend,
            mma=0.0,
            wgmma=attend.mma + idle,
            smem_wavefronts=visited * ELEMENT * (from_shared + into_shared) / 128,
            barriers=attend.barriers + visited * (1 - PAIRS) + holding,  # P is exchanged by all warps, not by pairs
        ),
        *merge,
    )


IMPLEMENTATION = Implementation(
    name="wgmma",
    summary="wgmma: 64 rows of heads and queries, two warpgroups that split the scores by keys and O by columns",
    config=Config,
    refusal=refusal,
    space=space,
    plan=plan,
    default=default,
    work=work,
    unproven=True,
)
