"""What the tiled implementations share: the choices of vectors, tiles and budgets, and the sizes derived from it.

`c` is a config, or columns of many configs.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.arch import Arch
from tuner.spec import Block, Constraint, Quantity, Space, Value, limits

from .problem import Problem
from .sizes import Sizes


@dataclass(frozen=True, slots=True)
class Shape:
    """The parameters of every tiled config."""

    BT: int  # tokens per tile
    BK: int  # channels per tile, over all heads
    threads: int  # threads per block
    width: int  # channels per thread, loaded at once
    min_ctas: int  # blocks that must fit the registers of an SM
    keep_weights: bool  # σ(k) is kept in registers between its two uses; otherwise computed twice


@dataclass(frozen=True, slots=True)
class Budgeted(Shape):
    """A Shape with a budget that decides whether tiles are kept in shared memory or in registers."""

    # bytes a block may use: q, k and v are staged in shared memory if they fit, in registers otherwise
    smem_budget: int


WARP = 32  # lanes
LOAD = 16  # bytes of the widest load
MAX_TOKENS = 32  # tokens per thread: its loop over them is unrolled
LONG = 2**14  # tokens of a long sequence
BUDGETS = (16, 8, 4, 3, 2, 1)  # blocks per SM


def widths(problem: Sizes) -> tuple[int, ...]:
    """Channels a thread may load at once: a vector is within one head and as aligned as the rows of a dense tensor."""
    widest = math.gcd(LOAD // problem.dtype.itemsize, problem.head_dim)
    return tuple(width for width in (1, 2, 4, 8) if widest % width == 0)


def smem_budgets(arch: Arch) -> tuple[int, ...]:
    """Shared memory per block for each number of blocks per SM, in bytes, ascending."""
    return arch.smem_budgets(BUDGETS)


def groups(c: Any) -> Any:
    """Groups of threads, which process successive tokens."""
    return c.threads * c.width // c.BK


def tokens_per_thread(c: Any) -> Any:
    return c.BT * c.BK // (c.threads * c.width)


def sum_bytes(c: Any) -> Any:
    """Bytes of the sums of the groups in shared memory."""
    return 8 * c.threads * c.width + 4 * groups(c)


def tile_bytes(problem: Sizes, c: Any) -> Any:
    """Bytes of a tile of one tensor."""
    return problem.dtype.itemsize * c.BT * c.BK


def staged(problem: Problem, c: Any, extra: int = 0) -> Any:
    """Whether q, k and v are staged in shared memory: if they fit the budget and are wide enough for cp.async."""
    fits = 3 * tile_bytes(problem, c) + sum_bytes(c) + extra <= c.smem_budget
    return fits & (problem.dtype.itemsize * c.width >= 4)


def smem_bytes(problem: Problem, c: Any, extra: int = 0) -> Any:
    """Shared memory of a block that keeps q, k and v."""
    return np.where(staged(problem, c, extra), 3 * tile_bytes(problem, c), 0) + sum_bytes(c) + extra


def register_estimate(problem: Problem, c: Any, in_registers: Any) -> Any:
    """Registers per thread: q, k, v and σ(k) if kept in registers, the tokens' addresses, s, n and β of each channel,
    and 40 more."""
    tokens = tokens_per_thread(c)
    vectors = 3 * tokens * np.maximum(problem.dtype.itemsize * c.width / 4, 1)
    kept = np.where(in_registers, vectors, 0) + np.where(c.keep_weights, tokens * c.width, 0)
    return kept + 2 * tokens + 4 * c.width + 40


def shape_constraints(problem: Sizes, arch: Arch, block: Block) -> tuple[Constraint, ...]:
    """Constraints on every tile."""
    return (
        Constraint("weights are not kept in a loop over sequences", lambda c: ~c.keep_weights | (not problem.varlen)),
        Constraint("each channel is folded by one thread", lambda c: c.threads >= c.BK),
        Constraint("groups of threads are complete", lambda c: c.threads * c.width % c.BK == 0),
        Constraint("groups share the tokens of a tile evenly", lambda c: c.BT % np.maximum(groups(c), 1) == 0),
        Constraint("a thread's loop over its tokens is unrolled", lambda c: tokens_per_thread(c) <= MAX_TOKENS),
        *limits(arch, block),
    )


def budget_constraints(arch: Arch, smem: Quantity) -> tuple[Constraint, ...]:
    """Constraints on tiles that are staged in shared memory if the budget allows."""
    budgets = smem_budgets(arch)
    return (
        Constraint("the block fits the shared-memory budget", lambda c: smem(c) <= c.smem_budget),
        Constraint(
            "the same fits a smaller shared-memory budget",
            lambda c: smem(c) > np.array([0, *budgets])[np.searchsorted(budgets, c.smem_budget)],
        ),
    )


def tile_block(entry: str, smem: Quantity, registers: Quantity | None = None) -> Block:
    return Block(entry, lambda c: c.threads, smem, registers, lambda c: c.min_ctas)


def budgeted_block(entry: str, problem: Problem, extra: int = 0) -> Block:
    """Limits of a block whose tile is staged in shared memory if the budget allows, in addition to `extra` bytes."""

    def registers(c: Any) -> Any:
        return register_estimate(problem, c, ~np.asarray(staged(problem, c, extra), bool))

    return tile_block(entry, lambda c: smem_bytes(problem, c, extra), registers)


def choices(problem: Sizes, arch: Arch) -> dict[str, tuple[Value, ...]]:
    """The choices of every budgeted tile."""
    return {
        "BT": (4, 8, 16, 32, 64, 128, 256, 512),
        "BK": (32, 64, 128, 256),
        "threads": (64, 128, 256, 512),
        "width": widths(problem),
        "min_ctas": (1, 2, 3, 4, 6, 8),
        "keep_weights": (False, True),
        "smem_budget": smem_budgets(arch),
    }


def space(problem: Problem, arch: Arch, extra: int = 0) -> Space[Budgeted]:
    """Every tile of an implementation whose blocks need `extra` bytes of shared memory in addition."""

    block = budgeted_block("", problem, extra)
    return Space(
        Budgeted,
        choices=choices(problem, arch),
        constraints=(
            *shape_constraints(problem, arch, block),
            *budget_constraints(arch, block.smem),
        ),
    )


def default_tile(problem: Problem) -> tuple[int, int, int, int]:
    """BT, BK, threads, width: a thread computes 8 tokens of 16 bytes, or 16 of fewer; small blocks, so that many fit an
    SM and some are always loading. With long rows of few channels, hundreds of tiles are in flight at once, and each
    adds up the sums before it: tiles are longer then."""
    width = widths(problem)[-1]
    tokens = (8 if width * problem.dtype.itemsize == LOAD else 16) * width
    if problem.seq_len < LONG or problem.channels >= 1024:
        return tokens, 64, 64, width
    return (2 * tokens, 32, 64, width) if problem.channels >= 512 else (4 * tokens, 32, 128, width)


def default(problem: Problem, arch: Arch, extra: int = 0) -> Budgeted:
    """The tile with the smallest budget that fits q, k and v, or, if they are in registers, the sums."""
    keep = not problem.varlen
    configs = [Budgeted(*default_tile(problem), 1, keep, budget) for budget in smem_budgets(arch)]
    fitting = [c for c in configs if smem_bytes(problem, c, extra) <= c.smem_budget]
    return next((c for c in fitting if staged(problem, c, extra)), fitting[0])
