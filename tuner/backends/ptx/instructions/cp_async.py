"""Non-bulk cp.async: copies from global to shared memory that land when a thread waits for them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from tuner.backends.ptx.instructions.access import addresses
from tuner.backends.ptx.instructions.mbarrier import Barriers, located
from tuner.backends.ptx.state.machine import Step
from tuner.backends.ptx.state.memory import FaultError
from tuner.backends.ptx.state.values import Array, Mask, UnsupportedError
from tuner.backends.ptx.state.wave import Wave
from tuner.backends.ptx.text.parse import Instruction


@dataclass(frozen=True)
class Copy:
    """The copies of one instruction: per lane its group, source, destination, and number of bytes that are not
    zero-filled.
    """

    lanes: Array
    groups: Array
    source: Array
    target: Array
    filled: Array
    nbytes: int
    number: int  # sequence number of the instruction

    def of(self, chosen: Array) -> "Copy":
        lanes, groups, source = self.lanes[chosen], self.groups[chosen], self.source[chosen]
        return Copy(lanes, groups, source, self.target[chosen], self.filled[chosen], self.nbytes, self.number)


class Copies:
    """The copies in flight of all lanes, in issue order."""

    def __init__(self, wave: Wave) -> None:
        self._wave = wave
        self.committed = np.zeros(wave.lanes, np.int64)
        self.flying: list[Copy] = []
        self.issued = 0  # number of instructions

    def wait(self, mask: Mask, newest: int) -> None:
        """Land the committed groups of the lanes, except for the `newest` groups of each lane."""
        waits = self._wave.running(mask)
        self._land_all(lambda copy: waits[copy.lanes] & (copy.groups < self.committed[copy.lanes] - newest))

    def land_before(self, lanes: Array, number: int) -> None:
        """Land the copies that `lanes` ([lanes] bool) issued before instruction `number`."""
        self._land_all(lambda copy: lanes[copy.lanes] & (copy.number < number))

    def _land_all(self, due: Callable[[Copy], Array]) -> None:
        still: list[Copy] = []
        for copy in self.flying:
            done = due(copy)
            self.land(copy.of(done))
            if not done.all():
                still.append(copy.of(~done))
        self.flying = still

    def land(self, copy: Copy) -> None:
        byte = np.arange(copy.nbytes)
        there = byte < copy.filled[:, None]
        copied = self._wave.memory.data[np.where(there, copy.source[:, None] + byte, 0)]
        self._wave.shared.data[copy.target[:, None] + byte] = np.where(there, copied, 0)
        if self._wave.unfenced:
            self._wave.unfenced.wrote(copy.target, copy.lanes)
        if self._wave.races:
            self._wave.races.writes(copy.target, copy.lanes, copy.nbytes)


def decode(wave: Wave, instruction: Instruction, at: int) -> Step:
    """Decode cp.async.{ca,cg}, commit_group, wait_group, wait_all and mbarrier.arrive."""
    kind = instruction.opcode[2]
    if kind == "mbarrier":
        return _arrive(wave, instruction)
    if kind == "commit_group":
        return lambda mask: _commit(wave, mask)
    if kind in ("wait_group", "wait_all"):
        newest = int(instruction.word(0), 0) if kind == "wait_group" else 0

        def waited(mask: Mask) -> None:
            if kind == "wait_all":
                _commit(wave, mask)
            wave.part(Copies).wait(mask, newest)

        return waited
    if kind not in ("ca", "cg"):
        raise UnsupportedError(instruction.name)
    return _copy(wave, instruction, at)


def _commit(wave: Wave, mask: Mask) -> None:
    wave.part(Copies).committed[wave.index(mask)] += 1


def _arrive(wave: Wave, instruction: Instruction) -> Step:
    """Arrive once the lane's copies have landed; without `.noinc` the phase expects one more arrival."""
    locate, counted = located(wave, instruction, 0), not instruction.has("noinc")

    def issued(mask: Mask) -> None:
        _, offsets = locate(mask)
        for offset in offsets if counted else ():
            wave.part(Barriers).at(int(offset)).pending += 1
        wave.land(partial(_arrived, wave, wave.running(mask).copy(), offsets, wave.part(Copies).issued))

    return issued


def _arrived(wave: Wave, lanes: Array, offsets: Array, number: int) -> None:
    wave.part(Copies).land_before(lanes, number)
    for offset in offsets:
        wave.part(Barriers).arrive(int(offset))


def _copy(wave: Wave, instruction: Instruction, _: int) -> Step:
    nbytes = int(instruction.word(2), 0)
    if nbytes not in ((16,) if instruction.has("cg") else (4, 8, 16)):
        raise UnsupportedError(instruction.text)
    target, source = (
        addresses(wave, instruction.address(0), "shared"),
        addresses(wave, instruction.address(1), "global"),
    )
    source_bytes = instruction.word(3) if len(instruction.operands) > 3 else str(nbytes)
    filled = np.broadcast_to(wave.registers.read(source_bytes, "u32"), wave.lanes)

    def issued(mask: Mask) -> None:
        lanes, sizes = wave.numbers(mask), filled[wave.index(mask)].astype(np.int64)
        if (sizes > nbytes).any():
            raise FaultError(f"cp.async of {nbytes} bytes fills {int(sizes.max())}")
        to = wave.shared.locate(target(lanes), lanes, nbytes)
        start, state = _sources(wave, source(lanes), sizes, nbytes), wave.part(Copies)
        copy = Copy(lanes, state.committed[lanes], start, to, sizes, nbytes, state.issued)
        state.issued += 1
        if wave.order == "first":
            state.land(copy)
        else:
            state.flying.append(copy)
            if wave.races:  # it may land from now on
                wave.races.writes(to, lanes, nbytes)

    return issued


def _sources(wave: Wave, addresses: Array, sizes: Array, nbytes: int) -> Array:
    """Return the source offsets; a copy of zero bytes reads nothing, and its address is not checked."""
    reads = sizes > 0
    if (addresses[reads] % np.uint64(nbytes)).any():
        raise FaultError(f"cp.async of {nbytes} bytes from an address that is not a multiple of {nbytes}")
    sources = np.zeros(len(addresses), np.int64)
    sources[reads] = wave.memory.locate(addresses[reads], 1)
    wave.memory.locate(addresses[reads] + (sizes[reads] - 1).astype(np.uint64), 1)
    return sources
