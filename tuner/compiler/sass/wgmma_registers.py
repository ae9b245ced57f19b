"""Finds instructions that overwrite registers of a wgmma in flight (sm_90a).

PTX forbids access to these registers before wgmma.wait_group, and the emulator enforces that. ptxas allocates the
registers, and before CUDA 13.3 it could reuse those of A while a product still read them.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import NamedTuple

from tuner.compiler.sass.decode import Instruction, successors
from tuner.compiler.sass.fields import (
    access_bits,
    bits,
    destination,
    ends_group,
    groups_left,
    hgmma_columns,
    matrices,
    opcode,
    waits_for_groups,
)

_RZ = 255
_A_IN_REGISTERS = 6  # form of an HGMMA
_MAX_GROUPS = 8  # distinguished in flight, so that a loop without a wait has finitely many states
_WIDE = 0x025  # IMAD.WIDE


class _State(NamedTuple):
    """Register sets as bit masks: of each group in flight, the oldest first, and of the uncommitted group."""

    groups: tuple[int, ...] = ()
    open: int = 0

    @property
    def in_use(self) -> int:
        return reduce(or_, self.groups, self.open)


def waits_for_wgmma(instruction: Instruction) -> bool:
    """Whether an instruction waits for groups of wgmma."""
    return instruction.mnemonic == "WARPGROUP" and waits_for_groups(instruction.word)


def written_registers(instruction: Instruction) -> int:
    """Bit mask of the registers that an instruction other than wgmma writes; 0 for unlisted instructions."""
    width = _WIDTHS.get(instruction.mnemonic)
    first = destination(instruction.word)
    return 0 if width is None or first == _RZ else _registers(first, width(instruction.word))


def overwrites_in_flight(code: Sequence[Instruction]) -> tuple[int, ...]:
    """Indices of instructions that may write a register of a wgmma in flight, on any path through the code."""
    writes = [written_registers(instruction) for instruction in code]
    pending = [(0, _State())]
    seen = set(pending)
    overwrites = set[int]()
    while pending:
        index, state = pending.pop()
        if writes[index] & state.in_use:
            overwrites.add(index)
        after = _after(code[index], state)
        new = {(following, after) for following in successors(code, index)} - seen
        seen |= new
        pending += new
    return tuple(sorted(overwrites))


def _after(instruction: Instruction, state: _State) -> _State:
    word = instruction.word
    if instruction.mnemonic == "HGMMA":
        both = state.open | _product(word)
        return _State((*state.groups, both)[-_MAX_GROUPS:]) if ends_group(word) else state._replace(open=both)
    if waits_for_wgmma(instruction):
        done = max(len(state.groups) - groups_left(word), 0)
        return state._replace(groups=state.groups[done:])
    return state


def _product(word: int) -> int:
    """Registers of an HGMMA: its accumulators, and A if it is in registers."""
    sums = _registers(destination(word), hgmma_columns(word) // 2)
    return sums | (_registers(bits(word, 24, 8), 4) if bits(word, 9, 3) == _A_IN_REGISTERS else 0)


def _registers(first: int, count: int) -> int:
    return (1 << count) - 1 << first


def _accessed(word: int) -> int:
    return max(access_bits(word) // 32, 1)


_ONE = """
FFMA FMUL FADD FMNMX HFMA2 HADD2 HMUL2 HMNMX2 MUFU FSEL F2FP F2I I2F I2FP FRND VIMNMX3 IADD3 VIADD LEA LOP3 SHF PRMT
SEL MOV IABS IMNMX VIMNMX VIADDMNMX P2R POPC FLO BREV S2R SHFL VOTE MATCH MOVM
"""
_WIDTHS: Mapping[str, Callable[[int], int]] = {
    **dict.fromkeys(_ONE.split(), lambda _: 1),
    **dict.fromkeys(("DFMA", "DMUL", "DADD", "CS2R"), lambda _: 2),
    **dict.fromkeys(("LDS", "LDG", "LDL", "LD", "LDC"), _accessed),
    "IMAD": lambda word: 2 if opcode(word) == _WIDE else 1,
    "LDSM": matrices,
    "HMMA": lambda _: 4,
}
