"""Instructions that compute predicates, or select values by them."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from tuner.compiler.sass.cta.operands import Line, Register
from tuner.compiler.sass.cta.registers import (
    LANES,
    TRUES,
    Mask,
    Registers,
)
from tuner.compiler.sass.cta.results import forget, put, signed


def plop3(line: Line, registers: Registers, mask: Mask | None) -> None:
    flags = [registers.flag(operand) for operand in line.operands[2:5]]
    tables = [operand.number for operand in line.operands[5:7]]
    for operand, table in zip(line.operands[:2], tables, strict=False):
        registers.write_flag(operand.register, _flags_of(table, flags), mask)


def _flags_of(table: int, flags: list[Mask | None]) -> Mask | None:
    """Return a function of three predicates; unknown if an unknown predicate decides the result."""
    results = []
    for choice in range(8):
        filled = [
            np.full(LANES, bool(choice >> position & 1)) if flag is None else flag
            for position, flag in enumerate(flags)
        ]
        index = filled[0] * 4 + filled[1] * 2 + filled[2] * 1
        results.append((table >> index & 1).astype(np.bool_))
    return results[0] if all((result == results[0]).all() for result in results) else None


def select(line: Line, registers: Registers, mask: Mask | None) -> None:
    a, b = (registers.value(operand) for operand in line.operands[1:3])
    chosen = registers.flag(line.operands[3])
    if chosen is None or a is None or b is None:
        return forget(line, registers, mask)
    put(line, registers, mask, np.where(chosen, a, b))
    return None


_COMPARISONS: Mapping[str, Callable[[NDArray[np.int64], NDArray[np.int64]], Mask]] = {
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
    "EQ": np.equal,
    "NE": np.not_equal,
}


def compare(line: Line, registers: Registers, mask: Mask | None) -> None:
    a, b = (registers.value(operand) for operand in line.operands[2:4])
    other = registers.flag(line.operands[4])
    lower = registers.flag(line.operands[5]) if line.has("EX") and len(line.operands) > 5 else TRUES
    if a is None or b is None or other is None or lower is None:
        return forget(line, registers, mask)
    relation = next(name for name in line.modifiers if name in _COMPARISONS)
    pair = (a.astype(np.int64), b.astype(np.int64)) if line.has("U32") else (signed(a), signed(b))
    holds = _COMPARISONS[relation](*pair)
    if line.has("EX"):
        equal = pair[0] == pair[1]
        holds = np.where(equal, lower, holds) if relation != "EQ" else equal & lower
    joined = {"OR": np.logical_or, "XOR": np.logical_xor}.get(
        next((name for name in line.modifiers if name in ("OR", "XOR")), ""), np.logical_and
    )
    registers.write_flag(line.operands[0].register, joined(holds, other), mask)
    registers.write_flag(line.operands[1].register, joined(~holds, other), mask)
    return None


def from_flags(line: Line, registers: Registers, mask: Mask | None) -> None:
    wanted = line.operands[-1].number
    result = np.zeros(LANES, np.uint32)
    for number in range(7):
        flag = registers.flags["P"][number]
        if wanted >> number & 1:
            if flag is None:
                return forget(line, registers, mask)
            result |= flag.astype(np.uint32) << np.uint32(number)
    put(line, registers, mask, result)
    return None


def to_flags(line: Line, registers: Registers, mask: Mask | None) -> None:
    value, wanted = registers.value(line.operands[1]), line.operands[-1].number
    for number in range(7):
        if wanted >> number & 1:
            flag = None if value is None else value >> np.uint32(number) & np.uint32(1) != 0
            registers.write_flag(Register("P", number), flag, mask)
