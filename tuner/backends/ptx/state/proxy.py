"""Generic-proxy writes to shared memory that wgmma and bulk copies must not read before a fence."""

import numpy as np

from tuner.backends.ptx.state.memory import FaultError
from tuner.backends.ptx.state.values import Array

_CHUNK = 16  # in bytes: the widest store, and stores are aligned


class Unfenced:
    """The last unfenced writer of each 16 bytes of shared memory, until fence.proxy.async (PTX ISA, "Proxies")."""

    def __init__(self, nbytes: int) -> None:
        self._writer = np.zeros(nbytes // _CHUNK, np.int32)  # lane + 1

    def clear(self) -> None:
        self._writer[...] = 0

    def wrote(self, offsets: Array, lanes: Array) -> None:
        """Record stores of threads at these offsets."""
        self._writer[offsets // _CHUNK] = lanes + 1

    def landed(self, offset: int, nbytes: int) -> None:
        """Record that a bulk copy has overwritten the bytes."""
        self._writer[offset // _CHUNK : -(-(offset + nbytes) // _CHUNK)] = 0

    def fence(self, lanes: Array) -> None:
        """Record that `lanes` ([lanes] bool) have executed the fence."""
        fenced = np.concatenate([[False], lanes])
        self._writer[fenced[self._writer]] = 0

    def check(self, offsets: Array) -> None:
        """Raise FaultError if wgmma or a bulk copy reads unfenced data."""
        writers = self._writer[offsets // _CHUNK]
        if writers.any():
            lane = int(writers[writers > 0][0]) - 1
            raise FaultError(f"lane {lane} wrote this data without a fence.proxy.async")
