"""Matrices in shared memory as described by the tensor cores' matrix descriptors."""

from dataclasses import dataclass

import numpy as np

from tuner.backends.ptx.instructions.matrix import Element
from tuner.backends.ptx.instructions.tensor import swizzled
from tuner.backends.ptx.state.values import Array
from tuner.backends.ptx.state.wave import Wave


@dataclass(frozen=True)
class Descriptor:
    """A matrix in shared memory (PTX ISA, "Matrix descriptor"), in bytes. The swizzle permutes chunks within a span."""

    start: int
    leading: int
    stride: int
    span: int
    chunk: int = 16

    def addresses(self, count: int, depth: int, size: int, transposed: bool) -> Array:
        """Return [count, depth] shared addresses of elements of `size` bytes; a product sums over `depth`."""
        offsets = mn_major(count, depth, size, self) if transposed else k_major(count, depth, size, self)
        return swizzled(self.start + offsets, self.span, self.chunk)

    def tile(self, wave: Wave, lane: int, count: int, element: Element, transposed: bool) -> Array:
        """Return the [count, depth] elements in the block of `lane`; raise FaultError if stores are not fenced."""
        addresses = self.addresses(count, element.depth, element.size, transposed)
        offsets = wave.shared.locate(addresses.reshape(-1), np.full(addresses.size, lane), element.size)
        if wave.unfenced:
            wave.unfenced.check(offsets)
        return element.floats(wave.shared.views[element.size][offsets // element.size]).reshape(count, -1)


def k_major(count: int, depth: int, size: int, matrix: Descriptor) -> Array:
    """Return [count, depth] offsets: groups of 8 rows are `stride` apart; unswizzled 16-byte chunks are `leading`
    apart.
    """
    row, column = np.arange(count)[:, None], np.arange(depth)[None, :]
    pitch, chunk = (matrix.span, 16) if matrix.span else (16, matrix.leading)
    byte = size * column
    return row % 8 * pitch + row // 8 * matrix.stride + byte // 16 * chunk + byte % 16


def mn_major(count: int, depth: int, size: int, matrix: Descriptor) -> Array:
    """Return [count, depth] offsets for a layout in which `count` is contiguous, over 16 bytes or the span of a
    swizzle.

    With a swizzle, `leading` is the distance between spans and `stride` that between groups of rows along the depth;
    without one it is the reverse. A group has 8 rows, or 4 if 32-byte chunks are swizzled.
    """
    span, group = matrix.span or 16, 128 // matrix.chunk
    inner, outer = np.arange(count)[:, None], np.arange(depth)[None, :]
    across, along = (matrix.leading, matrix.stride) if matrix.span else (matrix.stride, matrix.leading)
    byte = size * inner
    return byte % span + byte // span * across + outer % group * span + outer // group * along
