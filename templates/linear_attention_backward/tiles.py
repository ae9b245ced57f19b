"""Which tiles there are, where they stay, and the sizes that follow: linear_attention's, for four tensors.

`c` is a config, or columns of many.
"""

from typing import Any

import numpy as np

from tuner.arch import Arch
from tuner.space import Constraint, Space

from ..linear_attention.tiles import (
    LOAD,
    LONG,
    Budgeted,
    shape_constraints,
    smem_budgets,
    sum_bytes,
    tile_bytes,
    tokens_per_thread,
    widths,
)
from .problem import Problem

Config = Budgeted
TENSORS = 4  # k, v, do, q
TICKET = 16  # bytes of shared memory for the block's ticket
MAX_ELEMENTS = 64  # a thread: its loops over them are unrolled, three times


def _sums(c: Any) -> Any:
    """What groups of threads tell each other, forward and back, and the ticket."""
    return 2 * sum_bytes(c) + TICKET


def staged(problem: Problem, c: Any) -> Any:
    """Whether tensors arrive in shared memory: where they fit the budget and are wide enough for cp.async."""
    fits = TENSORS * tile_bytes(problem.forward(), c) + _sums(c) <= c.smem_budget
    return fits & (problem.dtype.itemsize * c.width >= 4)


def smem_bytes(problem: Problem, c: Any) -> Any:
    """Shared memory of a block that computes gradients."""
    return np.where(staged(problem, c), TENSORS * tile_bytes(problem.forward(), c), 0) + _sums(c)


def register_estimate(problem: Problem, c: Any) -> Any:
    """A thread's: the error and 1 / n of each element, the tensors and σ(k) where they stay, the tokens' addresses, the
    states, gradients, means and β of each channel, and 48 more."""
    tokens = tokens_per_thread(c)
    vectors = TENSORS * tokens * np.maximum(problem.dtype.itemsize * c.width / 4, 1)
    in_registers = ~np.asarray(staged(problem, c), bool)
    kept = np.where(in_registers, vectors, 0) + np.where(c.keep_weights, tokens * c.width, 0)
    return kept + 2 * tokens * c.width + tokens + 6 * c.width + 48


def _constraints(problem: Problem, arch: Arch) -> tuple[Constraint, ...]:
    budgets = smem_budgets(arch)
    return (
        *shape_constraints(problem.forward(), arch, lambda c: smem_bytes(problem, c)),
        Constraint(
            "a thread's loops over its elements are unrolled", lambda c: tokens_per_thread(c) * c.width <= MAX_ELEMENTS
        ),
        Constraint("the block fits the shared-memory budget", lambda c: smem_bytes(problem, c) <= c.smem_budget),
        Constraint(
            "a smaller shared-memory budget holds the same",
            lambda c: smem_bytes(problem, c) > np.array([0, *budgets])[np.searchsorted(budgets, c.smem_budget)],
        ),
        Constraint(
            "a thread's elements fit its registers",
            lambda c: (
                register_estimate(problem, c)
                <= np.minimum(arch.registers_per_sm // (c.threads * c.min_ctas) // 8 * 8, arch.registers_per_thread)
            ),
        ),
    )


def space(problem: Problem, arch: Arch) -> Space[Config]:
    return Space(
        Config,
        choices={
            "BT": (4, 8, 16, 32, 64, 128, 256),
            "BK": (32, 64, 128, 256),
            "threads": (64, 128, 256, 512),
            "width": widths(problem.forward()),
            "min_ctas": (1, 2, 3, 4, 6, 8),
            "keep_weights": (False, True),
            "smem_budget": smem_budgets(arch),
        },
        constraints=_constraints(problem, arch),
    )


def default(problem: Problem, arch: Arch) -> Config:
    """Vectors of 8 bytes, or less, and as many tokens as make 16 elements a thread, 8 with sequences to keep apart; a
    tile of 128 threads, with the smallest budget that has room for its tensors, or for sums."""
    width = next(each for each in reversed(widths(problem.forward())) if each * problem.dtype.itemsize <= LOAD // 2)
    tokens = max((8 if problem.varlen else 16) // width, 1)
    BK = 64 if problem.channels >= 512 or problem.seq_len < LONG else 32
    BT = tokens * 128 * width // BK
    configs = [Config(BT, BK, 128, width, 1, not problem.varlen, budget) for budget in smem_budgets(arch)]
    fitting = [c for c in configs if smem_bytes(problem, c) <= c.smem_budget]
    return next((c for c in fitting if staged(problem, c)), fitting[0])
