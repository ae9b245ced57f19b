"""Blocks with producer warps that prepare chunks and consumer warps that carry the state: the search space, and the
sizes derived from it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.spec import Block, Constraint, Quantity

from ..operands import BF16 as BF16_OPERANDS
from ..operands import Operands, operands_of
from ..prep_scan.config import (
    BF16,
    WARP,
    large_gate_barriers,
    prep_smem_bytes,
    prep_threads,
    stage_bytes,
    token_registers,
    tokens_fit,
)
from ..problem import Problem

NAMED_BARRIERS = 15  # named barriers per block, besides the barrier of all its threads
CHOICES = {  # parameters of every such block, except the tokens of a chunk and the columns
    "rows": (16, 32),
    "stages": tuple(range(2, 8)),
    "partials": (1, 2),
    "prep_groups": (1, 2, 4, 8, 16),
    "producers": tuple(range(1, 8)),
}


@dataclass(frozen=True, slots=True)
class Config:
    C: int  # tokens per chunk
    BV: int  # columns of the state per block; every block of a head prepares its chunks again
    rows: int  # columns per warp: rows of the transposed state
    stages: int  # slots for chunks
    # accumulators that the product of the state with k is split into, for shorter dependency chains of mma
    partials: int
    prep_groups: int  # threads that share four channels of a chunk, each with C / prep_groups tokens
    producers: int  # groups of threads that prepare chunks in turn


def block_threads(K: int, c: Any, columns: Any, rows: Any) -> Any:
    """Threads for `columns` columns of a state, `rows` of them per warp, and for the groups of producers."""
    return columns // rows * WARP + c.producers * prep_threads(K, c)


def block_bytes(problem: Problem, c: Any, values: Any) -> Any:
    """Bytes of a ring of images with `values` columns of v, and of the scratch space of each group of producers."""
    K, operands = problem.key_dim, operands_of(problem)
    producer = -(-prep_smem_bytes(K, c, operands, problem.use_qk_l2norm_in_kernel) // 128) * 128
    return c.stages * stage_bytes(K, c.C, values, operands, problem.dtype.itemsize) + c.producers * producer


def register_estimate(K: int, c: Any, rows: Any, operands: Operands = BF16_OPERANDS, a_token: int = 3) -> Any:
    """Registers per thread: the maximum of those of consumers with `rows` columns and those of producers, of which
    `a_token` hold q, k and g of each token."""
    tokens = rows * c.C / 32
    packed = operands.registers / (operands.step / 2)  # registers of an operand, relative to those of its accumulators
    constant = 40 + 6 * (operands.nbytes - BF16) + 8 * (operands.registers - 4)
    carries = rows * K / 32 + tokens * (1 + packed + c.partials) + constant
    return np.maximum(carries, np.maximum(100 + a_token * c.C // c.prep_groups, c.C + 60))


def chunk_block(
    entry: str, problem: Problem, threads: Quantity, smem: Quantity, rows: Quantity = lambda c: c.rows
) -> Block:
    """Limits of a block of producer warps, and of consumer warps with `rows` columns each."""
    K, operands, a_token = problem.key_dim, operands_of(problem), token_registers(problem)
    return Block(entry, threads, smem, lambda c: register_estimate(K, c, rows(c), operands, a_token))


def chunk_barriers(problem: Problem, c: Any) -> int:
    """Barriers to prepare a chunk and pass it on; a group of one warp needs none of its own."""
    return 1 + 4 * int(prep_threads(problem.key_dim, c) > WARP) + large_gate_barriers(problem, c)


def turns(K: int) -> tuple[Constraint, ...]:
    """Constraints on groups of producers that take turns."""
    return (
        Constraint("a producer has 1 to 16 tokens", tokens_fit),
        Constraint(
            "a stage is always filled by the same producers, so that its barriers stay in order",
            lambda c: c.stages % c.producers == 0,
        ),
        Constraint("a group of producers consists of complete warps", lambda c: prep_threads(K, c) % WARP == 0),
        Constraint(
            "a block has 15 named barriers: two per stage, and one per group of several warps",
            lambda c: 2 * c.stages + (prep_threads(K, c) > WARP) * c.producers <= NAMED_BARRIERS,
        ),
    )
