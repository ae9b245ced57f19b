"""Where a copy of the copy engine goes, and which barrier counts its bytes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tuner.ptx.access import addresses
from tuner.ptx.memory import FaultError
from tuner.ptx.parse import Instruction
from tuner.ptx.proxy import Unfenced
from tuner.ptx.values import Array, UnsupportedError
from tuner.ptx.wave import Wave


def fences(wave: Wave) -> Unfenced:
    assert wave.unfenced, "a launch makes it for an entry that uses the copy engine"
    return wave.unfenced


def of_lane(value: Array, lane: int) -> int:
    return int(value if value.ndim == 0 else value[lane])


Kind = Literal["load", "store", "between"]


def kind_of(instruction: Instruction) -> Kind:
    """By the memories that it names: first where to."""
    to, source = [each for each in instruction.opcode if each.startswith("shared::") or each == "global"][:2]
    phase = instruction.has("mbarrier::complete_tx::bytes")
    if phase and source == "global":
        return "load"
    if phase and (to, source) == ("shared::cluster", "shared::cta"):
        return "between"
    if (to, source) == ("global", "shared::cta") and instruction.has("bulk_group"):
        return "store"
    raise UnsupportedError(".".join(instruction.opcode))


def targets_of(wave: Wave, instruction: Instruction, barrier: int) -> "Targets":
    """Of a copy to operand 0, whose barrier is operand `barrier`; after it come the blocks of a multicast."""
    multicast = instruction.has("multicast::cluster")
    return Targets(
        wave,
        addresses(wave, instruction.address(0), "shared"),
        addresses(wave, instruction.address(barrier), "shared"),
        wave.registers.read(instruction.word(barrier + 1), "u16") if multicast else None,
    )


@dataclass(frozen=True)
class Targets:
    """Where a load goes: a place and a barrier in a block, or at the same addresses in all blocks of `blocks`."""

    wave: Wave
    place: Callable[[object], Array]
    barrier: Callable[[object], Array]
    blocks: Array | None

    def of(self, lane: int, nbytes: int) -> Iterator[tuple[int, int]]:
        """(offset of the place, offset of the barrier) in shared memory."""
        shared, lanes = self.wave.shared, np.array([lane])
        place, barrier = self.place(lanes), self.barrier(lanes)
        ends = place + np.uint32(nbytes - 1)
        if (place & 15).any():
            raise FaultError("a bulk copy to a shared address that is no multiple of 16")
        ranks = [0] if self.blocks is None else self._ranks(of_lane(self.blocks, lane))
        for rank in ranks:
            moved = np.uint32(rank << 24)
            shared.locate(ends | moved, lanes, 1)
            yield int(shared.locate(place | moved, lanes, 1)[0]), int(shared.locate(barrier | moved, lanes, 8)[0])

    def _ranks(self, bits: int) -> list[int]:
        if bits >> self.wave.cluster:
            raise FaultError(f"a multicast to blocks {bits:#x}: the cluster has {self.wave.cluster}")
        return [rank + 1 for rank in range(self.wave.cluster) if bits >> rank & 1]
