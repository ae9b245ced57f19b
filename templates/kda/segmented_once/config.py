"""The search space of segmented_once, and the sizes derived from it besides those of fused."""

from dataclasses import dataclass
from typing import Any

from ..fused.config import block_bytes, block_threads
from ..prep_scan.config import BF16
from ..problem import Problem
from ..segmented.config import FP32, MERGE_ROWS, MERGE_STAGES


@dataclass(frozen=True, slots=True)
class Config:
    C: int  # tokens per chunk
    rows: int  # columns of B or A per warp of pass
    stages: int  # slots for chunks
    # accumulators that the product of the state with k is split into, for shorter dependency chains of mma
    partials: int
    prep_groups: int  # threads that share four channels of a chunk, each with C / prep_groups tokens
    producers: int  # groups of threads that prepare chunks in turn
    segments: int  # segments of a sequence, processed in parallel


def pass_threads(problem: Problem, c: Any) -> Any:
    return block_threads(problem.key_dim, c, problem.key_dim + problem.value_dim, c.rows)


def pass_bytes(problem: Problem, c: Any) -> Any:
    return block_bytes(problem, c, problem.value_dim)


def correct_threads(problem: Problem) -> int:
    """Each thread has one channel of 16 columns of the state."""
    return problem.key_dim * problem.value_dim // 16


def correct_bytes(problem: Problem) -> int:
    """Bytes of a ring of tiles of maps, and of three states: the one being read, the one being written, and a copy in
    bf16."""
    K, V = problem.key_dim, problem.value_dim
    return FP32 * K * (MERGE_STAGES * MERGE_ROWS + 2 * V) + BF16 * K * V
