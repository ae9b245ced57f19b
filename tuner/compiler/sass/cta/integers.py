"""Effects of integer instructions, and of the conversions in divisions, on registers."""

import numpy as np

from tuner.compiler.sass.cta.operands import Line, Operand, Register
from tuner.compiler.sass.cta.registers import LANES, LOW_WORD, ZEROS, Mask, Registers, Wide, Words
from tuner.compiler.sass.cta.results import forget, inputs_of, put, signed
from tuner.compiler.sass.cta.roles import fixed, is_flag, results


def mov(line: Line, registers: Registers, mask: Mask | None) -> None:
    put(line, registers, mask, registers.value(line.operands[1]))


def imad(line: Line, registers: Registers, mask: Mask | None) -> None:
    inputs = inputs_of(line)
    a, b = (registers.value(operand) for operand in inputs[:2])
    if line.has("WIDE") or line.has("HI"):
        c = _pair_of(registers, inputs[2])
        if a is None or b is None or c is None:
            return forget(line, registers, mask)
        if line.has("U32"):
            product = a.astype(np.uint64) * b.astype(np.uint64)
        else:
            product = (signed(a) * signed(b)).view(np.uint64)
        total = product + c
        high = (total >> np.uint64(32)).astype(np.uint32)
        result = line.operands[0].register
        if line.has("HI"):
            return registers.write(result, high, mask)
        registers.write(result, (total & LOW_WORD).astype(np.uint32), mask)
        if result is not None and not fixed(result):
            registers.write(Register(result.file, result.number + 1), high, mask)
        return None
    c32 = registers.value(inputs[2])
    if a is None or b is None or c32 is None:
        return forget(line, registers, mask)
    total32 = a * b + c32
    if line.has("X") and len(inputs) > 3:
        carry = registers.flag(inputs[3])
        if carry is None:
            return forget(line, registers, mask)
        total32 = total32 + carry.astype(np.uint32)
    put(line, registers, mask, total32.astype(np.uint32))
    return None


def _pair_of(registers: Registers, operand: Operand) -> Wide | None:
    if operand.register is not None and operand.register.file in ("R", "UR"):
        return registers.pair(operand.register)
    value = registers.value(operand)
    return None if value is None else value.astype(np.uint64)


def iadd3(line: Line, registers: Registers, mask: Mask | None) -> None:
    inputs = inputs_of(line)
    words = [operand for operand in inputs if not is_flag(operand)]
    carries = [operand for operand in inputs if is_flag(operand)]
    total: Wide = np.zeros(LANES, np.uint64)
    for operand in words:
        plain = registers.value(operand._replace(sign="" if operand.sign == "-" else operand.sign))
        if plain is None:
            return forget(line, registers, mask)
        wide = plain.astype(np.uint64)
        total = total + (np.uint64(1 << 32) - wide if operand.sign == "-" else wide)
    if line.has("X"):
        for operand in carries:
            carry = registers.flag(operand)
            if carry is None:
                return forget(line, registers, mask)
            total = total + carry.astype(np.uint64)
    flags = [operand for operand in line.operands[: results(line)] if is_flag(operand)]
    for operand in flags[:1]:
        registers.write_flag(operand.register, total >> np.uint64(32) != 0, mask)
    for operand in flags[1:]:
        registers.write_flag(operand.register, total >> np.uint64(33) != 0, mask)
    put(line, registers, mask, (total & LOW_WORD).astype(np.uint32))
    return None


def lea(line: Line, registers: Registers, mask: Mask | None) -> None:
    inputs = inputs_of(line)
    words = [operand for operand in inputs if not is_flag(operand)]
    values = [registers.value(operand) for operand in words]
    carries = [registers.flag(operand) for operand in inputs if is_flag(operand)]
    if any(value is None for value in values) or any(carry is None for carry in carries):
        return forget(line, registers, mask)
    computed = [value for value in values if value is not None]
    shift = np.uint64(words[-1].number & 63)
    if line.has("HI"):
        high = ZEROS
        if line.has("SX32"):
            high = (signed(computed[0]) >> 32).astype(np.uint32)
        elif len(computed) > 3:
            high = computed[2]
        whole = (computed[0].astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)) << shift
        term = whole >> np.uint64(32)
    else:
        term = computed[0].astype(np.uint64) << shift & LOW_WORD
    total = term + computed[1].astype(np.uint64)
    if line.has("X"):
        total = total + sum((carry.astype(np.uint64) for carry in carries if carry is not None), np.uint64(0))
    for operand in line.operands[: results(line)]:
        if is_flag(operand):
            registers.write_flag(operand.register, total >> np.uint64(32) != 0, mask)
    put(line, registers, mask, (total & LOW_WORD).astype(np.uint32))
    return None


def shift(line: Line, registers: Registers, mask: Mask | None) -> None:
    low, count, high = (registers.value(operand) for operand in inputs_of(line)[:3])
    if low is None or count is None or high is None:
        return forget(line, registers, mask)
    wide = line.has("U64") or line.has("S64")
    amount = (count & np.uint32(63) if line.has("W") else np.minimum(count, 63 if wide else 32)).astype(np.uint64)
    whole = low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)
    result: Words
    if line.has("L"):
        if wide:
            shifted = whole << amount
            result = (shifted >> np.uint64(32) if line.has("HI") else shifted & LOW_WORD).astype(np.uint32)
        else:
            source = high if line.has("HI") else low
            result = (source.astype(np.uint64) << amount & LOW_WORD).astype(np.uint32)
    elif line.has("S32") or line.has("S64"):
        if wide:
            shifted64 = whole.view(np.int64) >> amount.astype(np.int64)
            result = (shifted64 >> 32 if line.has("HI") else shifted64).astype(np.uint32)
        else:
            source = high if line.has("HI") else low
            result = (signed(source) >> amount.astype(np.int64)).astype(np.uint32)
    elif wide:
        shifted = whole >> amount
        result = (shifted >> np.uint64(32) if line.has("HI") else shifted & LOW_WORD).astype(np.uint32)
    else:
        source = high if line.has("HI") else low
        result = (source.astype(np.uint64) >> amount).astype(np.uint32)
    put(line, registers, mask, result)
    return None


def _lookup(table: int, a: Words, b: Words, c: Words) -> Words:
    """Apply a function of three bits, given by its eight values, to every bit of three words."""
    result = np.zeros(LANES, np.uint32)
    for index in range(8):
        if table >> index & 1:
            terms = (word if index >> bit & 1 else ~word for bit, word in ((2, a), (1, b), (0, c)))
            result |= np.bitwise_and.reduce(list(terms))
    return result


def lop3(line: Line, registers: Registers, mask: Mask | None) -> None:
    inputs = inputs_of(line)
    a, b, c = (registers.value(operand) for operand in inputs[:3])
    if a is None or b is None or c is None:
        return forget(line, registers, mask)
    result = _lookup(inputs[3].number, a, b, c)
    if is_flag(line.operands[0]):
        registers.write_flag(line.operands[0].register, result != 0, mask)
    put(line, registers, mask, result)
    return None


def prmt(line: Line, registers: Registers, mask: Mask | None) -> None:
    a, selector, c = (registers.value(operand) for operand in inputs_of(line)[:3])
    if a is None or selector is None or c is None:
        return forget(line, registers, mask)
    whole = a.astype(np.uint64) | c.astype(np.uint64) << np.uint64(32)
    result = np.zeros(LANES, np.uint64)
    for byte in range(4):
        nibble = (selector >> np.uint32(4 * byte) & np.uint32(7)).astype(np.uint64)
        result |= (whole >> (nibble * np.uint64(8)) & np.uint64(0xFF)) << np.uint64(8 * byte)
    put(line, registers, mask, result.astype(np.uint32))
    return None


def minimum(line: Line, registers: Registers, mask: Mask | None) -> None:
    inputs = inputs_of(line)
    values = [registers.value(operand) for operand in inputs if not is_flag(operand)]
    least = registers.flag(next(operand for operand in inputs if is_flag(operand)))
    if least is None or any(value is None for value in values):
        return forget(line, registers, mask)
    computed = [value for value in values if value is not None]
    if line.name == "VIADDMNMX":
        computed = [(computed[0] + computed[1]).astype(np.uint32), computed[2]]
    a, b = (value.astype(np.int64) if line.has("U32") else signed(value) for value in computed)
    put(line, registers, mask, np.where(least, np.minimum(a, b), np.maximum(a, b)).astype(np.uint32))
    return None


def absolute(line: Line, registers: Registers, mask: Mask | None) -> None:
    value = registers.value(line.operands[1])
    put(line, registers, mask, None if value is None else np.abs(value.view(np.int32)).view(np.uint32))


def count_bits(line: Line, registers: Registers, mask: Mask | None) -> None:
    """Execute POPC, or FLO, the position of the highest bit."""
    value = registers.value(line.operands[-1])
    if value is None or (line.name.endswith("FLO") and not line.has("U32")):
        return forget(line, registers, mask)
    if line.name.endswith("POPC"):
        return put(line, registers, mask, np.bitwise_count(value).astype(np.uint32))
    highest = np.floor(np.log2(np.maximum(value, 1).astype(np.float64))).astype(np.uint32)
    if line.has("SH"):
        highest = np.uint32(31) - highest
    return put(line, registers, mask, np.where(value == 0, np.uint32(0xFFFFFFFF), highest))


def float_of(line: Line, registers: Registers, mask: Mask | None) -> None:
    value = registers.value(line.operands[1])
    if value is None:
        return forget(line, registers, mask)
    exact = value.astype(np.float64) if line.has("U32") else signed(value).astype(np.float64)
    rounded = exact.astype(np.float32)
    if line.has("RP"):
        rounded = np.where(rounded < exact, np.nextafter(rounded, np.float32(np.inf)), rounded)
    put(line, registers, mask, rounded.astype(np.float32).view(np.uint32))
    return None


def integer_of(line: Line, registers: Registers, mask: Mask | None) -> None:
    value = registers.value(line.operands[1])
    if value is None or not line.has("TRUNC"):
        return forget(line, registers, mask)
    number = np.trunc(value.view(np.float32).astype(np.float64))
    result = np.clip(number, 0, 2**32 - 1).astype(np.uint64) if line.has("U32") else number.astype(np.int64)
    put(line, registers, mask, result.astype(np.uint32))
    return None


def reciprocal(line: Line, registers: Registers, mask: Mask | None) -> None:
    value = registers.value(line.operands[1])
    if value is None or not line.has("RCP"):
        return forget(line, registers, mask)
    with np.errstate(all="ignore"):
        put(line, registers, mask, (np.float32(1) / value.view(np.float32)).view(np.uint32))
    return None


def multiply(line: Line, registers: Registers, mask: Mask | None) -> None:
    a, b = (registers.value(operand) for operand in line.operands[1:3])
    if a is None or b is None:
        return forget(line, registers, mask)
    with np.errstate(all="ignore"):
        put(line, registers, mask, (a.view(np.float32) * b.view(np.float32)).view(np.uint32))
    return None
