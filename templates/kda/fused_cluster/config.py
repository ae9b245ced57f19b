"""The search space of fused_cluster, and the sizes derived from it: blocks of a head prepare chunks in turn, each for
all of them."""

from dataclasses import dataclass
from typing import Any

from ..fused.config import block_threads
from ..operands import BF16 as OPERANDS
from ..prep_scan.config import BF16, image_bytes, prep_smem_bytes, used_image_bytes
from ..problem import Problem

_MBARRIERS = 16  # bytes of the two mbarriers of a stage


@dataclass(frozen=True, slots=True)
class Config:
    C: int  # tokens per chunk
    BV: int  # columns of the state per block
    cluster: int  # blocks of a head that share the chunks that each of them prepares
    rows: int  # columns per warp: rows of the transposed state
    stages: int  # slots for chunks, in every block
    # accumulators that the product of the state with k is split into, for shorter dependency chains of mma
    partials: int
    prep_groups: int  # threads that share four channels of a chunk, each with C / prep_groups tokens
    producers: int  # groups of threads of a block that prepare chunks in turn


def threads(K: int, c: Any) -> Any:
    return block_threads(K, c, c.BV, c.rows)


def smem_bytes(problem: Problem, c: Any) -> Any:
    """Shared memory of a block: stages, each with an image and the values of all blocks' columns; scratch space of
    producers; barriers."""
    stage = image_bytes(problem.key_dim, c.C, OPERANDS) + BF16 * c.C * c.BV * c.cluster
    producer = -(-prep_smem_bytes(problem.key_dim, c, OPERANDS, problem.use_qk_l2norm_in_kernel) // 128) * 128
    return c.stages * (stage + _MBARRIERS) + c.producers * producer


def copied_bytes(K: int, c: Any) -> Any:
    """Bytes of a chunk copied to each block that did not prepare it."""
    return used_image_bytes(K, c.C, OPERANDS) + BF16 * c.C * c.BV
