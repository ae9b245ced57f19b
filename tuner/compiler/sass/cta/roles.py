"""The registers and predicates that an instruction reads and writes."""

from tuner.compiler.sass.cta.operands import TRUE, UNIFORM_ZERO, ZERO, Line, Operand, Register

_COPY = 8  # registers from the first one of a copy's address: addresses, barrier and coordinates


def destinations(line: Line) -> tuple[Register, ...]:
    """Return the registers and predicates that an instruction writes."""
    registers = [operand.register for operand in line.operands[: results(line)] if operand.register is not None]
    if line.name == "R2P":
        return _masked(line)
    wide = width(line)
    first = next((register for register in registers if register.file in ("R", "UR")), None)
    extra = [Register(first.file, first.number + i) for i in range(1, wide)] if first else []
    return tuple(register for register in (*registers, *extra) if not fixed(register))


def sources(line: Line) -> tuple[Register, ...]:
    """Return the registers and predicates that an instruction reads, including its guard."""
    registers = [] if line.guard is None else [line.guard]
    if line.name == "P2R":
        registers += _masked(line)
    start = results(line)
    for position, operand in enumerate(line.operands):
        if operand.kind in ("address", "constant"):
            for term in operand.terms:
                registers += [Register(term.file, term.number + i) for i in range(_COPY if "TMA" in line.name else 2)]
        elif position >= start and operand.register is not None:
            register = operand.register
            registers += [Register(register.file, register.number + i) for i in range(_source_width(line, register))]
    return tuple(register for register in registers if not fixed(register))


def _source_width(line: Line, register: Register) -> int:
    if register.file not in ("R", "UR") or fixed(register):
        return 1
    if line.name in ("STS", "STL", "STG"):
        return 4 if line.has("128") else 2 if line.has("64") else 1
    return 2 if line.has("WIDE") or line.has("HI") or line.name == "SYNCS" else 1


def _masked(line: Line) -> tuple[Register, ...]:
    """Return the predicates that the last operand of P2R and R2P selects."""
    return tuple(Register("P", number) for number in range(7) if line.operands[-1].number >> number & 1)


def fixed(register: Register) -> bool:
    return register.number == {"R": ZERO, "UR": UNIFORM_ZERO}.get(register.file, TRUE)


def results(line: Line) -> int:
    """Return how many of the first operands are written."""
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
            break  # predicates may precede the result
    if line.name in _CARRIES and len(line.operands) > count:
        while count < len(line.operands) and is_flag(line.operands[count]) and not line.operands[count].sign:
            count += 1
    return count


def is_flag(operand: Operand) -> bool:
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


def width(line: Line) -> int:
    if line.name in ("LDC", "ULDC", "LDCU", "LDS", "LDL", "LDG"):
        return 4 if line.has("128") else 2 if line.has("64") else 1
    if line.name == "CS2R":
        return 1 if line.has("32") else 2
    return 2 if line.has("WIDE") else 1
