"""What threads wrote to shared memory, and wgmma and the copy engine may not see before a fence."""

import numpy as np

from tuner.backends.ptx.state.memory import FaultError
from tuner.backends.ptx.state.values import Array

_CHUNK = 16  # bytes: no store is wider, and each is aligned


class Unfenced:
    """Who wrote each 16 bytes of shared memory and has not executed fence.proxy.async since (PTX ISA, "Proxies")."""

    def __init__(self, nbytes: int) -> None:
        self._writer = np.zeros(nbytes // _CHUNK, np.int32)  # lane + 1

    def clear(self) -> None:
        self._writer[...] = 0

    def wrote(self, offsets: Array, lanes: Array) -> None:
        """Stores of threads, each at its offset."""
        self._writer[offsets // _CHUNK] = lanes + 1

    def landed(self, offset: int, nbytes: int) -> None:
        """The copy engine has written over what threads wrote."""
        self._writer[offset // _CHUNK : -(-(offset + nbytes) // _CHUNK)] = 0

    def fence(self, lanes: Array) -> None:
        """`lanes` [lanes] bool have executed the fence."""
        fenced = np.concatenate([[False], lanes])
        self._writer[fenced[self._writer]] = 0

    def check(self, offsets: Array) -> None:
        """Raises FaultError where wgmma or the copy engine reads what is not fenced."""
        writers = self._writer[offsets // _CHUNK]
        if writers.any():
            lane = int(writers[writers > 0][0]) - 1
            raise FaultError(f"lane {lane} wrote what is read here without its fence.proxy.async")
