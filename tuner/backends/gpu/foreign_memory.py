"""Memory and streams of another library, lent to CuPy for one call."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tuner.backends import gpu

_ITS_OWN = -1  # use the device that owns the address


def array(address: int, shape: tuple[int, ...], dtype: Any, device: int = _ITS_OWN) -> Any:
    """Return a dense CuPy array over device memory that the caller owns."""
    cupy = gpu.opened()
    if 0 in shape:
        return cupy.empty(shape, dtype)
    nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    memory = cupy.cuda.UnownedMemory(address, nbytes, None, device)
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))


def copy(into: Any, source: Any) -> None:
    """Copy one dense CuPy array into another of the same shape and dtype, on the current stream."""
    into.data.copy_from_device_async(source.data, source.nbytes)


@contextmanager
def current(stream: int, device: int) -> Iterator[None]:
    """Make CuPy use this device and this cudaStream_t inside the `with` block."""
    cuda = gpu.opened().cuda
    with cuda.Device(device), cuda.ExternalStream(stream):
        yield
