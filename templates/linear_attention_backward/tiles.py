"""The choices of tiles, whether they are staged in shared memory, and the sizes derived from it: those of
linear_attention, for four tensors.

`c` is a config, or columns of many configs.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from tuner.arch import Arch
from tuner.spec import Block, Constraint, DType, Space

from ..linear_attention.tiles import (
    LOAD,
    LONG,
    Budgeted,
    budget_constraints,
    choices,
    shape_constraints,
    smem_budgets,
    sum_bytes,
    tile_block,
    tile_bytes,
    tokens_per_thread,
    widths,
)
from .problem import Problem

Config = Budgeted
ENTRY = "linear_attention_backward_lookback"
TENSORS = 4  # tensors of a tile: k, v, do, q
CP_ASYNC = 4  # bytes of the smallest copy
THREADS = 128  # threads per block, by default
TICKET = 16  # bytes of shared memory for the ticket of the block
MAX_ELEMENTS = 64  # elements per thread: its loops over them are unrolled three times


def _sums(c: Any) -> Any:
    """Bytes of the values that groups of threads exchange, forward and backward, and of the ticket."""
    return 2 * sum_bytes(c) + TICKET


def staged(problem: Problem, c: Any) -> Any:
    """Whether tensors are staged in shared memory: if they fit the budget and are wide enough for cp.async."""
    fits = TENSORS * tile_bytes(problem, c) + _sums(c) <= c.smem_budget
    return fits & (problem.dtype.itemsize * c.width >= CP_ASYNC)


def smem_bytes(problem: Problem, c: Any) -> Any:
    """Shared memory of a block that computes gradients."""
    return np.where(staged(problem, c), TENSORS * tile_bytes(problem, c), 0) + _sums(c)


def register_estimate(problem: Problem, c: Any) -> Any:
    """Registers per thread: the error and 1 / n of each element, the tensors and σ(k) if kept in registers, the tokens'
    addresses, the states, gradients, means and β of each channel, and 48 more."""
    tokens = tokens_per_thread(c)
    vectors = TENSORS * tokens * np.maximum(problem.dtype.itemsize * c.width / 4, 1)
    in_registers = ~np.asarray(staged(problem, c), bool)
    kept = np.where(in_registers, vectors, 0) + np.where(c.keep_weights, tokens * c.width, 0)
    return kept + 2 * tokens * c.width + tokens + 6 * c.width + 48


def _constraints(problem: Problem, arch: Arch) -> tuple[Constraint, ...]:
    block = block_of(problem)
    return (
        *shape_constraints(problem, arch, block),
        Constraint(
            "a thread's loops over its elements are unrolled", lambda c: tokens_per_thread(c) * c.width <= MAX_ELEMENTS
        ),
        *budget_constraints(arch, block.smem),
    )


def block_of(problem: Problem) -> Block:
    return tile_block(ENTRY, partial(smem_bytes, problem), partial(register_estimate, problem))


def space(problem: Problem, arch: Arch) -> Space[Config]:
    return Space(
        Config,
        choices={**choices(problem, arch), "BT": (4, 8, 16, 32, 64, 128, 256)},
        constraints=_constraints(problem, arch),
    )


def default(problem: Problem, arch: Arch) -> Config:
    """Vectors of up to 8 bytes, with 32 elements per thread; 16 in fp32 or with packed sequences, and 8 if the tensors
    are kept in registers. σ(k) is computed in each sweep. The smallest budget that fits a tile, or the sums; three
    blocks per SM if they fit and no gradient of β needs registers."""
    width = next(width for width in reversed(widths(problem)) if width * problem.dtype.itemsize <= LOAD // 2)
    fewer_elements = problem.varlen or problem.dtype is DType.FP32
    elements = 8 if width * problem.dtype.itemsize < CP_ASYNC else 16 if fewer_elements else 32
    BK = 64 if problem.channels >= 512 or problem.seq_len < LONG else 32
    BT = elements * THREADS // BK
    configs = [Config(BT, BK, THREADS, width, 1, False, budget) for budget in smem_budgets(arch)]
    fitting = [c for c in configs if smem_bytes(problem, c) <= c.smem_budget]
    config = next((c for c in fitting if staged(problem, c)), fitting[0])
    room = arch.fits_smem(smem_bytes(problem, config), 3)
    return replace(config, min_ctas=3) if room and problem.decay == "scalar" else config
