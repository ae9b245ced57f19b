"""Global memory with full-size address ranges and only a little data; used for counting, never for results."""

from collections.abc import Callable, Mapping

import numpy as np

from tuner.backends.ptx.state.memory import GLOBAL, Global
from tuner.backends.ptx.state.values import Array

_KEPT = 1 << 20  # bytes that are stored per buffer; accesses beyond wrap around
_APART = 1 << 20


class Sketch(Global):
    """Buffers at realistic addresses, each storing at most one megabyte, which repeats.

    `drawn` returns their contents as bytes by name and is called only when needed; until then they hold zeros. No
    access is rejected: an address beyond a buffer maps to the nearest lower buffer.
    """

    def __init__(self, sizes: Mapping[str, int], drawn: Callable[[], Mapping[str, Array]] = dict) -> None:
        kept = {name: max(256, -(-min(nbytes, _KEPT) // 256) * 256) for name, nbytes in sizes.items()}
        super().__init__(kept, frozenset(kept))
        self.data[...] = 0
        self._drawn = drawn
        spans = [-(-nbytes // _APART) * _APART + _APART for nbytes in sizes.values()]
        self._starts = np.cumsum([0, *spans[:-1]]) + _APART if spans else np.zeros(1, np.int64)
        self._names = {name: index for index, name in enumerate(sizes)}
        self._offsets = np.array([self._allocations[name].offset for name in sizes] or [0])
        self._kept = np.array([*kept.values()] or [256])

    def fill(self) -> None:
        """Fill the buffers with the drawn contents."""
        for name, content in self._drawn().items():
            allocation = self._allocations[name]
            some = content[: allocation.nbytes]
            self.data[allocation.offset : allocation.offset + len(some)] = some

    def address(self, name: str) -> int:
        return GLOBAL + int(self._starts[self._names[name]])

    def begin_launch(self) -> None:
        """Do nothing: accesses are not tracked."""

    def read_constant(self, offsets: Array, nbytes: int) -> None:
        """Do nothing: constant reads are not checked."""

    def locate(self, addresses: Array, nbytes: int, write: bool = False) -> Array:  # noqa: ARG002  (as Global's)
        at = addresses.astype(np.int64) - GLOBAL
        which = np.clip(np.searchsorted(self._starts, at, "right") - 1, 0, None)
        offsets: Array = self._offsets[which] + (at - self._starts[which]) % self._kept[which]
        return offsets & -nbytes
