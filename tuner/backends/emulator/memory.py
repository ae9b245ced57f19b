"""Device memory of the emulator: arrays between guard pages; uninitialised bytes are poisoned."""

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from tuner.backends.emulator.runtime import EXCLUSIVE, runtime
from tuner.base.self_closing import Closing
from tuner.errors import InputError, MachineError
from tuner.spec.dtype import DType
from tuner.spec.tensor_map import MappedTensor

Array = npt.NDArray[Any]


class EncodedTensorMap(ctypes.Structure):
    """The emulator's replacement for a CUtensorMap, in the kernel argument's 128 bytes."""

    _fields_ = [
        ("magic", ctypes.c_uint64),
        ("base", ctypes.c_uint64),
        ("rank", ctypes.c_int32),
        ("element_bytes", ctypes.c_int32),
        ("swizzle", ctypes.c_int32),
        ("unused", ctypes.c_int32),
        ("size", ctypes.c_int32 * 5),
        ("box", ctypes.c_int32 * 5),
        ("stride", ctypes.c_int64 * 5),
        ("padding", ctypes.c_uint8 * 16),
    ]


SWIZZLES = (0, 32, 64, 128)  # span of a swizzle in bytes
_STRIDES = 1 << 40  # upper bound of strides in bytes


def tensor_map(buffer: "Buffer", array: Array, box: tuple[int, ...], swizzle: int = 0) -> EncodedTensorMap:
    """Return the tensor map of `array`, a view of `buffer`; `box` has the array's dims, `swizzle` is one of SWIZZLES.

    Raises InputError for tensors that cuTensorMapEncodeTiled rejects.
    """
    address, dtype = array.__array_interface__["data"][0], DType.of(array.dtype)
    assert dtype is not None, "a tensor map needs a listed dtype"
    return _encoded(MappedTensor(buffer.name, address, dtype, array.shape, array.strides, box, swizzle))


def encode(tensor: MappedTensor) -> np.void:
    """Encode the 128 bytes of a kernel argument for a tensor in the emulator's memory.

    Raises InputError for tensors that cuTensorMapEncodeTiled rejects.
    """
    return np.void(bytes(_encoded(tensor)))


def _encoded(tensor: MappedTensor) -> EncodedTensorMap:
    shape, strides, box = tensor.shape, tensor.strides, tensor.box
    if reason := _refusal(tensor):
        raise InputError(f"no tensor map of {tensor.name} {list(shape)} with box {list(box)}: {reason}")
    magic, kind, itemsize = int.from_bytes(b"tnsormap", "little"), SWIZZLES.index(tensor.swizzle), tensor.dtype.itemsize
    return EncodedTensorMap(magic, tensor.address, len(shape), itemsize, kind, 0, shape[::-1], box[::-1], strides[::-1])


def _refusal(tensor: MappedTensor) -> str:
    shape, strides, box, swizzle = tensor.shape, tensor.strides, tensor.box, tensor.swizzle
    if not 1 <= len(shape) <= 5 or len(box) != len(shape) or not all(1 <= n <= 256 for n in box):
        return "1 to 5 dims, each of the box 1 to 256"
    if min(shape) < 1:
        return "each dim of the tensor has 1 or more"
    inner = box[-1] * tensor.dtype.itemsize
    if inner % 16 or strides[-1] != tensor.dtype.itemsize:
        return "the innermost dim must be contiguous, its box a multiple of 16 bytes"
    if tensor.address % 16 or any(stride % 16 or not 0 <= stride < _STRIDES for stride in strides[:-1]):
        return "address and strides must be multiples of 16 bytes, no stride negative or 2^40 bytes: copy it first"
    if swizzle not in SWIZZLES or (swizzle and inner > swizzle):
        return f"a row of the box has {inner} bytes, the swizzle spans {swizzle} (known: {SWIZZLES})"
    return ""


class Buffer(Closing):
    """A global buffer of `nbytes` whose end, or else whose start, borders on a guard page.

    `writable` buffers are the kernel's outputs, workspaces and updated arguments; a store to any other buffer is a
    finding. Memory holds NaN until it is written, and reading it in checked mode is a finding unless `initialized`.
    """

    def __init__(
        self, name: str, nbytes: int, *, writable: bool = False, initialized: bool = True, guard_end: bool = True
    ) -> None:
        self.name, self.nbytes = name, nbytes
        with EXCLUSIVE:
            address = runtime().emulator_allocate(nbytes, name.encode()[:31], writable, initialized, guard_end)
        if not address:
            raise MachineError(f"no memory for {name}: {nbytes} bytes")
        self.address = int(address)

    @classmethod
    def of(cls, name: str, array: Array, *, writable: bool = False) -> "Buffer":
        """Return a dense copy of `array` in device memory."""
        buffer = cls(name, array.nbytes, writable=writable)
        buffer.view(array.dtype, array.shape)[...] = array
        return buffer

    def view(self, dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> Array:
        """Return the buffer's memory as an array, dense unless `strides` (bytes) are given; valid until `close`."""
        memory = np.ctypeslib.as_array((ctypes.c_uint8 * self.nbytes).from_address(self.address))
        return np.ndarray(shape, dtype, memory, strides=strides)

    def close(self) -> None:
        with EXCLUSIVE:
            address, self.address = self.address, 0
            if address:
                runtime().emulator_free(address)
