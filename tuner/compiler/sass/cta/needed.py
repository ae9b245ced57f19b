"""Selects the instructions whose results decide branches, waits and copies."""

from collections.abc import Iterable, Sequence

from tuner.compiler.sass.cta.operands import Line, Register
from tuner.compiler.sass.cta.roles import destinations, sources
from tuner.compiler.sass.decode import successors

_BASE = {"R": 0, "UR": 256, "P": 320, "UP": 328}
# their results are data, so the instructions that compute them are not needed
_DATA = frozenset(
    {
        "HGMMA",
        "HMMA",
        "QGMMA",
        "IMMA",
        "FFMA",
        "FADD",
        "FMNMX",
        "FSEL",
        "FSETP",
        "F2FP",
        "HFMA2",
        "HADD2",
        "HMUL2",
        "VIMNMX3",
        "LDSM",
        "LDG",
        "MOVM",
        "HSETP2",
    }
)
_ROOTS = frozenset(
    {
        "BRA",
        "EXIT",
        "BAR",
        "SYNCS",
        "UTMALDG",
        "UTMASTG",
        "UTMAPF",
        "STS",
        "STL",
        "ELECT",
        "ATOMG",
        "WARPSYNC",
        "BSYNC",
        "BSSY",
        "UBLKCP",
    }
)


def needed(lines: Sequence[Line]) -> frozenset[int]:
    """Return the indices of instructions to evaluate, by liveness from branches, barriers, copies and shared-memory
    stores.
    """
    code = [line.instruction for line in lines]
    follows = [successors(code, index) for index in range(len(code))]
    before: list[list[int]] = [[] for _ in code]
    for index, after in enumerate(follows):
        for successor in after:
            if successor < len(code):
                before[successor].append(index)
    written = [_bits(destinations(line)) for line in lines]
    kills = [0 if line.guard else bits for line, bits in zip(lines, written, strict=True)]
    read = [0 if _is_data(line) else _bits(sources(line)) for line in lines]
    live = [0] * len(code)
    pending = list(range(len(code)))
    needed_indices = {index for index, line in enumerate(lines) if line.name in _ROOTS}
    while pending:
        index = pending.pop()
        out = 0
        for successor in follows[index]:
            if successor < len(code):
                out |= live[successor]
        if index in needed_indices or written[index] & out:
            needed_indices.add(index)
            out = out & ~kills[index] | read[index]
        if out | live[index] != live[index]:
            live[index] |= out
            pending += before[index]
    return frozenset(needed_indices)


def _is_data(line: Line) -> bool:
    return line.name in _DATA or (line.name == "MUFU" and not line.has("RCP"))


def _bits(registers: Iterable[Register]) -> int:
    total = 0
    for register in registers:
        total |= 1 << _BASE[register.file] + register.number
    return total
