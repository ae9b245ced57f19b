"""Known words of shared and local memory: values that the warps of a block exchange, and spilled registers."""

import numpy as np

from tuner.compiler.sass.cta.operands import UNIFORM_ZERO, ZERO, Line, Operand, Register
from tuner.compiler.sass.cta.registers import LANES, Mask
from tuner.compiler.sass.cta.state import Context

INSIDE = 0xFFFFFF  # number of address bits within shared memory; the bits above are the rank in the cluster


def access_shared(context: Context, line: Line, active: Mask) -> None:
    """Execute LDS or STS of the active lanes."""
    registers, cells = context.group.registers, context.group.cta.shared
    address_operand, value_operand = _operands(line)
    address = registers.address(address_operand)
    for offset, register in _words(line, value_operand):
        if not active.any():
            return
        lanes = np.flatnonzero(active)
        if line.name == "STS":
            word = registers.word(register)
            if address is not None and word is not None:
                cells.update(((int(address[lane]) & INSIDE) + offset, int(word[lane])) for lane in lanes)
            continue
        locations = [] if address is None else [(int(address[lane]) & INSIDE) + offset for lane in lanes]
        if not locations or any(location not in cells for location in locations):
            registers.write(register, None, active)
            continue
        values = np.zeros(LANES, np.uint32)
        values[lanes] = [cells[location] for location in locations]
        registers.write(register, values, active)


def access_local(context: Context, line: Line, active: Mask) -> None:
    """Execute LDL or STL of the active lanes, which spill the same registers."""
    registers, cells = context.group.registers, context.group.local
    address_operand, value_operand = _operands(line)
    address = registers.address(address_operand)
    if address is None or not active.any():
        return
    for offset, register in _words(line, value_operand):
        location = int(address[int(active.argmax())]) + offset
        if line.name == "LDL":
            registers.write(register, cells.get(location), active)
            continue
        word, before = registers.word(register), cells.get(location)
        cells[location] = word if word is None or before is None else np.where(active, word, before)


def _operands(line: Line) -> tuple[Operand, Operand]:
    """Return the address and the value."""
    first, second = line.operands[:2]
    return (second, first) if line.name in ("LDS", "LDL") else (first, second)


def _words(line: Line, operand: Operand) -> list[tuple[int, Register]]:
    """Return offsets in bytes, with the register of each word."""
    register = operand.register
    if register is None:
        return []
    count = 4 if line.has("128") else 2 if line.has("64") else 1
    zero = register.number == (ZERO if register.file == "R" else UNIFORM_ZERO)
    return [(4 * i, register if zero else Register(register.file, register.number + i)) for i in range(count)]
