"""Destinations of bulk copies and the barriers that count their bytes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tuner.backends.ptx.instructions.access import addresses
from tuner.backends.ptx.state.memory import FaultError
from tuner.backends.ptx.state.proxy import Unfenced
from tuner.backends.ptx.state.values import Array, UnsupportedError
from tuner.backends.ptx.state.wave import Wave
from tuner.backends.ptx.text.parse import Instruction


def fences(wave: Wave) -> Unfenced:
    assert wave.unfenced, "set for entries that use bulk copies"
    return wave.unfenced


def of_lane(value: Array, lane: int) -> int:
    return int(value if value.ndim == 0 else value[lane])


Kind = Literal["load", "store", "between"]


def kind_of(instruction: Instruction) -> Kind:
    """Return the kind of a copy, from its destination and source state spaces."""
    to, source = [part for part in instruction.opcode if part.startswith("shared::") or part == "global"][:2]
    phase = instruction.has("mbarrier::complete_tx::bytes")
    if phase and source == "global":
        return "load"
    if phase and (to, source) == ("shared::cluster", "shared::cta"):
        return "between"
    if (to, source) == ("global", "shared::cta") and instruction.has("bulk_group"):
        return "store"
    raise UnsupportedError(instruction.name)


def targets_of(wave: Wave, instruction: Instruction, barrier: int) -> "Targets":
    """Return the targets of a copy to operand 0 with barrier operand `barrier`; the next operand is the
    multicast mask.
    """
    multicast = instruction.has("multicast::cluster")
    return Targets(
        wave,
        addresses(wave, instruction.address(0), "shared"),
        addresses(wave, instruction.address(barrier), "shared"),
        wave.registers.read(instruction.word(barrier + 1), "u16") if multicast else None,
    )


@dataclass(frozen=True)
class Targets:
    """The destination of a load: an address and a barrier in a block, or the same addresses in all blocks of
    `blocks`.
    """

    wave: Wave
    offset: Callable[[object], Array]
    barrier: Callable[[object], Array]
    blocks: Array | None

    def of(self, lane: int, nbytes: int) -> tuple[tuple[int, int], ...]:
        """Return (destination offset, barrier offset) pairs in shared memory."""
        shared, lanes = self.wave.shared, np.array([lane])
        address = self.offset(lanes)
        if (address & 15).any():
            raise FaultError("a bulk copy to a shared address that is not a multiple of 16")
        shared.locate(address + np.uint32(nbytes - 1), lanes, 1)
        offset, barrier = int(shared.locate(address, lanes, 1)[0]), int(shared.locate(self.barrier(lanes), lanes, 8)[0])
        if self.blocks is None:
            return ((offset, barrier),)
        bits = of_lane(self.blocks, lane)
        return tuple(zip(shared.in_blocks(offset, bits), shared.in_blocks(barrier, bits), strict=True))
