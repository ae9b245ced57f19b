"""The registers of a warpgroup's lanes.

A register contains one value per lane, or None if it is unknown, such as the result of arithmetic on data.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tuner.compiler.sass.cta.operands import TRUE, UNIFORM_ZERO, ZERO, Operand, Register
from tuner.errors import UsageError

LANES, WARP = 128, 32
Words = NDArray[np.uint32]
Mask = NDArray[np.bool_]
Wide = NDArray[np.uint64]
LOW_WORD = np.uint64(0xFFFFFFFF)
ZEROS: Words = np.zeros(LANES, np.uint32)
TRUES: Mask = np.ones(LANES, np.bool_)
WARP_OF = np.arange(LANES) // WARP
LANE_OF = np.arange(LANES) % WARP


class Registers:
    """The registers of the lanes of one warpgroup."""

    def __init__(self, constants: bytes, special: Mapping[str, Words]) -> None:
        self.words: dict[str, list[Words | None]] = {"R": [ZEROS] * 256, "UR": [ZEROS] * 64}
        false_flags: list[Mask | None] = [~TRUES] * 7
        self.flags = {"P": [*false_flags, TRUES], "UP": [*false_flags, TRUES]}
        self.constants = constants
        self.special = special

    def write(self, register: Register | None, value: Words | None, mask: Mask | None) -> None:
        """Set a register in the lanes of a mask; None: in all lanes."""
        if register is None or register.number == (ZERO if register.file == "R" else UNIFORM_ZERO):
            return
        file = self.words[register.file]
        old = file[register.number]
        if value is not None and mask is not None:
            value = np.where(mask, value, ZEROS if old is None else old).astype(np.uint32, copy=False)
        file[register.number] = value

    def write_flag(self, register: Register | None, value: Mask | None, mask: Mask | None) -> None:
        if register is None or register.number == TRUE:
            return
        file = self.flags[register.file]
        old = file[register.number]
        if value is not None and mask is not None:
            value = np.where(mask, value, ~TRUES if old is None else old)
        file[register.number] = value

    def word(self, register: Register) -> Words | None:
        return self.words[register.file][register.number]

    def pair(self, register: Register) -> Wide | None:
        """Return a register and the next one as 64 bits."""
        low = self.word(register)
        zero = register.number == (ZERO if register.file == "R" else UNIFORM_ZERO)
        high = low if zero else self.word(Register(register.file, register.number + 1))
        if low is None or high is None:
            return None
        return low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)

    def constant(self, offset: int, count: int = 1) -> list[Words]:
        data = self.constants[offset : offset + 4 * count].ljust(4 * count, b"\0")
        return [np.full(LANES, word, np.uint32) for word in np.frombuffer(data, np.uint32)]

    def flag(self, operand: Operand) -> Mask | None:
        """Return the value of a predicate operand."""
        if operand.register is None:
            raise UsageError(f"{operand.text} is no predicate")
        value = self.flags[operand.register.file][operand.register.number]
        return ~value if value is not None and operand.sign == "!" else value

    def value(self, operand: Operand) -> Words | None:
        """Return the 32 bits of an operand with its sign applied."""
        word: Words | None
        if operand.kind == "register" and operand.register is not None:
            word = self.word(operand.register)
        elif operand.kind == "constant":
            if operand.terms:
                return None
            word = self.constant(operand.number & 0xFFFFFFFF)[0]
        elif operand.kind == "number":
            return np.full(LANES, operand.number & 0xFFFFFFFF, np.uint32)
        else:
            return None
        if word is None:
            return None
        if operand.absolute:
            word = np.abs(word.view(np.int32)).view(np.uint32)
        if operand.sign == "-":
            return (np.uint32(0) - word).astype(np.uint32)
        return ~word if operand.sign == "~" else word

    def address(self, operand: Operand) -> Wide | None:
        """Return the value of an address operand, in 64 bits if it is a pair of registers."""
        total = np.full(LANES, operand.number & 0xFFFFFFFFFFFFFFFF, np.uint64)
        for position, register in enumerate(operand.terms):
            term = self.pair(register) if operand.wide and position == 0 else self.word(register)
            if term is None:
                return None
            total = total + term.astype(np.uint64)
        return total
