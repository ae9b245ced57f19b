"""The CUDA driver through ctypes, as far as a launch with the emulator's own arguments needs it."""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_ELEMENTS = {np.dtype(np.uint8): 0, np.dtype(np.int32): 3, np.dtype(np.float16): 6, np.dtype(np.float32): 7}
_SWIZZLES = (0, 32, 64, 128)  # CUtensorMapSwizzle, by the bytes that one spans


def call(name: str, *arguments: Any) -> None:
    """A driver function; raises RuntimeError with the driver's own words."""
    library = _library()
    status = getattr(library, name)(*arguments)
    if status:
        text = ctypes.c_char_p()
        library.cuGetErrorString(status, ctypes.byref(text))
        raise RuntimeError(f"{name}: {(text.value or b'error').decode()} ({status})")


class Memory:
    """Device memory that holds an array's bytes."""

    def __init__(self, array: np.ndarray) -> None:
        self.dtype, self.shape = array.dtype, array.shape
        self.address = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(self.address), ctypes.c_size_t(max(array.nbytes, 16)))
        dense = np.ascontiguousarray(array)
        call("cuMemcpyHtoD_v2", self.address, dense.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(dense.nbytes))

    def read(self) -> np.ndarray:
        array = np.empty(self.shape, self.dtype)
        call("cuMemcpyDtoH_v2", array.ctypes.data_as(ctypes.c_void_p), self.address, ctypes.c_size_t(array.nbytes))
        return array

    def free(self) -> None:
        call("cuMemFree_v2", self.address)


@contextmanager
def memory(array: np.ndarray) -> Iterator[Memory]:
    held = Memory(array)
    try:
        yield held
    finally:
        held.free()


def tensor_map(target: Memory, box: tuple[int, ...], swizzle: int) -> ctypes.Array[ctypes.c_char]:
    """A CUtensorMap of dense device memory; `box` has its dims."""
    rank, itemsize = len(target.shape), target.dtype.itemsize
    storage = ctypes.create_string_buffer(128 + 64)
    aligned = (ctypes.c_char * 128).from_buffer(storage, -ctypes.addressof(storage) % 64)
    sizes = target.shape[::-1]
    strides = [itemsize * int(np.prod(sizes[:axis])) for axis in range(1, rank)]
    call(
        "cuTensorMapEncodeTiled",
        aligned,
        ctypes.c_int(_ELEMENTS[target.dtype]),
        ctypes.c_uint32(rank),
        target.address,
        (ctypes.c_uint64 * rank)(*sizes),
        (ctypes.c_uint64 * max(rank - 1, 1))(*strides),
        (ctypes.c_uint32 * rank)(*box[::-1]),
        (ctypes.c_uint32 * rank)(*[1] * rank),
        ctypes.c_int(0),  # no interleave
        ctypes.c_int(_SWIZZLES.index(swizzle)),
        ctypes.c_int(0),  # no promotion in L2
        ctypes.c_int(0),  # zeros outside
    )
    return aligned


def launch(
    image: bytes, entry: str, grid: Sequence[int], threads: int, smem_bytes: int, arguments: Sequence[Any]
) -> None:
    """Run a kernel to its end. Arguments: Memory, NumPy scalars, and tensor maps."""
    function = ctypes.c_void_p()
    call("cuModuleGetFunction", ctypes.byref(function), _module(image), entry.encode())
    call("cuFuncSetAttribute", function, ctypes.c_int(_DYNAMIC_SHARED), ctypes.c_int(smem_bytes))
    held = [_bytes_of(argument) for argument in arguments]
    pointers = (ctypes.c_void_p * max(len(held), 1))(*map(ctypes.addressof, held))
    sizes = [ctypes.c_uint(n) for n in (*grid, threads, 1, 1, smem_bytes)]
    call("cuLaunchKernel", function, *sizes, None, pointers, None)
    call("cuCtxSynchronize")


def _bytes_of(argument: Any) -> Any:
    if isinstance(argument, Memory):
        return argument.address
    if isinstance(argument, np.generic):
        return ctypes.create_string_buffer(argument.tobytes(), argument.itemsize)
    return argument


@cache
def _module(image: bytes) -> ctypes.c_void_p:
    module = ctypes.c_void_p()
    call("cuModuleLoadData", ctypes.byref(module), image)
    return module


@cache
def _library() -> ctypes.CDLL:
    """The driver, with the first device's primary context current."""
    library = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    steps: list[tuple[Callable[..., int], tuple[Any, ...]]] = [
        (library.cuInit, (0,)),
        (library.cuDeviceGet, (ctypes.byref(device), 0)),
        (library.cuDevicePrimaryCtxRetain, (ctypes.byref(context), device)),
        (library.cuCtxSetCurrent, (context,)),
    ]
    for function, arguments in steps:
        if status := function(*arguments):
            raise RuntimeError(f"{function.__name__} failed with status {status}")
    return library
