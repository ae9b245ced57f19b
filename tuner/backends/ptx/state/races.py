"""Races in shared memory: one warp writes a byte that another accesses, without a block barrier in between.

Only barriers of whole blocks are modelled, so kernels with any other synchronization are not checked.
"""

from typing import Any

import numpy as np

from tuner.backends.ptx.state.memory import FaultError
from tuner.backends.ptx.state.values import Array
from tuner.backends.ptx.state.wave import WARP, Wave
from tuner.backends.ptx.text.module import Entry
from tuner.backends.ptx.text.parse import Instruction

_SEVERAL = -1
_OTHER_ORDER = ("mbarrier", "wgmma", "tcgen05", "mapa", "nanosleep", "fence", "membar")
_POLLING = ("volatile", "acquire", "release", "relaxed", "acq_rel", "bulk", "cluster", "arrive")


def ordered_by_barriers(entry: Entry) -> bool:
    """Return whether block barriers are the only synchronization of an entry that uses shared memory."""
    return not any(_orders(instruction) for instruction in entry.code)


def _orders(instruction: Instruction) -> bool:
    name = instruction.opcode[0]
    if name in _OTHER_ORDER or instruction.has(*_POLLING):
        return True
    if name in ("atom", "red"):
        return not instruction.has("global")
    if name in ("bar", "barrier") and not instruction.has("warp"):
        operands = instruction.operands[1:-1] if instruction.has("red") else instruction.operands
        return len(operands) != 1 or operands[0] != "0"
    return False


class Races:
    """The last writer and reader of each byte of shared memory, and the barriers that its block had passed by then."""

    def __init__(self, wave: Wave) -> None:
        self._wave = wave
        self._passed = np.ones(wave.blocks, np.int32)
        nbytes = len(wave.shared.data)
        self._written, self._writer = np.zeros(nbytes, np.int32), np.zeros(nbytes, np.int32)
        self._read, self._reader = np.zeros(nbytes, np.int32), np.zeros(nbytes, np.int32)

    def begin(self) -> None:
        """Reset the state for the next blocks."""
        self._passed += 1

    def barrier(self, blocks: Array) -> None:
        """Record that these blocks have passed a barrier."""
        self._passed[blocks] += 1

    def reads(self, offsets: Array, lanes: Any, nbytes: int) -> None:
        """Record reads of `nbytes` each at `offsets`. Raises FaultError if another warp wrote since the last
        barrier.
        """
        cells, warp, now = self._cells(offsets, lanes, nbytes)
        if (raced := (self._written[cells] == now) & (self._writer[cells] != warp)).any():
            raise self._fault("reads", cells, raced, warp, self._writer, "wrote")
        others = (self._read[cells] == now) & (self._reader[cells] != warp)
        writers = np.where(others, _SEVERAL, warp)
        self._read[cells], self._reader[cells] = now, writers
        # The same instruction of another warp also reads it.
        self._reader[cells[self._reader[cells] != writers]] = _SEVERAL

    def writes(self, offsets: Array, lanes: Any, nbytes: int) -> None:
        """Record writes. Raises FaultError if another warp has accessed the bytes since the last barrier."""
        cells, warp, now = self._cells(offsets, lanes, nbytes)
        if (raced := (self._read[cells] == now) & (self._reader[cells] != warp)).any():
            raise self._fault("writes", cells, raced, warp, self._reader, "read")
        self._written[cells], self._writer[cells] = now, warp

    def _cells(self, offsets: Array, lanes: Any, nbytes: int) -> tuple[Array, Array, Array]:
        """Return [lanes, bytes] offsets, warps, and numbers of barriers passed."""
        number = np.arange(self._wave.lanes)[lanes]
        cells = offsets[:, None] + np.arange(nbytes)
        now = self._passed[self._wave.block_of[number]]
        return cells, *(np.broadcast_to(value[:, None], cells.shape) for value in (number // WARP, now))  # type: ignore[return-value]

    def _fault(self, verb: str, cells: Array, raced: Array, warp: Array, owner: Array, did: str) -> FaultError:
        byte, one, other = (int(column[raced][0]) for column in (cells, warp, owner[cells]))
        warps = self._wave.lanes_of_block // WARP
        whose = "several warps" if other == _SEVERAL else f"warp {other % warps}"
        offset = byte % self._wave.shared.stride
        what = f"warp {one % warps} {verb} byte {offset} of shared memory, which {whose} {did}"
        return FaultError(f"race: {what}, without a block barrier in between")
