"""What chunked is free to choose, and the sizes that follow; every function takes a config or columns of many."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...kda.operands import Operands, operands_of
from ..problem import Problem

WARP = 32
CHUNK = 16  # tokens
FP32 = 4  # bytes


@dataclass(frozen=True, slots=True)
class Config:
    BV: int  # columns of the state a block of forward and reverse
    rows: int  # of them, a warp: rows of the transposed state
    stages: int  # slots for chunks: one is read while the others are filled
    span: int  # chunks from one stored state to the next, which a block of gradients has: memory for arithmetic
    channels: int  # of q, k and g, a warp of gradients: a slab
    slab_warps: int  # of gradients, that share a chunk's slabs
    values: int  # whose states a block of gradients makes at a time
    prepare_warps: int  # a block: chunks it prepares
    prepare_ctas: int  # blocks of prepare that the registers of an SM must hold
    gradient_ctas: int  # blocks of gradients that the registers of an SM must hold


@dataclass(frozen=True, slots=True)
class Image:
    """Bytes of what prepare hands on for one chunk, as chunked/image.cuh has it."""

    K: int
    operands: Operands

    @property
    def matrix(self) -> int:
        """[tokens, K]."""
        return self.operands.nbytes * CHUNK * self.K

    @property
    def block(self) -> int:
        """[tokens, tokens]."""
        return self.operands.nbytes * CHUNK * CHUNK

    @property
    def forward(self) -> int:
        """What forward reads: the inverse that gives errors, keys, updates, decay and beta; with padding."""
        return -(-(self.block + 2 * self.matrix + FP32 * self.K + FP32 * CHUNK) // 128) * 128

    @property
    def reverse(self) -> int:
        """What reverse reads: queries and P T too, but no errors."""
        return self.forward + self.matrix

    @property
    def total(self) -> int:
        """All of it, the lengths of rows and matrices that are stored both ways too."""
        return self.reverse + 2 * self.matrix * self.twice + self.block + 2 * FP32 * CHUNK

    @property
    def twice(self) -> bool:
        """Nothing transposes operands of 32 bits on their way from shared memory."""
        return self.operands.nbytes == FP32

    @property
    def weight(self) -> int:
        """Registers of an operand, in those of one in bf16; one that is split has half as many again for a while."""
        return self.operands.nbytes // 2 + (self.operands.products > 1)


def image_of(problem: Problem) -> Image:
    return Image(problem.key_dim, operands_of(problem.forward()))


def scan_threads(c: Any) -> Any:
    return WARP * (c.BV // c.rows)


def scan_smem_bytes(problem: Problem, part: int, c: Any) -> Any:
    """Of a scan that reads `part` bytes of each image, and BV columns of v or do."""
    row = problem.dtype.itemsize * c.BV + 16 * image_of(problem).twice
    return c.stages * (part + CHUNK * row)


def prepare_smem_bytes(image: Image, c: Any) -> Any:
    """A warp's keys, its scores in fp32, its inverses and beta; with padding."""
    inverses = FP32 * CHUNK * (CHUNK + 4) if image.twice else 2 * CHUNK * 48
    squares = FP32 * CHUNK * (2 * CHUNK + 12) + inverses + FP32 * CHUNK
    return c.prepare_warps * (-(-(image.matrix + squares) // 128) * 128)


def gradient_threads(c: Any) -> Any:
    return WARP * c.span * c.slab_warps


def remake_bytes(image: Image, c: Any) -> Any:
    """Of a slab: states and gradients of its chunks, and a number a channel; where there are several, values and
    operands."""
    pairs, blocks = c.channels // 16, c.values // 16
    shared = np.where(c.span > 1, 3 * (blocks + pairs) * image.block, 0)
    return c.span * (2 * pairs * blocks * image.block + FP32 * c.channels + shared)


def gradient_smem_bytes(image: Image, c: Any, *, normalized: bool) -> Any:
    """dq and dk, while the value heads of a group add up; how far a warp's channels of them lie along the rows; and
    states."""
    channels = image.K if normalized else c.slab_warps * c.channels
    sums = c.span * 2 * FP32 * CHUNK * (channels + c.slab_warps * normalized)
    return sums + c.slab_warps * remake_bytes(image, c)


def scan_registers(image: Image, c: Any) -> Any:
    """An estimate of a thread's: state, two tensors of tokens and their operands, and what no config does without."""
    return c.rows * image.K / 32 + c.rows * 2 + 40 + 16 * image.weight


def prepare_registers(image: Image) -> int:
    """An estimate of a thread's: a row of an inverse, twice, and two steps of channels."""
    return 92 + 20 * image.weight


def gradient_registers(image: Image, c: Any) -> Any:
    """An estimate of a thread's: sums a channel and token, operands on their way, and what no config does without."""
    return 1.75 * c.channels + 40 * image.weight + 70
