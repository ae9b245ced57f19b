"""Blocks of warps that prepare chunks and warps that carry a state through them: choices, and the sizes that follow."""

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

NAMED_BARRIERS = 15  # of a block, besides that of all its threads
CHOICES = {  # of what every such block is free to choose, but the tokens of a chunk and the columns
    "rows": (16, 32),
    "stages": tuple(range(2, 8)),
    "partials": (1, 2),
    "prep_groups": (1, 2, 4, 8, 16),
    "producers": tuple(range(1, 8)),
}


@dataclass(frozen=True, slots=True)
class Config:
    C: int  # tokens per chunk
    BV: int  # columns of the state a block; every block of a head prepares its chunks anew
    rows: int  # of them, a warp: rows of the transposed state
    stages: int  # slots for chunks
    partials: int  # sums that the state's product with k is split into: shorter chains of mma
    prep_groups: int  # threads that share four channels of a chunk, each C / prep_groups tokens
    producers: int  # groups of threads that prepare chunks in turn


def block_threads(K: int, c: Any, columns: Any, rows: Any) -> Any:
    """`columns` of a state, `rows` of them a warp, and the groups of producers."""
    return columns // rows * WARP + c.producers * prep_threads(K, c)


def block_bytes(problem: Problem, c: Any, values: Any) -> Any:
    """A ring of images with `values` columns of v, and what each group of producers works in."""
    K, operands = problem.key_dim, operands_of(problem)
    producer = -(-prep_smem_bytes(K, c, operands, problem.use_qk_l2norm_in_kernel) // 128) * 128
    return c.stages * stage_bytes(K, c.C, values, operands, problem.dtype.itemsize) + c.producers * producer


def register_estimate(K: int, c: Any, rows: Any, operands: Operands = BF16_OPERANDS, a_token: int = 3) -> Any:
    """Registers a thread: the larger of what carries `rows` columns and what prepares chunks, `a_token` of which hold
    q, k and g of each token."""
    tokens = rows * c.C / 32
    packed = operands.registers / (operands.step / 2)  # of an operand, to those of its accumulators
    other = 40 + 6 * (operands.nbytes - BF16) + 8 * (operands.registers - 4)
    carries = rows * K / 32 + tokens * (1 + packed + c.partials) + other
    return np.maximum(carries, np.maximum(100 + a_token * c.C // c.prep_groups, c.C + 60))


def chunk_block(
    entry: str, problem: Problem, threads: Quantity, smem: Quantity, rows: Quantity = lambda c: c.rows
) -> Block:
    """Of warps that prepare chunks, and of warps that carry `rows` columns each."""
    K, operands, a_token = problem.key_dim, operands_of(problem), token_registers(problem)
    return Block(entry, threads, smem, lambda c: register_estimate(K, c, rows(c), operands, a_token))


def chunk_barriers(problem: Problem, c: Any) -> int:
    """That preparing a chunk and handing it over take; a group of one warp needs none of its own."""
    return 1 + 4 * int(prep_threads(problem.key_dim, c) > WARP) + large_gate_barriers(problem, c)


def turns(K: int) -> tuple[Constraint, ...]:
    """How groups of producers may take turns."""
    return (
        Constraint("a producer has 1 to 16 tokens", tokens_fit),
        Constraint(
            "a stage is always filled by the same producers, so that its barriers keep their order",
            lambda c: c.stages % c.producers == 0,
        ),
        Constraint("a group of producers is whole warps", lambda c: prep_threads(K, c) % WARP == 0),
        Constraint(
            "a block has 15 named barriers: two a stage, and one a group of several warps",
            lambda c: 2 * c.stages + (prep_threads(K, c) > WARP) * c.producers <= NAMED_BARRIERS,
        ),
    )
