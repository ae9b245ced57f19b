"""flash_attention on mma.sync (sm_80 and up): online softmax over tiles of keys that pass through a ring of slots."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.arch import Arch
from tuner.operator import Implementation, Launch, Plan
from tuner.space import Constraint, Space

from .mma_sync_work import work
from .operator import Problem

ENTRY = "flash_attention_mma_sync"
ELEMENT = 2  # bytes of fp16 and bf16


@dataclass(frozen=True, slots=True)
class Config:
    BM: int  # rows of Q a block
    BN: int  # keys a tile
    warps: int
    d_warps: int  # warps that share their rows: each multiplies a part of the keys, then a part of D
    stages: int  # slots for tiles of K and V: one is read while the others are filled
    smem_budget: int  # bytes a block may use; Q in registers has a place of its own only where it fits
    min_ctas: int  # blocks that the registers of an SM must hold
    q_in_registers: bool  # or read again from shared memory for each tile
    swizzle: bool  # chunks of a row permuted, or rows padded to an odd number of chunks
    lazy_rescale: bool  # O is scaled only when a maximum grows by more than a factor of 2^8
    heavy_first: bool  # causal: the row tiles with most keys first


def space(problem: Problem, arch: Arch) -> Space[Config]:
    D = problem.head_dim
    budgets = smem_budgets(arch)
    return Space(
        Config,
        choices={
            "BM": (32, 64, 96, 128, 192, 256),
            "warps": (2, 3, 4, 6, 8),
            "d_warps": (1, 2, 4),
            "BN": (32, 48, 64, 80, 96, 128),
            "q_in_registers": (False, True),
            "swizzle": (True,) if D % 16 else (True, False),
            "stages": (2, 3, 4),
            "smem_budget": budgets,
            "min_ctas": (1, 2, 3),
            "lazy_rescale": (False, True),
            "heavy_first": (True, False) if problem.causal else (False,),
        },
        constraints=(
            Constraint(
                "a warp owns 16 or 32 rows of Q",
                lambda c: (c.BM * c.d_warps == 16 * c.warps) | (c.BM * c.d_warps == 32 * c.warps),
            ),
            Constraint("warps come in groups that share rows", lambda c: c.warps % c.d_warps == 0),
            Constraint("only D > 64 is worth being shared by warps", lambda c: (c.d_warps == 1) | (D > 64)),
            Constraint(
                "warps that share rows own whole pairs of 8-wide columns of O",
                lambda c: (c.d_warps == 1) | (D % (16 * c.d_warps) == 0),
            ),
            Constraint("P V takes 16 keys a step", lambda c: c.BN % (16 * c.d_warps) == 0),
            Constraint("the tiles fit the shared-memory budget", lambda c: smem_bytes(D, c) <= c.smem_budget),
            Constraint(
                "a smaller shared-memory budget holds the same tiles",
                lambda c: smem_bytes(D, c) > np.array([0, *budgets])[np.searchsorted(budgets, c.smem_budget)],
            ),
            Constraint(
                "the blocks asked for fit the threads of an SM",
                lambda c: c.min_ctas * 32 * c.warps <= arch.threads_per_sm,
            ),
            Constraint(
                "the blocks asked for fit the shared memory of an SM",
                lambda c: c.min_ctas * (smem_bytes(D, c) + arch.smem_reserved) <= arch.smem_per_sm,
            ),
            Constraint(
                "accumulators, scores and operands fit the registers",
                lambda c: register_estimate(D, c) <= register_limit(c, arch),
            ),
        ),
    )


def smem_budgets(arch: Arch) -> tuple[int, ...]:
    """What an SM leaves each of 4, 3, 2 blocks or 1, in bytes, ascending."""
    shares = (arch.smem_per_sm // ctas - arch.smem_reserved for ctas in (4, 3, 2, 1))
    return tuple(min(share // 128 * 128, arch.smem_per_block) for share in shares)


def row_bytes(D: int, swizzle: Any) -> Any:
    """Bytes of a row of D elements in shared memory."""
    return 16 * np.where(swizzle, D // 8, D // 8 | 1)


def q_in_ring(D: int, c: Any) -> Any:
    """Whether Q, on its way to registers, has no place of its own within the budget."""
    return c.q_in_registers & ((c.BM + c.stages * c.BN) * row_bytes(D, c.swizzle) + _shared_rows(c) > c.smem_budget)


def smem_bytes(D: int, c: Any) -> Any:
    """Shared memory of a block, in bytes; `c` is a config or columns of many."""
    ring = c.stages * c.BN
    rows = np.where(q_in_ring(D, c), np.maximum(c.BM, ring), c.BM + ring)
    return rows * row_bytes(D, c.swizzle) + _shared_rows(c)


def _shared_rows(c: Any) -> Any:
    """P, and a float a row and part, where warps share rows."""
    return np.where(c.d_warps > 1, c.BM * (ELEMENT * c.BN + 4 * c.d_warps), 0)


def register_estimate(D: int, c: Any) -> Any:
    """Registers a thread: O, scores, Q where it stays, and 30 for what no config does without.

    Hardly any config that this puts over the limit compiles without spills (README.md has the counts).
    """
    query = np.where(c.q_in_registers, D * c.d_warps / 2, 0)
    return c.BM * (D + c.BN + query) / (32 * c.warps) + 30


def register_limit(c: Any, arch: Arch) -> Any:
    """Registers a thread may have when an SM holds min_ctas blocks."""
    share = arch.registers_per_sm // (32 * c.warps * c.min_ctas)
    return np.minimum(share // 8 * 8, arch.registers_per_thread)


def plan(problem: Problem, config: Config) -> Plan:
    D = problem.head_dim
    blocks = -(-problem.seq_q // config.BM) * problem.heads * problem.batch
    smem = int(smem_bytes(D, config))
    return Plan(
        launches=(Launch(ENTRY, (blocks, 1, 1), 32 * config.warps, smem),),
        constants={"smem_bytes": smem, "q_in_ring": bool(q_in_ring(D, config))},
    )


def default(problem: Problem, arch: Arch) -> Config:
    raise NotImplementedError


IMPLEMENTATION = Implementation(
    name="mma_sync",
    summary="tensor cores through mma.sync, tiles of K and V through cp.async, exact for every head_dim",
    config=Config,
    refusal=lambda problem, arch: None,
    space=space,
    plan=plan,
    default=default,
    work=work,
)
