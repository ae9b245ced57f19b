"""What chunked is free to choose, and the sizes that follow; every function takes a config or columns of many."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.arch import Arch

WARP = 32
CHUNK = 16  # tokens
BF16 = 2  # bytes


@dataclass(frozen=True, slots=True)
class Config:
    BV: int  # columns of the state a block of forward and reverse
    rows: int  # of them, a warp: rows of the transposed state
    stages: int  # slots for chunks: one is read while the others are filled
    span: int  # chunks from one stored state to the next: memory for arithmetic
    channels: int  # of q, k and g, a warp of gradients
    prepare_warps: int  # a block: chunks it prepares
    prepare_ctas: int  # blocks of prepare that the registers of an SM must hold
    gradient_chunks: int  # a block of gradients
    gradient_ctas: int  # blocks of gradients that the registers of an SM must hold
    gradient_steps: int  # of 16 values, whose loads a warp of gradients has in flight


def tile_bytes(K: int) -> int:
    return BF16 * CHUNK * K


def forward_bytes(K: int) -> int:
    """What forward reads of an image: keys, updates, decay and beta; with padding."""
    return -(-(2 * tile_bytes(K) + 4 * K + 4 * CHUNK) // 128) * 128


def reverse_bytes(K: int) -> int:
    """What reverse reads of it: queries and P T too."""
    return forward_bytes(K) + tile_bytes(K) + BF16 * CHUNK * CHUNK


def image_bytes(K: int) -> int:
    """The inverse that gives errors, and the lengths of rows, too."""
    return reverse_bytes(K) + BF16 * CHUNK * CHUNK + 8 * CHUNK


def scan_threads(c: Any) -> Any:
    return WARP * (c.BV // c.rows)


def scan_smem_bytes(part: int, c: Any) -> Any:
    """Of a scan that reads `part` bytes of each image, and BV columns of v or do."""
    return c.stages * (part + BF16 * CHUNK * c.BV)


def prepare_smem_bytes(K: int, c: Any) -> Any:
    """A warp's tile of keys, its scores in fp32, both inverses and beta; with padding."""
    squares = 4 * CHUNK * (2 * CHUNK + 12) + 2 * CHUNK * 48 + 4 * CHUNK
    return c.prepare_warps * (-(-(tile_bytes(K) + squares) // 128) * 128)


def slab_warps(K: int, c: Any) -> Any:
    """That share a chunk's slabs of channels; of over 12 each takes two, since more threads have too few registers."""
    slabs = K // c.channels
    return np.where(slabs > 12, (slabs + 1) // 2, slabs)


def gradient_threads(K: int, c: Any) -> Any:
    return WARP * c.gradient_chunks * slab_warps(K, c)


def gradient_smem_bytes(K: int, c: Any, *, normalized: bool) -> Any:
    """dq and dk, while the value heads of a group add up; and how far a warp's channels of them lie along the rows."""
    return c.gradient_chunks * (2 * 4 * CHUNK * K + slab_warps(K, c) * 8 * CHUNK * normalized)


def scan_registers(K: int, c: Any) -> Any:
    """An estimate of a thread's: state, two tensors of tokens and their operands, and what no config does without."""
    return c.rows * K / 32 + c.rows * 2 + 56


def prepare_registers() -> int:
    """An estimate of a thread's: a row of an inverse, twice, and two steps of channels."""
    return 112


def gradient_registers(c: Any) -> Any:
    """An estimate of a thread's: sums a channel and token, operands on their way, and what no config does without."""
    made = (c.span - 1) * (c.channels / 2 + 20)
    return 1.75 * c.channels + c.gradient_steps * (12 + c.channels / 2) + made + 70


def register_limit(threads: Any, arch: Arch) -> Any:
    """Registers a thread may have when an SM holds so many; its four quarters share the warps, and the registers."""
    quarters = -(-np.maximum(threads, 1) // (4 * WARP)) * (4 * WARP)
    return np.minimum(arch.registers_per_sm // quarters // 8 * 8, arch.registers_per_thread)
