"""Registers of wgmma in flight, and who writes them before the wait (sm_90a).

PTX lets nobody touch them before wgmma.wait_group, and the emulator holds kernels to that. Which registers hold what
ptxas decides, and until CUDA 13.3 it could give those of A to other values while a product still read them.
"""

from collections.abc import Callable, Mapping, Sequence
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

_NOBODY = 255  # RZ
_BY_REGISTERS = 6  # the form of an HGMMA whose A lies in registers
_MOST_GROUPS = 8  # in flight that are told apart: in a loop without a wait they would never end
_WIDE = 0x025  # IMAD.WIDE


class _State(NamedTuple):
    """Registers as the bits of a number: of each group in flight, the oldest first, and of the group that is open."""

    groups: tuple[int, ...] = ()
    open: int = 0

    @property
    def taken(self) -> int:
        taken = self.open
        for each in self.groups:
            taken |= each
        return taken


def waits(each: Instruction) -> bool:
    """Whether it waits for groups of wgmma."""
    return each.mnemonic == "WARPGROUP" and waits_for_groups(each.word)


def written(each: Instruction) -> int:
    """Registers that an instruction other than wgmma writes, as bits; 0 for what is not known to write one."""
    width = _WIDTHS.get(each.mnemonic)
    first = destination(each.word)
    return 0 if width is None or first == _NOBODY else _registers(first, width(each.word))


def overwritten(code: Sequence[Instruction]) -> tuple[int, ...]:
    """Indices of instructions that may write a register of a wgmma in flight, on whatever way control comes to them."""
    writes = [written(each) for each in code]
    found, seen = set[int](), {(0, _State())}
    pending = list(seen)
    while pending:
        index, state = pending.pop()
        if writes[index] & state.taken:
            found.add(index)
        after = _after(code[index], state)
        for following in successors(code, index):
            if (following, after) not in seen:
                seen.add((following, after))
                pending.append((following, after))
    return tuple(sorted(found))


def _after(each: Instruction, state: _State) -> _State:
    if each.mnemonic == "HGMMA":
        both = state.open | _product(each)
        return _State((*state.groups, both)[-_MOST_GROUPS:]) if ends_group(each.word) else state._replace(open=both)
    if waits(each):
        done = max(len(state.groups) - groups_left(each.word), 0)
        return state._replace(groups=state.groups[done:])
    return state


def _product(hgmma: Instruction) -> int:
    """Its accumulators, and A where that lies in registers."""
    word = hgmma.word
    sums = _registers(destination(word), hgmma_columns(word) // 2)
    return sums | (_registers(bits(word, 24, 8), 4) if bits(word, 9, 3) == _BY_REGISTERS else 0)


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
