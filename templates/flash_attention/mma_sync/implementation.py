"""flash_attention on mma.sync (sm_80 and up): online softmax over tiles of keys in a ring buffer."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tuner.arch import Arch
from tuner.errors import TemplateError
from tuner.spec import Block, Constraint, DType, Implementation, Launch, Plan, Space, limits

from ..problem import Problem
from .config import (
    Config,
    q_in_ring,
    register_estimate,
    smem_budgets,
    smem_bytes,
)
from .work import work

ENTRY = "flash_attention_mma_sync"
MAX_GRID_YZ = 65535
SHARED_FROM = 96  # warps share rows only if head_dim_v is larger


def refusal(problem: Problem, _arch: Arch) -> str | None:
    if problem.dtype is DType.FP32:
        return "dtype fp32: mma_sync multiplies 16-bit operands; use mma_tf32"
    return exceeds_grid(problem)


def exceeds_grid(problem: Problem) -> str | None:
    """Why no grid of tiles, heads and sequences can be launched; None if it can."""
    if max(problem.heads, problem.sequences) > MAX_GRID_YZ:
        count = f"sequences {problem.sequences}" if problem.use_cu_seqlens else f"batch {problem.batch}"
        return f"{count} or heads {problem.heads} exceeds {MAX_GRID_YZ}, the grid's limit in y and z"
    return None


def space(problem: Problem, arch: Arch) -> Space[Config]:
    D, DV = problem.head_dim, problem.head_dim_v
    budgets = smem_budgets(arch)
    return Space(
        Config,
        choices={
            "BM": (32, 64, 96, 128, 192, 256),
            "warps": (2, 3, 4, 6, 8),
            "d_warps": (1, 2, 4),
            "BN": (32, 48, 64, 80, 96, 128),
            "q_in_registers": (False, True),
            "swizzle": (True,) if D % 16 and DV % 16 else (True, False),
            "stages": (2, 3, 4),
            "smem_budget": budgets,
            "min_ctas": (1, 2, 3),
            "lazy_rescale": (False, True),
            "heavy_first": (True, False) if problem.causal else (False,),
        },
        constraints=tile_constraints(
            arch,
            DV,
            16,
            _block(problem),
        ),
    )


def _block(problem: Problem) -> Block:
    D, DV = problem.head_dim, problem.head_dim_v
    return tile_block(ENTRY, lambda c: smem_bytes(D, c, DV), lambda c: register_estimate(D, c, DV))


def tile_block(entry: str, smem: Callable[[Any], Any], registers: Callable[[Any], Any]) -> Block:
    """The launch limits of a block that computes tiles of queries and keys."""
    return Block(entry, lambda c: 32 * c.warps, smem, registers, lambda c: c.min_ctas)


def tile_constraints(arch: Arch, DV: int, keys: int, block: Block) -> tuple[Constraint, ...]:
    """Constraints on tiles whose P V product consumes `keys` keys per step."""
    budgets, smem = smem_budgets(arch), block.smem
    return (
        Constraint(
            "a warp owns 16 or 32 rows of Q",
            lambda c: (c.BM * c.d_warps == 16 * c.warps) | (c.BM * c.d_warps == 32 * c.warps),
        ),
        Constraint(
            "the number of warps is a multiple of the warps that share rows", lambda c: c.warps % c.d_warps == 0
        ),
        Constraint(
            f"warps share rows only if O has over {SHARED_FROM} columns",
            lambda c: (c.d_warps == 1) | (DV > SHARED_FROM),
        ),
        Constraint(
            "warps that share rows hold complete pairs of 8-column blocks of O",
            lambda c: (c.d_warps == 1) | (DV % (16 * c.d_warps) == 0),
        ),
        Constraint(f"P V consumes {keys} keys per step", lambda c: c.BN % (keys * c.d_warps) == 0),
        Constraint("the tiles fit the shared-memory budget", lambda c: smem(c) <= c.smem_budget),
        Constraint(
            "the same tiles fit a smaller shared-memory budget",
            lambda c: smem(c) > np.array([0, *budgets])[np.searchsorted(budgets, c.smem_budget)],
        ),
        *limits(arch, block),
    )


def plan(problem: Problem, config: Config) -> Plan:
    D, DV = problem.head_dim, problem.head_dim_v
    grid = (-(-problem.longest // config.BM), problem.heads, problem.sequences)
    smem = int(smem_bytes(D, config, DV))
    constants = {"smem_bytes": smem, "q_in_ring": bool(q_in_ring(D, config, DV))}
    return Plan((Launch(ENTRY, grid, 32 * config.warps, smem),), constants)


# BM, BN, warps: the first that fits is the default. With 32 rows per warp, K and V are read half as often as with 16.
_TILES = ((128, 64, 4), (128, 32, 4), (128, 64, 8), (128, 32, 8), (64, 32, 4), (32, 32, 2))
_REGISTERS = 200  # configs with estimates up to this compile without spills on every arch, with registers to spare
_REGISTERS_OF_128 = {"sm_80": 222, "sm_90a": 222}  # head_dim = head_dim_v = 128: no registers to spare, but no spills
_WIDEST = _TILES[0]
_REGISTERS_CAPPED = 176  # limit for the widest tiles, whose scores go through tanh


def default(problem: Problem, arch: Arch) -> Config:
    """The largest tile that neither spills nor exceeds an arch's shared memory."""
    D, DV = problem.head_dim, problem.head_dim_v
    for tile in _TILES:
        for budget in smem_budgets(arch):
            config = Config(*tile, 1, 2, budget, 1, False, True, True, problem.causal)
            fits = smem_bytes(D, config, DV) <= budget
            if fits and register_estimate(D, config, DV) <= _registers(problem, arch, tile):
                return config
    raise TemplateError(f"{arch.name} has no room for the smallest tile of head_dim {D}, head_dim_v {DV}")


def _registers(problem: Problem, arch: Arch, tile: tuple[int, int, int]) -> int:
    """The largest register estimate at which tiles of this size compile without spills."""
    if problem.use_softcap and tile == _WIDEST:
        return _REGISTERS_CAPPED
    both_128 = problem.head_dim == problem.head_dim_v == 128 and not problem.use_cu_seqlens
    return _REGISTERS_OF_128.get(arch.name, _REGISTERS) if both_128 else _REGISTERS


IMPLEMENTATION = Implementation(
    name="mma_sync",
    summary="tensor cores through mma.sync, tiles of K and V through cp.async, exact for every head_dim",
    config=Config,
    refusal=refusal,
    space=space,
    plan=plan,
    default=default,
    blocks=lambda problem: (_block(problem),),
    work=work,
)
