"""Destinations of the results of an instruction."""

import numpy as np
from numpy.typing import NDArray

from tuner.compiler.sass.cta.operands import Line, Operand
from tuner.compiler.sass.cta.registers import Mask, Registers, Words
from tuner.compiler.sass.cta.roles import destinations, results


def forget(line: Line, registers: Registers, mask: Mask | None) -> None:
    """Mark all results as unknown."""
    for register in destinations(line):
        if register.file in ("R", "UR"):
            registers.write(register, None, mask)
        else:
            registers.write_flag(register, None, mask)


def put(line: Line, registers: Registers, mask: Mask | None, value: Words | None) -> None:
    """Write the first result that is not a predicate."""
    for operand in line.operands:
        if operand.register is not None and operand.register.file in ("R", "UR"):
            registers.write(operand.register, value, mask)
            return


def inputs_of(line: Line) -> tuple[Operand, ...]:
    """Return the operands that are not results."""
    return line.operands[results(line) :]


def signed(word: Words) -> NDArray[np.int64]:
    """Return the 32 bits as a signed integer."""
    return word.view(np.int32).astype(np.int64)
