"""Registers of wgmma in flight, and who writes them before the wait (sm_90a).

PTX lets nobody touch them before wgmma.wait_group, and the emulator holds kernels to that. Which registers hold what
ptxas decides, and until CUDA 13.3 it could give those of A to other values while a product still read them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tuner.sass import Instruction

_NO_BARRIER = 7  # of HGMMA's field for the barrier that the last one of a group names
_NOBODY = 255  # RZ
_BY_REGISTERS = 6  # the form of an HGMMA whose A lies in registers
_MOST_GROUPS = 8  # in flight that are told apart: in a loop without a wait they would never end
_WIDE = 0x025  # IMAD.WIDE
_BITS = (8, 8, 16, 16, 32, 64, 128, 128)

Successors = Callable[[Sequence[Instruction], int], list[int]]


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


def ends_group(hgmma: Instruction) -> bool:
    return hgmma.word >> 84 & 7 != _NO_BARRIER


def waits(each: Instruction) -> bool:
    """Whether it waits for groups of wgmma: WARPGROUP.DEPBAR, not .ARRIVE."""
    return each.mnemonic == "WARPGROUP" and bool(each.word >> 47 & 1)


def left_by(wait: Instruction) -> int:
    """Groups that a wait leaves in flight."""
    return wait.word >> 72 & 0x3F


def written(each: Instruction) -> int:
    """Registers that an instruction other than wgmma writes, as bits; 0 for what is not known to write one."""
    width = _WIDTHS.get(each.mnemonic)
    first = each.word >> 16 & 0xFF
    return 0 if width is None or first == _NOBODY else _registers(first, width(each.word))


def overwritten(code: Sequence[Instruction], successors: Successors) -> tuple[int, ...]:
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
        return _State((*state.groups, both)[-_MOST_GROUPS:]) if ends_group(each) else state._replace(open=both)
    if waits(each):
        done = max(len(state.groups) - left_by(each), 0)
        return state._replace(groups=state.groups[done:])
    return state


def _product(hgmma: Instruction) -> int:
    """Its accumulators, and A where that lies in registers."""
    word = hgmma.word
    sums = _registers(word >> 16 & 0xFF, 4 * ((word >> 53 & 0x1F) + 1))
    return sums | (_registers(word >> 24 & 0xFF, 4) if word >> 9 & 7 == _BY_REGISTERS else 0)


def _registers(first: int, count: int) -> int:
    return (1 << count) - 1 << first


def _accessed(word: int) -> int:
    return max(_BITS[word >> 73 & 7] // 32, 1)


_ONE = """
FFMA FMUL FADD FMNMX HFMA2 HADD2 HMUL2 HMNMX2 MUFU FSEL F2FP F2I I2F I2FP FRND VIMNMX3 IADD3 VIADD LEA LOP3 SHF PRMT
SEL MOV IABS IMNMX VIMNMX VIADDMNMX P2R POPC FLO BREV S2R SHFL VOTE MATCH MOVM
"""
_WIDTHS: Mapping[str, Callable[[int], int]] = {
    **dict.fromkeys(_ONE.split(), lambda _: 1),
    **dict.fromkeys(("DFMA", "DMUL", "DADD", "CS2R"), lambda _: 2),
    **dict.fromkeys(("LDS", "LDG", "LDL", "LD", "LDC"), _accessed),
    "IMAD": lambda word: 2 if word & 0x1FF == _WIDE else 1,
    "LDSM": lambda word: 1 << (word >> 72 & 3),
    "HMMA": lambda _: 4,
}
