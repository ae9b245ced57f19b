"""Tensor maps for a GPU: cuTensorMapEncodeTiled of the driver, through ctypes.

Not through cuda.bindings: the driver writes to an address that is a multiple of 64, which the CUtensorMap there is not
(13.5; `python -c 'from cuda.bindings.driver import CUtensorMap as M; print([M().getPtr() % 64 for _ in range(4)])'`).
"""

import ctypes
from functools import cache, lru_cache

import numpy as np

from tuner.errors import InputError, MachineError
from tuner.spec.dtype import DType
from tuner.spec.tensor_map import MappedTensor

_BYTES, _ALIGNMENT = 128, 64  # of a CUtensorMap
_OK, _INVALID_VALUE = 0, 1  # CUresult
# CUtensorMapDataType, CUtensorMapSwizzle, CUtensorMapL2promotion
_DTYPES = {DType.FP16: 6, DType.FP32: 7, DType.BF16: 9, DType.INT32: 3, DType.INT64: 5}
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_NOT_INTERLEAVED, _PROMOTE_TO_128_BYTES, _ZERO_FILL = 0, 2, 0


@lru_cache(maxsize=4096)  # an application calls with the same tensors again and again
def encode(tensor: MappedTensor) -> np.void:
    """The 128 bytes of a kernel's argument, in a thread with a CUDA context.

    Raises InputError for a tensor that the driver refuses, MachineError where it answers none or is not there.
    """
    rank, inner_first = len(tensor.shape), slice(None, None, -1)
    room = (ctypes.c_uint8 * (_BYTES + _ALIGNMENT))()
    place = -(-ctypes.addressof(room) // _ALIGNMENT) * _ALIGNMENT
    status = _driver().cuTensorMapEncodeTiled(
        ctypes.c_void_p(place),
        _DTYPES[tensor.dtype],
        ctypes.c_uint32(rank),
        ctypes.c_void_p(tensor.address),
        (ctypes.c_uint64 * rank)(*tensor.shape[inner_first]),
        (ctypes.c_uint64 * max(rank - 1, 1))(*tensor.strides[:-1][inner_first]),
        (ctypes.c_uint32 * rank)(*tensor.box[inner_first]),
        (ctypes.c_uint32 * rank)(*[1] * rank),
        _NOT_INTERLEAVED,
        _SWIZZLES[tensor.swizzle],
        _PROMOTE_TO_128_BYTES,
        _ZERO_FILL,
    )
    if status not in (_OK, _INVALID_VALUE):
        raise MachineError(f"no tensor map of {tensor.name}: the driver answers with error {status}, as after a fault")
    if status:
        raise InputError(
            f"{tensor.name}: the driver refuses a tensor map (error {status}) of shape {list(tensor.shape)}, strides "
            f"{list(tensor.strides)} bytes: address and strides must be multiples of 16 bytes, none negative or 2^40: "
            "copy it first"
        )
    return np.void(ctypes.string_at(place, _BYTES))


@cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise MachineError(f"no tensor map without a CUDA driver ({error})") from error
