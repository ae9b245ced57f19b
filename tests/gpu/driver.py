"""The CUDA driver through ctypes, as far as a launch with the emulator's own arguments needs it.

A kernel that hangs or faults takes its process along: nothing there works any more, and to free memory, or to end in
order, is to wait for the kernel. A process of pytest-xdist ends then, and another runs the tests that are left;
elsewhere these fail at once (conftest.py).
"""

import ctypes
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NoReturn

import numpy as np

from tuner.backends.gpu.tensor_map import encode
from tuner.spec.dtype import DType
from tuner.spec.tensor_map import MappedTensor

_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_NOT_READY = 600  # CUDA_ERROR_NOT_READY
_LIMIT_S = 10.0  # for a launch: all are small
lost: list[str] = []  # why this process is of no more use


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
        if not lost:
            call("cuMemFree_v2", self.address)


@contextmanager
def memory(array: np.ndarray) -> Iterator[Memory]:
    held = Memory(array)
    try:
        yield held
    finally:
        held.free()


def tensor_map(target: Memory, box: tuple[int, ...], swizzle: int) -> np.void:
    """The argument that maps dense device memory; `box` has its dims."""
    dtype = DType.of(target.dtype)
    assert dtype is not None
    strides = tuple(int(np.prod(target.shape[axis + 1 :])) * dtype.itemsize for axis in range(len(target.shape)))
    return encode(MappedTensor("tensor", target.address.value, dtype, target.shape, strides, box, swizzle))


def launch(
    image: bytes, entry: str, grid: Sequence[int], threads: int, smem_bytes: int, arguments: Sequence[Any]
) -> None:
    """Run a kernel to its end. Arguments: Memory, and NumPy scalars, of which tensor maps are some."""
    function = ctypes.c_void_p()
    call("cuModuleGetFunction", ctypes.byref(function), _module(image), entry.encode())
    call("cuFuncSetAttribute", function, ctypes.c_int(_DYNAMIC_SHARED), ctypes.c_int(smem_bytes))
    held = [_bytes_of(argument) for argument in arguments]
    pointers = (ctypes.c_void_p * max(len(held), 1))(*map(ctypes.addressof, held))
    sizes = [ctypes.c_uint(n) for n in (*grid, threads, 1, 1, smem_bytes)]
    call("cuLaunchKernel", function, *sizes, None, pointers, None)
    wait(entry)


def wait(entry: str) -> None:
    """Until the default stream is through; a query, unlike a wait, can be given up."""
    deadline = time.monotonic() + _LIMIT_S
    while (status := _library().cuStreamQuery(None)) == _NOT_READY and time.monotonic() < deadline:
        time.sleep(1e-4)
    if status:
        _lose(f"{entry} hangs" if status == _NOT_READY else f"{entry} ends with error {status}")


def _lose(why: str) -> NoReturn:
    lost.append(why)
    if "PYTEST_XDIST_WORKER" in os.environ:
        os._exit(1)
    raise RuntimeError(why)


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
