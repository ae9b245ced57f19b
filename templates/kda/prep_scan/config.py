"""The search space of prep_scan, and the sizes derived from it; every function accepts a config or columns of many
configs."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..operands import BF16 as BF16_OPERANDS
from ..operands import Operands, column_stride, operands_of
from ..problem import Problem

WARP = 32
BF16 = 2  # bytes of one bf16


@dataclass(frozen=True, slots=True)
class Config:
    C: int  # tokens per chunk
    BV: int  # columns of the state per block of scan
    rows: int  # columns per warp: rows of the transposed state
    stages: int  # slots for chunks: one is read while the others are filled
    loader: bool  # a dedicated warp fills the stages, so that the others need fewer registers
    # accumulators that the product of the state with k is split into, for shorter dependency chains of mma
    partials: int
    ahead: int  # steps of 16 channels whose keys, and v, are loaded while the previous chunk is completed
    prep_groups: int  # threads of prep that share four channels, each with C / prep_groups tokens
    prep_min_ctas: int  # blocks of prep that must fit the registers of an SM


def triangle_blocks(C: Any) -> Any:
    """Number of 16 × 16 blocks in a lower triangle of C × C."""
    return C // 16 * (C // 16 + 1) // 2


def image_bytes(K: int, C: Any, operands: Operands = BF16_OPERANDS) -> Any:
    """Bytes of one chunk in the workspace: three tiles of keys and queries, P T', and the decay; with padding."""
    return -(-used_image_bytes(K, C, operands) // 128) * 128


def used_image_bytes(K: int, C: Any, operands: Operands = BF16_OPERANDS) -> Any:
    return operands.nbytes * (3 * C * K + 256 * triangle_blocks(C)) + 4 * K


def scan_threads(c: Any) -> Any:
    return WARP * (c.BV // c.rows + c.loader)


def scan_smem_bytes(K: int, c: Any, operands: Operands = BF16_OPERANDS, itemsize: int = BF16) -> Any:
    """`itemsize`: bytes of an element of v."""
    return c.stages * stage_bytes(K, c.C, c.BV, operands, itemsize)


def stage_bytes(K: int, C: Any, values: Any, operands: Operands, itemsize: int) -> Any:
    """Bytes of an image, and of `values` columns of v in rows that are swizzled, or padded if their columns are
    read."""
    row = BF16 * values if operands.nbytes == BF16 else column_stride(itemsize * values)
    return image_bytes(K, C, operands) + C * row


def prep_threads(K: int, c: Any) -> Any:
    return K // 4 * c.prep_groups


def token_registers(problem: Problem) -> int:
    """Registers that hold a thread's four channels of q, k and g of a token."""
    return 2 * problem.dtype.itemsize + problem.gate_dtype.itemsize


def tokens_fit(c: Any) -> Any:
    """Whether a thread of prep has 1 to 16 tokens, all in one sub-chunk."""
    return (c.prep_groups <= c.C) & (c.C // c.prep_groups <= 16)


def by_registers(problem: Problem, c: Any) -> bool:
    """Whether M and P are computed from registers: by one warp, for 16 tokens, with safe gates, and with inputs that
    can be operands directly. Gates of 32 bits would be two operands, with as many instructions as this saves."""
    direct = problem.safe_gate and not problem.use_gate_in_kernel and problem.gate_dtype.itemsize == BF16
    single_warp = c.C == 16 and prep_threads(problem.key_dim, c) == WARP and problem.key_dim % 64 == 0
    return bool(direct and single_warp and operands_of(problem) == BF16_OPERANDS)


def large_gate_barriers(problem: Problem, config: Any) -> int:
    """Barriers of a chunk at which warps exchange whether gates are large, if no warp sees the entire chunk."""
    sees_all = config.C == 16 and WARP % (problem.key_dim // 4) == 0
    return int(not problem.safe_gate and prep_threads(problem.key_dim, config) > WARP and not sees_all)


def prep_smem_bytes(K: int, c: Any, operands: Operands, normalize: bool) -> Any:
    """Bytes besides the image: keys that decay to the end, T', P, M, beta, row scales, sums of g, one flag per warp. If
    the decay of the image's keys and queries does not start at their sub-chunk, also copies that do, and keys that
    decay to the end of the first sub-chunk."""
    C, warps, element = c.C, prep_threads(K, c) // WARP, operands.nbytes
    square_row = 16 * (element * C // 16 | 1)
    rest_row = element * K if element == BF16 else column_stride(element * K)
    counted_apart = (C > 16) | (operands.products > 1)
    tiles = C * rest_row + np.where(counted_apart, 2 * C * element * K, 0) + np.where(C > 16, element * 16 * K, 0)
    squares = 2 * C * square_row + 4 * C * C
    return tiles + squares + 4 * C + 8 * C * normalize + 4 * c.prep_groups * K + 4 * (-(-warps // 4) * 4)


def prep_block_bytes(problem: Problem, c: Any) -> Any:
    """Shared memory of a block that computes one image and copies it to the workspace."""
    K, operands = problem.key_dim, operands_of(problem)
    return image_bytes(K, c.C, operands) + prep_smem_bytes(K, c, operands, problem.use_qk_l2norm_in_kernel)


def register_estimate(K: int, c: Any, operands: Operands = BF16_OPERANDS) -> Any:
    """Registers per thread of scan: state, two tensors of tokens and their operands, and a constant for everything
    else."""
    tokens = c.rows * c.C / 32
    packed = operands.registers / (operands.step / 2)  # registers of an operand, relative to those of its accumulators
    ahead = np.where(c.ahead > 0, tokens * operands.nbytes / 4 + c.ahead * c.C / 4, 0)
    constant = np.where(c.loader, 30, 44) + 8 * (operands.registers - 4)
    return c.rows * K / 32 + tokens * (1 + packed + c.partials) + ahead + constant
