"""Boxes of a tensor as TMA copies them: the layout in shared memory, and out-of-bounds elements."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tuner.backends.ptx.state.memory import FaultError, Global, Shared
from tuner.backends.ptx.state.values import Array
from tuner.spec.dtype import DType
from tuner.spec.tensor_map import MappedTensor


def swizzled(offsets: Array, span: int, chunk: int = 16) -> Array:
    """Apply a swizzle to byte offsets in shared memory: permute the chunks within `span` bytes.

    Address bits from bit 4 are XORed with those from bit 7: one bit for 32 bytes, two for 64, three for 128 (PTX ISA,
    "Tensor swizzling modes"). For 32-byte chunks the address bits start at bit 5.
    """
    return offsets if span == 0 else offsets ^ (offsets >> 7 & span // chunk - 1) * chunk


@dataclass(frozen=True)
class Box:
    """A box of a tensor at coordinates, outermost first; `inside` marks the elements within bounds."""

    tensor: MappedTensor
    addresses: Array  # addresses of the elements within bounds
    inside: Array  # [elements], in box order
    nbytes: int  # size of the whole box, as an mbarrier counts it

    def _places(self, shared: Shared, start: int) -> Array:
        """Return the shared memory offsets of all elements, in box order."""
        size = self.tensor.dtype.itemsize
        block = start - start % shared.stride
        if start % 128:
            raise FaultError(f"TMA at shared address {start - block}: it must be a multiple of 128")
        linear = start - block + size * np.arange(self.inside.size, dtype=np.int64)
        return block + swizzled(linear, self.tensor.swizzle)

    def load(self, memory: Global, shared: Shared, start: int) -> None:
        """Copy from global to shared memory; out-of-bounds elements become zero."""
        size = self.tensor.dtype.itemsize
        values = np.zeros(self.inside.size, f"u{size}")
        values[self.inside] = memory.views[size][memory.locate(self.addresses, size) // size]
        shared.views[size][self._places(shared, start) // size] = values

    def taken(self, shared: Shared, start: int) -> Array:
        """Return the box's values in shared memory."""
        size = self.tensor.dtype.itemsize
        values: Array = shared.views[size][self._places(shared, start) // size]
        return values

    def put(self, memory: Global, values: Array) -> None:
        """Write the values to global memory, except for out-of-bounds elements."""
        size = self.tensor.dtype.itemsize
        memory.views[size][memory.locate(self.addresses, size, write=True) // size] = values[self.inside]

    def add(self, memory: Global, values: Array) -> None:
        """Add the values to global memory."""
        if self.tensor.dtype is not DType.FP32:
            raise FaultError(f"unsupported: sums of {self.tensor.dtype.value} by the copy engine")
        cells = memory.locate(self.addresses, 4, write=True) // 4
        memory.views[4].view(np.float32)[cells] += values[self.inside].view(np.float32)


@lru_cache
def _check(tensor: MappedTensor) -> None:
    """Raise FaultError for a tensor that cuTensorMapEncodeTiled rejects."""
    inner = tensor.box[-1] * tensor.dtype.itemsize
    apart = (tensor.address, *tensor.strides[:-1])
    if any(difference % 16 or difference < 0 for difference in apart) or tensor.strides[-1] != tensor.dtype.itemsize:
        raise FaultError(f"no tensor map of {tensor.name}: address or strides {tensor.strides} are not multiples of 16")
    if inner % 16 or (tensor.swizzle and inner > tensor.swizzle) or not all(1 <= n <= 256 for n in tensor.box):
        raise FaultError(f"no tensor map of {tensor.name} with box {tensor.box} and a swizzle of {tensor.swizzle}")


def box_of(tensor: MappedTensor, innermost_first: tuple[int, ...]) -> Box:
    """Return the box at these coordinates, which may lie partly or wholly out of bounds."""
    _check(tensor)
    at = innermost_first[::-1]
    if len(at) != len(tensor.shape):
        raise FaultError(f"{len(at)} coordinates of {tensor.name}, which has {len(tensor.shape)} dims")
    offsets, inside = np.zeros(tensor.box, np.int64), np.ones(tensor.box, bool)
    for axis, (begin, count) in enumerate(zip(at, tensor.box, strict=True)):
        index = begin + np.arange(count, dtype=np.int64)
        shape = [-1 if i == axis else 1 for i in range(len(at))]
        offsets = offsets + (index * tensor.strides[axis]).reshape(shape)
        inside = inside & ((index >= 0) & (index < tensor.shape[axis])).reshape(shape)
    kept = inside.reshape(-1)
    addresses = (tensor.address + offsets.reshape(-1)[kept]).astype(np.uint64)
    return Box(tensor, addresses, kept, kept.size * tensor.dtype.itemsize)
