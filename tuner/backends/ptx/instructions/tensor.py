"""Boxes of a tensor as TMA copies them: which element goes where in shared memory, and what lies outside."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tuner.backends.ptx.state.memory import FaultError, Global, Shared
from tuner.backends.ptx.state.values import Array
from tuner.spec.dtype import DType
from tuner.spec.tensor_map import MappedTensor


def swizzled(offsets: Array, span: int, chunk: int = 16) -> Array:
    """Byte offsets in shared memory, of which the pattern permutes the chunks of `span` bytes.

    Bits 4 and up of an address are XORed with bits 7 and up: one for 32 bytes, two for 64, three for 128 (PTX ISA,
    "Tensor swizzling modes"); of chunks of 32 bytes bits 5 and up.
    """
    return offsets if span == 0 else offsets ^ (offsets >> 7 & span // chunk - 1) * chunk


@dataclass(frozen=True)
class Box:
    """A box of a tensor at coordinates, outermost first: `inside` says which of its elements the tensor has."""

    tensor: MappedTensor
    addresses: Array  # of the elements inside
    inside: Array  # [elements], in the order of the box
    nbytes: int  # of the whole box, which an mbarrier counts

    def _places(self, shared: Shared, start: int) -> Array:
        """Offsets in shared memory of all elements, in the order of the box."""
        size = self.tensor.dtype.itemsize
        block = start - start % shared.stride
        if start % 128:
            raise FaultError(f"TMA at shared address {start - block}: it has to be a multiple of 128")
        linear = start - block + size * np.arange(self.inside.size, dtype=np.int64)
        return block + swizzled(linear, self.tensor.swizzle)

    def load(self, memory: Global, shared: Shared, start: int) -> None:
        """Global to shared; zeros for what lies outside."""
        size = self.tensor.dtype.itemsize
        values = np.zeros(self.inside.size, f"u{size}")
        values[self.inside] = memory.views[size][memory.locate(self.addresses, size) // size]
        shared.views[size][self._places(shared, start) // size] = values

    def taken(self, shared: Shared, start: int) -> Array:
        """What lies in shared memory."""
        size = self.tensor.dtype.itemsize
        values: Array = shared.views[size][self._places(shared, start) // size]
        return values

    def put(self, memory: Global, values: Array) -> None:
        """That to global memory; what lies outside is not written."""
        size = self.tensor.dtype.itemsize
        memory.views[size][memory.locate(self.addresses, size, write=True) // size] = values[self.inside]

    def add(self, memory: Global, values: Array) -> None:
        """That to what global memory holds."""
        if self.tensor.dtype is not DType.FP32:
            raise FaultError(f"unsupported: sums of {self.tensor.dtype.value} by the copy engine")
        cells = memory.locate(self.addresses, 4, write=True) // 4
        memory.views[4].view(np.float32)[cells] += values[self.inside].view(np.float32)


@lru_cache
def _check(tensor: MappedTensor) -> None:
    """What cuTensorMapEncodeTiled refuses."""
    inner = tensor.box[-1] * tensor.dtype.itemsize
    apart = (tensor.address, *tensor.strides[:-1])
    if any(difference % 16 or difference < 0 for difference in apart) or tensor.strides[-1] != tensor.dtype.itemsize:
        raise FaultError(f"no tensor map of {tensor.name}: address or strides {tensor.strides} are no multiples of 16")
    if inner % 16 or (tensor.swizzle and inner > tensor.swizzle) or not all(1 <= n <= 256 for n in tensor.box):
        raise FaultError(f"no tensor map of {tensor.name} with box {tensor.box} and a swizzle of {tensor.swizzle}")


def box_of(tensor: MappedTensor, innermost_first: tuple[int, ...]) -> Box:
    """The box at these coordinates, which may lie outside of the tensor in part, or whole."""
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
