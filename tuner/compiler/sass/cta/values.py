"""Registers of a warpgroup's lanes, and what integer and predicate instructions do to them.

A register holds a value a lane, or None where nothing is known of it: what arithmetic on data leaves.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from tuner.compiler.sass.cta.operands import TRUE, UNIFORM_ZERO, ZERO, Line, Operand, Register
from tuner.errors import UsageError

LANES, WARP = 128, 32
_COPY = 8  # registers from the first one that a copy's address names: addresses, barrier and coordinates
Words = NDArray[np.uint32]
Mask = NDArray[np.bool_]
Wide = NDArray[np.uint64]
_ALL = np.uint64(0xFFFFFFFF)
_ZEROS: Words = np.zeros(LANES, np.uint32)
_TRUES: Mask = np.ones(LANES, np.bool_)
_WARP_OF = np.arange(LANES) // WARP
LANE_OF = np.arange(LANES) % WARP


class Registers:
    """The registers of the lanes of one warpgroup."""

    def __init__(self, constants: bytes, special: Mapping[str, Words]) -> None:
        self.words: dict[str, list[Words | None]] = {"R": [_ZEROS] * 256, "UR": [_ZEROS] * 64}
        false_flags: list[Mask | None] = [~_TRUES] * 7
        self.flags = {"P": [*false_flags, _TRUES], "UP": [*false_flags, _TRUES]}
        self.constants = constants
        self.special = special

    def write(self, register: Register | None, value: Words | None, mask: Mask | None) -> None:
        """For the lanes of a mask, all where it is None."""
        if register is None or register.number == (ZERO if register.file == "R" else UNIFORM_ZERO):
            return
        file = self.words[register.file]
        old = file[register.number]
        if value is not None and mask is not None:
            value = np.where(mask, value, _ZEROS if old is None else old).astype(np.uint32, copy=False)
        file[register.number] = value

    def write_flag(self, register: Register | None, value: Mask | None, mask: Mask | None) -> None:
        if register is None or register.number == TRUE:
            return
        file = self.flags[register.file]
        old = file[register.number]
        if value is not None and mask is not None:
            value = np.where(mask, value, ~_TRUES if old is None else old)
        file[register.number] = value

    def word(self, register: Register) -> Words | None:
        return self.words[register.file][register.number]

    def pair(self, register: Register) -> Wide | None:
        """A register and the next one, as 64 bits."""
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
        """The value of a predicate operand."""
        if operand.register is None:
            raise UsageError(f"{operand.text} is no predicate")
        value = self.flags[operand.register.file][operand.register.number]
        return ~value if value is not None and operand.sign == "!" else value

    def value(self, operand: Operand) -> Words | None:
        """The 32 bits of an operand, with its sign applied."""
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
        """The value of an address operand, whole if it is a pair of registers."""
        total = np.full(LANES, operand.number & 0xFFFFFFFFFFFFFFFF, np.uint64)
        for position, register in enumerate(operand.terms):
            term = self.pair(register) if operand.wide and position == 0 else self.word(register)
            if term is None:
                return None
            total = total + term.astype(np.uint64)
        return total


Evaluate = Callable[[Line, Registers, Mask | None], None]


def evaluator(line: Line) -> Evaluate:
    """What computes the results of an instruction; unknown ones where it is no integer arithmetic."""
    return _TABLE.get(line.name, _unknown)


def destinations(line: Line) -> tuple[Register, ...]:
    """Registers and predicates that an instruction writes."""
    registers = [operand.register for operand in line.operands[: _results(line)] if operand.register is not None]
    if line.name == "R2P":
        return _masked(line)
    wide = _width(line)
    first = next((register for register in registers if register.file in ("R", "UR")), None)
    extra = [Register(first.file, first.number + i) for i in range(1, wide)] if first else []
    return tuple(register for register in (*registers, *extra) if not _fixed(register))


def sources(line: Line) -> tuple[Register, ...]:
    """Registers and predicates that an instruction reads, its guard included."""
    registers = [] if line.guard is None else [line.guard]
    if line.name == "P2R":
        registers += _masked(line)
    start = _results(line)
    for position, operand in enumerate(line.operands):
        if operand.kind in ("address", "constant"):
            for term in operand.terms:
                registers += [Register(term.file, term.number + i) for i in range(_COPY if "TMA" in line.name else 2)]
        elif position >= start and operand.register is not None:
            register = operand.register
            registers += [Register(register.file, register.number + i) for i in range(_source_width(line, register))]
    return tuple(register for register in registers if not _fixed(register))


def _source_width(line: Line, register: Register) -> int:
    if register.file not in ("R", "UR") or _fixed(register):
        return 1
    if line.name in ("STS", "STL", "STG"):
        return 4 if line.has("128") else 2 if line.has("64") else 1
    return 2 if line.has("WIDE") or line.has("HI") or line.name == "SYNCS" else 1


def _masked(line: Line) -> tuple[Register, ...]:
    """The predicates that the last operand of P2R and R2P selects."""
    return tuple(Register("P", number) for number in range(7) if line.operands[-1].number >> number & 1)


def _fixed(register: Register) -> bool:
    return register.number == {"R": ZERO, "UR": UNIFORM_ZERO}.get(register.file, TRUE)


def _results(line: Line) -> int:
    """How many of the first operands are written."""
    if line.name in _NO_RESULT:
        return 0
    if line.name in ("ISETP", "UISETP", "FSETP", "PLOP3", "UPLOP3"):
        return 2
    if line.name in ("VOTE", "VOTEU"):
        return len(line.operands) - 1
    count = 0
    for operand in line.operands:
        count += 1
        if operand.register is None or operand.register.file in ("R", "UR"):
            break  # predicates may stand before the result
    if line.name in _CARRIES and len(line.operands) > count:
        while count < len(line.operands) and _is_flag(line.operands[count]) and not line.operands[count].sign:
            count += 1
    return count


def _is_flag(operand: Operand) -> bool:
    return operand.register is not None and operand.register.file in ("P", "UP")


_CARRIES = frozenset({"IADD3", "UIADD3", "LEA", "ULEA", "IMAD", "UIMAD"})
_NO_RESULT = frozenset(
    {
        "BRA",
        "EXIT",
        "BAR",
        "STS",
        "STG",
        "STL",
        "STSM",
        "UTMALDG",
        "UTMASTG",
        "UTMAPF",
        "UTMACCTL",
        "BSSY",
        "BSYNC",
        "WARPSYNC",
        "NOP",
        "MEMBAR",
        "FENCE",
        "DEPBAR",
    }
)


def _width(line: Line) -> int:
    if line.name in ("LDC", "ULDC", "LDCU", "LDS", "LDL", "LDG"):
        return 4 if line.has("128") else 2 if line.has("64") else 1
    if line.name == "CS2R":
        return 1 if line.has("32") else 2
    return 2 if line.has("WIDE") else 1


def _unknown(line: Line, registers: Registers, mask: Mask | None) -> None:
    for register in destinations(line):
        if register.file in ("R", "UR"):
            registers.write(register, None, mask)
        else:
            registers.write_flag(register, None, mask)


def _put(line: Line, registers: Registers, mask: Mask | None, value: Words | None) -> None:
    """To the first result that is no predicate."""
    for operand in line.operands:
        if operand.register is not None and operand.register.file in ("R", "UR"):
            registers.write(operand.register, value, mask)
            return


def _inputs(line: Line) -> tuple[Operand, ...]:
    return line.operands[_results(line) :]


def _signed(word: Words) -> NDArray[np.int64]:
    return word.view(np.int32).astype(np.int64)


def _mov(line: Line, registers: Registers, mask: Mask | None) -> None:
    _put(line, registers, mask, registers.value(line.operands[1]))


def _imad(line: Line, registers: Registers, mask: Mask | None) -> None:
    inputs = _inputs(line)
    a, b = (registers.value(operand) for operand in inputs[:2])
    if line.has("WIDE") or line.has("HI"):
        c = _pair_of(registers, inputs[2])
        if a is None or b is None or c is None:
            return _unknown(line, registers, mask)
        if line.has("U32"):
            product = a.astype(np.uint64) * b.astype(np.uint64)
        else:
            product = (_signed(a) * _signed(b)).view(np.uint64)
        total = product + c
        high = (total >> np.uint64(32)).astype(np.uint32)
        result = line.operands[0].register
        if line.has("HI"):
            return registers.write(result, high, mask)
        registers.write(result, (total & _ALL).astype(np.uint32), mask)
        if result is not None and not _fixed(result):
            registers.write(Register(result.file, result.number + 1), high, mask)
        return None
    c32 = registers.value(inputs[2])
    if a is None or b is None or c32 is None:
        return _unknown(line, registers, mask)
    total32 = a * b + c32
    if line.has("X") and len(inputs) > 3:
        carry = registers.flag(inputs[3])
        if carry is None:
            return _unknown(line, registers, mask)
        total32 = total32 + carry.astype(np.uint32)
    _put(line, registers, mask, total32.astype(np.uint32))
    return None


def _pair_of(registers: Registers, operand: Operand) -> Wide | None:
    if operand.register is not None and operand.register.file in ("R", "UR"):
        return registers.pair(operand.register)
    value = registers.value(operand)
    return None if value is None else value.astype(np.uint64)


def _iadd3(line: Line, registers: Registers, mask: Mask | None) -> None:
    inputs = _inputs(line)
    words = [operand for operand in inputs if not _is_flag(operand)]
    carries = [operand for operand in inputs if _is_flag(operand)]
    total: Wide = np.zeros(LANES, np.uint64)
    for operand in words:
        plain = registers.value(operand._replace(sign="" if operand.sign == "-" else operand.sign))
        if plain is None:
            return _unknown(line, registers, mask)
        wide = plain.astype(np.uint64)
        total = total + (np.uint64(1 << 32) - wide if operand.sign == "-" else wide)
    if line.has("X"):
        for operand in carries:
            carry = registers.flag(operand)
            if carry is None:
                return _unknown(line, registers, mask)
            total = total + carry.astype(np.uint64)
    flags = [operand for operand in line.operands[: _results(line)] if _is_flag(operand)]
    for operand in flags[:1]:
        registers.write_flag(operand.register, total >> np.uint64(32) != 0, mask)
    for operand in flags[1:]:
        registers.write_flag(operand.register, total >> np.uint64(33) != 0, mask)
    _put(line, registers, mask, (total & _ALL).astype(np.uint32))
    return None


def _lea(line: Line, registers: Registers, mask: Mask | None) -> None:
    inputs = _inputs(line)
    words = [operand for operand in inputs if not _is_flag(operand)]
    values = [registers.value(operand) for operand in words]
    carries = [registers.flag(operand) for operand in inputs if _is_flag(operand)]
    if any(value is None for value in values) or any(carry is None for carry in carries):
        return _unknown(line, registers, mask)
    known = [value for value in values if value is not None]
    shift = np.uint64(words[-1].number & 63)
    if line.has("HI"):
        high = _ZEROS
        if line.has("SX32"):
            high = (_signed(known[0]) >> 32).astype(np.uint32)
        elif len(known) > 3:
            high = known[2]
        whole = (known[0].astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)) << shift
        term = whole >> np.uint64(32)
    else:
        term = known[0].astype(np.uint64) << shift & _ALL
    total = term + known[1].astype(np.uint64)
    if line.has("X"):
        total = total + sum((carry.astype(np.uint64) for carry in carries if carry is not None), np.uint64(0))
    for operand in line.operands[: _results(line)]:
        if _is_flag(operand):
            registers.write_flag(operand.register, total >> np.uint64(32) != 0, mask)
    _put(line, registers, mask, (total & _ALL).astype(np.uint32))
    return None


def _shift(line: Line, registers: Registers, mask: Mask | None) -> None:
    low, count, high = (registers.value(operand) for operand in _inputs(line)[:3])
    if low is None or count is None or high is None:
        return _unknown(line, registers, mask)
    wide = line.has("U64") or line.has("S64")
    amount = (count & np.uint32(63) if line.has("W") else np.minimum(count, 63 if wide else 32)).astype(np.uint64)
    whole = low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)
    result: Words
    if line.has("L"):
        if wide:
            shifted = whole << amount
            result = (shifted >> np.uint64(32) if line.has("HI") else shifted & _ALL).astype(np.uint32)
        else:
            source = high if line.has("HI") else low
            result = (source.astype(np.uint64) << amount & _ALL).astype(np.uint32)
    elif line.has("S32") or line.has("S64"):
        if wide:
            shifted64 = whole.view(np.int64) >> amount.astype(np.int64)
            result = (shifted64 >> 32 if line.has("HI") else shifted64).astype(np.uint32)
        else:
            source = high if line.has("HI") else low
            result = (_signed(source) >> amount.astype(np.int64)).astype(np.uint32)
    elif wide:
        shifted = whole >> amount
        result = (shifted >> np.uint64(32) if line.has("HI") else shifted & _ALL).astype(np.uint32)
    else:
        source = high if line.has("HI") else low
        result = (source.astype(np.uint64) >> amount).astype(np.uint32)
    _put(line, registers, mask, result)
    return None


def _lookup(table: int, a: Words, b: Words, c: Words) -> Words:
    """A function of three bits, given by its eight values, on every bit of three words."""
    result = np.zeros(LANES, np.uint32)
    for index in range(8):
        if table >> index & 1:
            terms = (word if index >> bit & 1 else ~word for bit, word in ((2, a), (1, b), (0, c)))
            result |= np.bitwise_and.reduce(list(terms))
    return result


def _lop3(line: Line, registers: Registers, mask: Mask | None) -> None:
    inputs = _inputs(line)
    a, b, c = (registers.value(operand) for operand in inputs[:3])
    if a is None or b is None or c is None:
        return _unknown(line, registers, mask)
    result = _lookup(inputs[3].number, a, b, c)
    if _is_flag(line.operands[0]):
        registers.write_flag(line.operands[0].register, result != 0, mask)
    _put(line, registers, mask, result)
    return None


def _plop3(line: Line, registers: Registers, mask: Mask | None) -> None:
    flags = [registers.flag(operand) for operand in line.operands[2:5]]
    tables = [operand.number for operand in line.operands[5:7]]
    for operand, table in zip(line.operands[:2], tables, strict=False):
        registers.write_flag(operand.register, _flags_of(table, flags), mask)


def _flags_of(table: int, flags: list[Mask | None]) -> Mask | None:
    """A function of three predicates; unknown where an unknown one decides."""
    results = []
    for choice in range(8):
        filled = [
            np.full(LANES, bool(choice >> position & 1)) if flag is None else flag
            for position, flag in enumerate(flags)
        ]
        index = filled[0] * 4 + filled[1] * 2 + filled[2] * 1
        results.append((table >> index & 1).astype(np.bool_))
    return results[0] if all((result == results[0]).all() for result in results) else None


def _prmt(line: Line, registers: Registers, mask: Mask | None) -> None:
    a, selector, c = (registers.value(operand) for operand in _inputs(line)[:3])
    if a is None or selector is None or c is None:
        return _unknown(line, registers, mask)
    whole = a.astype(np.uint64) | c.astype(np.uint64) << np.uint64(32)
    result = np.zeros(LANES, np.uint64)
    for byte in range(4):
        nibble = (selector >> np.uint32(4 * byte) & np.uint32(7)).astype(np.uint64)
        result |= (whole >> (nibble * np.uint64(8)) & np.uint64(0xFF)) << np.uint64(8 * byte)
    _put(line, registers, mask, result.astype(np.uint32))
    return None


def _select(line: Line, registers: Registers, mask: Mask | None) -> None:
    a, b = (registers.value(operand) for operand in line.operands[1:3])
    chosen = registers.flag(line.operands[3])
    if chosen is None or a is None or b is None:
        return _unknown(line, registers, mask)
    _put(line, registers, mask, np.where(chosen, a, b))
    return None


_COMPARISONS: Mapping[str, Callable[[NDArray[np.int64], NDArray[np.int64]], Mask]] = {
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
    "EQ": np.equal,
    "NE": np.not_equal,
}


def _compare(line: Line, registers: Registers, mask: Mask | None) -> None:
    a, b = (registers.value(operand) for operand in line.operands[2:4])
    other = registers.flag(line.operands[4])
    lower = registers.flag(line.operands[5]) if line.has("EX") and len(line.operands) > 5 else _TRUES
    if a is None or b is None or other is None or lower is None:
        return _unknown(line, registers, mask)
    relation = next(name for name in line.modifiers if name in _COMPARISONS)
    pair = (a.astype(np.int64), b.astype(np.int64)) if line.has("U32") else (_signed(a), _signed(b))
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


def _minimum(line: Line, registers: Registers, mask: Mask | None) -> None:
    inputs = _inputs(line)
    values = [registers.value(operand) for operand in inputs if not _is_flag(operand)]
    least = registers.flag(next(operand for operand in inputs if _is_flag(operand)))
    if least is None or any(value is None for value in values):
        return _unknown(line, registers, mask)
    known = [value for value in values if value is not None]
    if line.name == "VIADDMNMX":
        known = [(known[0] + known[1]).astype(np.uint32), known[2]]
    a, b = (value.astype(np.int64) if line.has("U32") else _signed(value) for value in known)
    _put(line, registers, mask, np.where(least, np.minimum(a, b), np.maximum(a, b)).astype(np.uint32))
    return None


def _absolute(line: Line, registers: Registers, mask: Mask | None) -> None:
    value = registers.value(line.operands[1])
    _put(line, registers, mask, None if value is None else np.abs(value.view(np.int32)).view(np.uint32))


def _count_bits(line: Line, registers: Registers, mask: Mask | None) -> None:
    """POPC, or the place of the highest bit: FLO."""
    value = registers.value(line.operands[-1])
    if value is None or (line.name.endswith("FLO") and not line.has("U32")):
        return _unknown(line, registers, mask)
    if line.name.endswith("POPC"):
        return _put(line, registers, mask, np.bitwise_count(value).astype(np.uint32))
    highest = np.floor(np.log2(np.maximum(value, 1).astype(np.float64))).astype(np.uint32)
    if line.has("SH"):
        highest = np.uint32(31) - highest
    return _put(line, registers, mask, np.where(value == 0, np.uint32(0xFFFFFFFF), highest))


def _load_constant(line: Line, registers: Registers, mask: Mask | None) -> None:
    first, operand = line.operands[0].register, line.operands[1]
    if first is None:
        return
    offset = operand.number & 0xFFFFFFFF
    for position, word in enumerate(registers.constant(offset, _width(line))):
        target = Register(first.file, first.number + position)
        registers.write(target, None if operand.terms else word, mask)


def _special(line: Line, registers: Registers, mask: Mask | None) -> None:
    name, first = line.operands[1].text, line.operands[0].register
    value = registers.special.get(name)
    for position in range(_width(line)):
        if first is not None:
            target = Register(first.file, first.number + position)
            registers.write(target, _ZEROS if position else value, mask)


def _first_lane(value: Words, mask: Mask | None) -> Words:
    """Of each warp, the value of its first lane in the mask, for all of its lanes."""
    active = _TRUES if mask is None else mask
    rows, words = active.reshape(-1, WARP), value.reshape(-1, WARP)
    return np.repeat(words[np.arange(len(rows)), rows.argmax(1)], WARP)


def _to_uniform(line: Line, registers: Registers, mask: Mask | None) -> None:
    value = registers.value(line.operands[-1])
    if value is None:
        return _unknown(line, registers, mask)
    uniform = _first_lane(value, mask)
    if _is_flag(line.operands[0]):
        differs = uniform != value
        before = registers.flag(line.operands[0]) if line.has("OR") else None
        registers.write_flag(line.operands[0].register, differs if before is None else differs | before, mask)
    _put(line, registers, _whole_warps(mask), uniform)
    return None


def _whole_warps(mask: Mask | None) -> Mask | None:
    """All lanes of the warps that have some: for what a uniform register holds."""
    return None if mask is None else np.repeat(mask.reshape(-1, WARP).any(1), WARP)


def _elect(line: Line, registers: Registers, mask: Mask | None) -> None:
    active = _TRUES if mask is None else mask
    first = active.reshape(-1, WARP).argmax(1)
    registers.write_flag(line.operands[0].register, (np.repeat(first, WARP) == LANE_OF) & active, mask)
    _put(line, registers, mask, None)


def _vote(line: Line, registers: Registers, mask: Mask | None) -> None:
    flag = registers.flag(line.operands[-1])
    if flag is None:
        return _unknown(line, registers, mask)
    active = _TRUES if mask is None else mask
    rows = flag.reshape(-1, WARP)
    counted = np.where(active.reshape(-1, WARP), rows, line.has("ALL"))
    result = np.repeat(counted.all(1) if line.has("ALL") else counted.any(1), WARP)
    for operand in line.operands[:-1]:
        if _is_flag(operand):
            registers.write_flag(operand.register, result, _whole_warps(mask))
    bits = (counted.astype(np.uint64) << np.arange(WARP, dtype=np.uint64)).sum(1)
    _put(line, registers, mask, np.repeat(bits, WARP).astype(np.uint32))
    return None


def _shuffle(line: Line, registers: Registers, mask: Mask | None) -> None:
    value, by = (registers.value(operand) for operand in line.operands[2:4])
    if value is None or by is None:
        return _unknown(line, registers, mask)
    lane, step = LANE_OF, by.astype(np.int64)
    kind = next(name for name in line.modifiers if name in ("IDX", "BFLY", "UP", "DOWN"))
    source = {"IDX": step, "BFLY": lane ^ step, "UP": lane - step, "DOWN": lane + step}[kind]
    inside = (source >= 0) & (source < WARP)
    gathered = value[np.where(inside, source, lane) + _WARP_OF * WARP]
    _put(line, registers, mask, gathered)
    return None


def _from_flags(line: Line, registers: Registers, mask: Mask | None) -> None:
    wanted = line.operands[-1].number
    result = np.zeros(LANES, np.uint32)
    for number in range(7):
        flag = registers.flags["P"][number]
        if wanted >> number & 1:
            if flag is None:
                return _unknown(line, registers, mask)
            result |= flag.astype(np.uint32) << np.uint32(number)
    _put(line, registers, mask, result)
    return None


def _to_flags(line: Line, registers: Registers, mask: Mask | None) -> None:
    value, wanted = registers.value(line.operands[1]), line.operands[-1].number
    for number in range(7):
        if wanted >> number & 1:
            flag = None if value is None else value >> np.uint32(number) & np.uint32(1) != 0
            registers.write_flag(Register("P", number), flag, mask)


def _float_of(line: Line, registers: Registers, mask: Mask | None) -> None:
    value = registers.value(line.operands[1])
    if value is None:
        return _unknown(line, registers, mask)
    exact = value.astype(np.float64) if line.has("U32") else _signed(value).astype(np.float64)
    rounded = exact.astype(np.float32)
    if line.has("RP"):
        rounded = np.where(rounded < exact, np.nextafter(rounded, np.float32(np.inf)), rounded)
    _put(line, registers, mask, rounded.astype(np.float32).view(np.uint32))
    return None


def _integer_of(line: Line, registers: Registers, mask: Mask | None) -> None:
    value = registers.value(line.operands[1])
    if value is None or not line.has("TRUNC"):
        return _unknown(line, registers, mask)
    number = np.trunc(value.view(np.float32).astype(np.float64))
    result = np.clip(number, 0, 2**32 - 1).astype(np.uint64) if line.has("U32") else number.astype(np.int64)
    _put(line, registers, mask, result.astype(np.uint32))
    return None


def _reciprocal(line: Line, registers: Registers, mask: Mask | None) -> None:
    value = registers.value(line.operands[1])
    if value is None or not line.has("RCP"):
        return _unknown(line, registers, mask)
    with np.errstate(all="ignore"):
        _put(line, registers, mask, (np.float32(1) / value.view(np.float32)).view(np.uint32))
    return None


def _multiply(line: Line, registers: Registers, mask: Mask | None) -> None:
    a, b = (registers.value(operand) for operand in line.operands[1:3])
    if a is None or b is None:
        return _unknown(line, registers, mask)
    with np.errstate(all="ignore"):
        _put(line, registers, mask, (a.view(np.float32) * b.view(np.float32)).view(np.uint32))
    return None


def _allocate(line: Line, registers: Registers, mask: Mask | None) -> None:
    """setmaxnreg gets its registers at once."""
    for register in destinations(line):
        if register.file in ("P", "UP"):
            registers.write_flag(register, _TRUES, mask)


_TABLE: Mapping[str, Evaluate] = {
    **dict.fromkeys(("MOV", "UMOV"), _mov),
    **dict.fromkeys(("IMAD", "UIMAD"), _imad),
    **dict.fromkeys(("IADD3", "UIADD3", "VIADD", "IADD"), _iadd3),
    **dict.fromkeys(("LEA", "ULEA"), _lea),
    **dict.fromkeys(("SHF", "USHF"), _shift),
    **dict.fromkeys(("LOP3", "ULOP3"), _lop3),
    **dict.fromkeys(("PLOP3", "UPLOP3"), _plop3),
    **dict.fromkeys(("PRMT", "UPRMT"), _prmt),
    **dict.fromkeys(("SEL", "USEL"), _select),
    **dict.fromkeys(("ISETP", "UISETP"), _compare),
    **dict.fromkeys(("VIMNMX", "IMNMX", "VIADDMNMX"), _minimum),
    "IABS": _absolute,
    **dict.fromkeys(("POPC", "UPOPC", "FLO", "UFLO"), _count_bits),
    **dict.fromkeys(("LDC", "ULDC", "LDCU"), _load_constant),
    **dict.fromkeys(("S2R", "S2UR", "CS2R"), _special),
    "R2UR": _to_uniform,
    "ELECT": _elect,
    **dict.fromkeys(("VOTE", "VOTEU"), _vote),
    "SHFL": _shuffle,
    "P2R": _from_flags,
    "R2P": _to_flags,
    **dict.fromkeys(("I2F", "I2FP"), _float_of),
    "F2I": _integer_of,
    "MUFU": _reciprocal,
    "FMUL": _multiply,
    "USETMAXREG": _allocate,
}
