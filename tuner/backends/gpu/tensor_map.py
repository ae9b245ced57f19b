"""Tensor maps for a GPU, encoded by the driver's cuTensorMapEncodeTiled through ctypes.

cuda.bindings is not used: the driver requires a 64-byte aligned CUtensorMap, and the one in cuda.bindings is not
aligned (13.5; `python -c 'from cuda.bindings.driver import CUtensorMap as M; print([M().getPtr() % 64 for _ in
range(4)])'`).
"""

import ctypes
import struct
import threading
from functools import cache, lru_cache

import numpy as np

from tuner.errors import InputError, MachineError
from tuner.spec.tensor_map import MappedTensor

_BYTES, _ALIGNMENT = 128, 64  # size and alignment of a CUtensorMap
_MOST_DIMS, _DIM_BYTES = 5, 8 + 8 + 4 + 4  # size, stride, box, step
_FORMATS = [struct.Struct(f"={rank}Q{rank}Q{rank}I{rank}I") for rank in range(_MOST_DIMS + 1)]
_STEPS = (1,) * _MOST_DIMS
_OK, _INVALID_VALUE = 0, 1  # CUresult
# CUtensorMapDataType, CUtensorMapSwizzle, CUtensorMapL2promotion
_DTYPES = {"UINT8": 0, "UINT32": 2, "INT32": 3, "INT64": 5, "FLOAT16": 6, "FLOAT32": 7, "FLOAT64": 8, "BFLOAT16": 9}
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_NOT_INTERLEAVED, _PROMOTE_TO_128_BYTES, _ZERO_FILL = 0, 2, 0


@lru_cache(maxsize=4096)  # an arena requests the same tensors repeatedly
def encode(tensor: MappedTensor) -> np.void:
    """Return `encoded(tensor)`, cached."""
    return encoded(tensor)


def encoded(tensor: MappedTensor) -> np.void:
    """Encode the 128 bytes of a kernel argument. The calling thread needs a CUDA context.

    Raises InputError for a tensor that the driver rejects, and MachineError if the driver fails or is missing.
    """
    rank, desk = len(tensor.shape), _DESK
    at = desk.put(tensor)
    status = _driver().cuTensorMapEncodeTiled(
        desk.address,
        _DTYPES[tensor.dtype.tensor_map],
        rank,
        tensor.address,
        *at,
        _NOT_INTERLEAVED,
        _SWIZZLES[tensor.swizzle],
        _PROMOTE_TO_128_BYTES,
        _ZERO_FILL,
    )
    if status not in (_OK, _INVALID_VALUE):
        raise MachineError(
            f"no tensor map of {tensor.name}: the driver returned error {status}, as it does after a fault"
        )
    if status:
        raise _refused(tensor, f"error {status}")
    return np.void(bytes(desk.map))


class _Desk(threading.local):
    """Reused buffers of a thread for the driver's inputs and output; allocating them for every call is slow."""

    def __init__(self) -> None:
        self._room = ctypes.create_string_buffer(_BYTES + _ALIGNMENT + _MOST_DIMS * _DIM_BYTES)
        self.address = -(-ctypes.addressof(self._room) // _ALIGNMENT) * _ALIGNMENT
        self._given = self.address + _BYTES
        self._offset = self._given - ctypes.addressof(self._room)
        self.map = memoryview(self._room)[self._offset - _BYTES : self._offset]

    def put(self, tensor: MappedTensor) -> tuple[int, int, int, int]:
        """Store sizes, strides, box and steps, innermost first, and return their addresses.

        Raises InputError for values that the driver's types cannot hold.
        """
        rank = len(tensor.shape)
        strides = (*tensor.strides[-2::-1], 0)  # the innermost stride is not passed
        try:
            _FORMATS[rank].pack_into(
                self._room, self._offset, *tensor.shape[::-1], *strides, *tensor.box[::-1], *_STEPS[:rank]
            )
        except struct.error as error:
            raise _refused(tensor, str(error)) from error
        sizes = self._given
        return sizes, sizes + 8 * rank, sizes + 16 * rank, sizes + 20 * rank


_DESK = _Desk()


def _refused(tensor: MappedTensor, why: str) -> InputError:
    return InputError(
        f"{tensor.name}: the driver refuses a tensor map ({why}) of shape {list(tensor.shape)}, strides "
        f"{list(tensor.strides)} bytes: address and strides must be multiples of 16 bytes, none negative or 2^40: "
        "copy it first"
    )


@cache
def _driver() -> ctypes.CDLL:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise MachineError(f"no tensor map without a CUDA driver ({error})") from error
    pointer, number = ctypes.c_void_p, ctypes.c_uint32
    driver.cuTensorMapEncodeTiled.argtypes = (pointer, number, number, *[pointer] * 5, *[number] * 4)
    return driver
