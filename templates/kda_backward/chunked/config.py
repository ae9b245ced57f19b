"""The search space of chunked, and the sizes derived from it; every function accepts a config or columns of many
configs."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...kda.operands import Operands, operands_of
from ..problem import Problem

WARP = 32
CHUNK = 16  # tokens per chunk
FP32 = 4  # bytes of one fp32


@dataclass(frozen=True, slots=True)
class Config:
    BV: int  # columns of the state per block of forward and reverse
    rows: int  # columns per warp: rows of the transposed state
    stages: int  # slots for chunks: one is read while the others are filled
    span: int  # chunks between stored states, computed by one block of gradients: trades memory for arithmetic
    channels: int  # channels of q, k and g per warp of gradients: a slab
    slab_warps: int  # warps of gradients that share the slabs of a chunk
    values: int  # values whose states a block of gradients computes at a time
    prepare_warps: int  # warps per block, one chunk each
    prepare_ctas: int  # blocks of prepare that must fit the registers of an SM
    gradient_ctas: int  # blocks of gradients that must fit the registers of an SM


@dataclass(frozen=True, slots=True)
class Image:
    """Sizes in bytes of the image that prepare writes for one chunk, as in chunked/image.cuh."""

    K: int
    operands: Operands

    @property
    def matrix(self) -> int:
        """A matrix [tokens, K]."""
        return self.operands.nbytes * CHUNK * self.K

    @property
    def block(self) -> int:
        """A matrix [tokens, tokens]."""
        return self.operands.nbytes * CHUNK * CHUNK

    @property
    def forward(self) -> int:
        """The part that forward reads: the inverse that gives errors, keys, updates, decay and beta; with padding."""
        return -(-(self.block + 2 * self.matrix + FP32 * self.K + FP32 * CHUNK) // 128) * 128

    @property
    def reverse(self) -> int:
        """The part that reverse reads: also queries and P T, but no errors."""
        return self.forward + self.matrix

    @property
    def total(self) -> int:
        """The complete image, with row norms and matrices stored in both orientations."""
        return self.reverse + 2 * self.matrix * self.twice + self.block + 2 * FP32 * CHUNK

    @property
    def twice(self) -> bool:
        """Whether matrices are stored twice: 32-bit operands cannot be transposed while they are loaded from shared
        memory."""
        return self.operands.nbytes == FP32

    @property
    def weight(self) -> int:
        """Registers of an operand, relative to those of one in bf16; a split operand temporarily needs half as many
        more."""
        return self.operands.nbytes // 2 + (self.operands.products > 1)


def image_of(problem: Problem) -> Image:
    return Image(problem.key_dim, operands_of(problem.forward()))


def scan_threads(c: Any) -> Any:
    return WARP * (c.BV // c.rows)


def scan_smem_bytes(problem: Problem, part: int, c: Any) -> Any:
    """Shared memory of a scan that reads `part` bytes of each image, and BV columns of v or do."""
    row = problem.dtype.itemsize * c.BV + 16 * image_of(problem).twice
    return c.stages * (part + CHUNK * row)


def prepare_smem_bytes(image: Image, c: Any) -> Any:
    """Per warp: keys, scores in fp32, inverses and beta; with padding."""
    inverses = FP32 * CHUNK * (CHUNK + 4) if image.twice else 2 * CHUNK * 48
    squares = FP32 * CHUNK * (2 * CHUNK + 12) + inverses + FP32 * CHUNK
    return c.prepare_warps * (-(-(image.matrix + squares) // 128) * 128)


def gradient_threads(c: Any) -> Any:
    return WARP * c.span * c.slab_warps


def remake_bytes(image: Image, c: Any) -> Any:
    """Bytes of a slab: states and gradients of its chunks, and one float per channel; with several chunks, also values
    and operands."""
    pairs, blocks = c.channels // 16, c.values // 16
    shared = np.where(c.span > 1, 3 * (blocks + pairs) * image.block, 0)
    return c.span * (2 * pairs * blocks * image.block + FP32 * c.channels + shared)


def gradient_smem_bytes(image: Image, c: Any, *, normalized: bool) -> Any:
    """Bytes of dq and dk while the value heads of a group are summed; of each warp's part of the projection onto the
    rows, if normalized; and of states."""
    channels = image.K if normalized else c.slab_warps * c.channels
    sums = c.span * 2 * FP32 * CHUNK * (channels + c.slab_warps * normalized)
    return sums + c.slab_warps * remake_bytes(image, c)


def scan_registers(image: Image, c: Any) -> Any:
    """Estimated registers per thread: state, two tensors of tokens and their operands, and a constant for everything
    else."""
    return c.rows * image.K / 32 + c.rows * 2 + 40 + 16 * image.weight


def prepare_registers(image: Image) -> int:
    """Estimated registers per thread: a row of an inverse, twice, and two steps of channels."""
    return 92 + 20 * image.weight


def gradient_registers(image: Image, c: Any) -> Any:
    """Estimated registers per thread: sums per channel and token, operands in flight, and a constant for everything
    else."""
    return 1.75 * c.channels + 40 * image.weight + 70
