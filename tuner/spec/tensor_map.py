"""TMA tensor maps: their declaration in a plan, and the data that a device encodes into a kernel argument."""

from dataclasses import dataclass
from typing import NamedTuple

from tuner.spec.dtype import DType


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A TMA tensor map of the Argument `argument`: a kernel parameter `name`, passed by value.

    The map has the argument's dims and strides; `box` counts elements along each, outermost first. `swizzle` is the
    span in bytes over which 16-byte chunks of a box's rows are permuted: 0, 32, 64 or 128.
    """

    name: str
    argument: str
    box: tuple[int, ...]
    swizzle: int = 0


class MappedTensor(NamedTuple):
    """A tensor in device memory with the parameters of a tensor map, from which a device encodes the kernel
    argument.
    """

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
        """Return the mapped tensor; `strides` are in elements.

        The stride of a dim of size 1 is replaced: it is never used, but TMA validates it.
        """
        size, walked = dtype.itemsize, list(strides)
        for axis in reversed(range(len(shape) - 1)):
            if shape[axis] == 1:
                walked[axis] = -(-walked[axis + 1] * shape[axis + 1] * size // 16) * 16 // size
        return cls(map.argument, address, dtype, shape, tuple(size * stride for stride in walked), map.box, map.swizzle)
