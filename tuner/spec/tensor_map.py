"""How TMA sees tensors: what a plan says of a map, and what a device encodes into a kernel's argument."""

from dataclasses import dataclass
from typing import NamedTuple

from tuner.spec.dtype import DType


@dataclass(frozen=True, slots=True)
class TensorMap:
    """How TMA copies boxes of a tensor: a kernel parameter `name`, passed by value, for the Argument `argument`.

    The map has the argument's dims and strides; `box` counts elements along each, outermost first. `swizzle` is the
    span in bytes over which 16-byte chunks of a box's rows are permuted: 0, 32, 64 or 128.
    """

    name: str
    argument: str
    box: tuple[int, ...]
    swizzle: int = 0


class MappedTensor(NamedTuple):
    """A tensor in device memory as a tensor map describes it: what a device encodes into the parameter's bytes."""

    name: str
    address: int
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in bytes
    box: tuple[int, ...]
    swizzle: int

    @classmethod
    def of(
        cls, map: TensorMap, dtype: DType, address: int, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> "MappedTensor":
        """`strides` are in elements. That of a dim of size 1 is replaced: nobody walks it, but TMA judges it."""
        size, walked = dtype.itemsize, list(strides)
        for axis in reversed(range(len(shape) - 1)):
            if shape[axis] == 1:
                walked[axis] = -(-walked[axis + 1] * shape[axis + 1] * size // 16) * 16 // size
        return cls(map.argument, address, dtype, shape, tuple(size * stride for stride in walked), map.box, map.swizzle)
