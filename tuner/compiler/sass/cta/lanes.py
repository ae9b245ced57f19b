"""Instructions that read special registers and constants, or the registers of other lanes."""

import numpy as np

from tuner.compiler.sass.cta.operands import Line, Register
from tuner.compiler.sass.cta.registers import LANE_OF, TRUES, WARP, WARP_OF, ZEROS, Mask, Registers, Words
from tuner.compiler.sass.cta.results import forget, put
from tuner.compiler.sass.cta.roles import destinations, is_flag, width


def load_constant(line: Line, registers: Registers, mask: Mask | None) -> None:
    first, operand = line.operands[0].register, line.operands[1]
    if first is None:
        return
    offset = operand.number & 0xFFFFFFFF
    for position, word in enumerate(registers.constant(offset, width(line))):
        target = Register(first.file, first.number + position)
        registers.write(target, None if operand.terms else word, mask)


def special(line: Line, registers: Registers, mask: Mask | None) -> None:
    name, first = line.operands[1].text, line.operands[0].register
    value = registers.special.get(name)
    for position in range(width(line)):
        if first is not None:
            target = Register(first.file, first.number + position)
            registers.write(target, ZEROS if position else value, mask)


def _first_lane(value: Words, mask: Mask | None) -> Words:
    """Return, for each warp, the value of its first lane in the mask, in all of its lanes."""
    active = TRUES if mask is None else mask
    rows, words = active.reshape(-1, WARP), value.reshape(-1, WARP)
    return np.repeat(words[np.arange(len(rows)), rows.argmax(1)], WARP)


def to_uniform(line: Line, registers: Registers, mask: Mask | None) -> None:
    value = registers.value(line.operands[-1])
    if value is None:
        return forget(line, registers, mask)
    uniform = _first_lane(value, mask)
    if is_flag(line.operands[0]):
        differs = uniform != value
        before = registers.flag(line.operands[0]) if line.has("OR") else None
        registers.write_flag(line.operands[0].register, differs if before is None else differs | before, mask)
    put(line, registers, _whole_warps(mask), uniform)
    return None


def _whole_warps(mask: Mask | None) -> Mask | None:
    """Return all lanes of the warps with any lane, for the value of a uniform register."""
    return None if mask is None else np.repeat(mask.reshape(-1, WARP).any(1), WARP)


def elect(line: Line, registers: Registers, mask: Mask | None) -> None:
    active = TRUES if mask is None else mask
    first = active.reshape(-1, WARP).argmax(1)
    registers.write_flag(line.operands[0].register, (np.repeat(first, WARP) == LANE_OF) & active, mask)
    put(line, registers, mask, None)


def vote(line: Line, registers: Registers, mask: Mask | None) -> None:
    flag = registers.flag(line.operands[-1])
    if flag is None:
        return forget(line, registers, mask)
    active = TRUES if mask is None else mask
    rows = flag.reshape(-1, WARP)
    counted = np.where(active.reshape(-1, WARP), rows, line.has("ALL"))
    result = np.repeat(counted.all(1) if line.has("ALL") else counted.any(1), WARP)
    for operand in line.operands[:-1]:
        if is_flag(operand):
            registers.write_flag(operand.register, result, _whole_warps(mask))
    bits = (counted.astype(np.uint64) << np.arange(WARP, dtype=np.uint64)).sum(1)
    put(line, registers, mask, np.repeat(bits, WARP).astype(np.uint32))
    return None


def shuffle(line: Line, registers: Registers, mask: Mask | None) -> None:
    value, by = (registers.value(operand) for operand in line.operands[2:4])
    if value is None or by is None:
        return forget(line, registers, mask)
    lane, step = LANE_OF, by.astype(np.int64)
    kind = next(name for name in line.modifiers if name in ("IDX", "BFLY", "UP", "DOWN"))
    source = {"IDX": step, "BFLY": lane ^ step, "UP": lane - step, "DOWN": lane + step}[kind]
    inside = (source >= 0) & (source < WARP)
    gathered = value[np.where(inside, source, lane) + WARP_OF * WARP]
    put(line, registers, mask, gathered)
    return None


def allocate(line: Line, registers: Registers, mask: Mask | None) -> None:
    """Execute setmaxnreg, which gets its registers at once."""
    for register in destinations(line):
        if register.file in ("P", "UP"):
            registers.write_flag(register, TRUES, mask)
