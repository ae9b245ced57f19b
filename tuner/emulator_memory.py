"""Device memory for the emulator: arrays between guard pages, poisoned where nobody has written."""

import ctypes
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from tuner.emulator_runtime import runtime
from tuner.errors import MachineError

Array = npt.NDArray[Any]


class Buffer:
    """A global buffer of `nbytes`; its end, or else its begin, touches a guard page.

    `writable` buffers are the kernel's outputs and workspaces: a store to another is a finding. Until somebody writes,
    memory holds NaN, and reading it is a finding of checked mode unless `initialized`.
    """

    def __init__(
        self, name: str, nbytes: int, *, writable: bool = False, initialized: bool = True, guard_end: bool = True
    ) -> None:
        self.name, self.nbytes = name, nbytes
        found = runtime().emulator_allocate(nbytes, name.encode()[:31], writable, initialized, guard_end)
        if not found:
            raise MachineError(f"no memory for {name}: {nbytes} bytes")
        self.address = int(found)

    @classmethod
    def of(cls, name: str, array: Array, *, writable: bool = False) -> "Buffer":
        """A dense copy of `array` in device memory."""
        buffer = cls(name, array.nbytes, writable=writable)
        buffer.view(array.dtype, array.shape)[...] = array
        return buffer

    def view(self, dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> Array:
        """The buffer's memory as an array, dense unless `strides` (bytes) are given; valid until `close`."""
        memory = np.ctypeslib.as_array((ctypes.c_uint8 * self.nbytes).from_address(self.address))
        return np.ndarray(shape, dtype, memory, strides=strides)

    def close(self) -> None:
        if self.address:
            runtime().emulator_free(self.address)
            self.address = 0

    def __enter__(self) -> "Buffer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
