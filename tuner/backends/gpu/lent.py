"""Memory and streams of another library, lent to CuPy for the length of a call."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tuner.backends import gpu

_ITS_OWN = -1  # the device that an address is on


def array(address: int, shape: tuple[int, ...], dtype: Any, device: int = _ITS_OWN) -> Any:
    """A dense CuPy array of device memory that its caller owns, and keeps."""
    cupy = gpu.opened()
    if 0 in shape:
        return cupy.empty(shape, dtype)
    nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    memory = cupy.cuda.UnownedMemory(address, nbytes, None, device)
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))


def copy(into: Any, source: Any) -> None:
    """Copy one dense CuPy array into another of its shape and dtype, on the current stream."""
    into.data.copy_from_device_async(source.data, source.nbytes)


@contextmanager
def current(stream: int, device: int) -> Iterator[None]:
    """CuPy works on this device and on this cudaStream_t."""
    cuda = gpu.opened().cuda
    with cuda.Device(device), cuda.ExternalStream(stream):
        yield
