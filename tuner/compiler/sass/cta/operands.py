"""Instructions of a kernel with their operands, from the listing that nvdisasm prints."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tuner.compiler.sass.decode import Instruction
from tuner.errors import MachineError

ZERO = 255  # RZ
UNIFORM_ZERO = 63  # URZ
TRUE = 7  # PT, UPT

_LINE = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?);")
_GUARD = re.compile(r"^@(!?)(UP|P)(\d|T)\s+")
_REGISTER = re.compile(r"^([-~!]?)(\|?)(UR|UP|R|P)(\d+|Z|T)\|?((?:\.\w+)*)$")
_CONSTANT = re.compile(r"^([-~]?)(\|?)c\[0x([0-9a-f]+)\]\[(.*?)\]\|?((?:\.\w+)*)$")
_ADDRESS = re.compile(r"(?:desc\[(?P<descriptor>UR\d+|URZ)\])?\[(?P<terms>[^\]]*)\]$")
_NUMBER = re.compile(r"^-?0x[0-9a-f]+$|^-?\d+$")


class Register(NamedTuple):
    """A register of one of four files: R, UR, P, UP. Registers that are always zero or true have special indices."""

    file: str
    number: int


class Operand(NamedTuple):
    """An operand of an instruction; `kind` is "register", "constant", "number", "address" or "name"."""

    kind: str
    text: str
    register: Register | None = None
    sign: str = ""  # "-", "~" or "!"
    absolute: bool = False
    number: int = 0  # or the offset of a constant or an address
    terms: tuple[Register, ...] = ()  # registers of an address, or of a constant's offset
    wide: bool = False  # the address is a pair of registers


@dataclass(frozen=True, slots=True)
class Line:
    """One instruction with its operands, and the 128 bits that contain its control bits."""

    instruction: Instruction
    name: str  # without modifiers
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Register | None = None  # None: always executed
    guard_negated: bool = field(default=False)

    def has(self, modifier: str) -> bool:
        return modifier in self.modifiers


def lines(listing: str, code: Sequence[Instruction]) -> tuple[Line, ...]:
    """Return the kernel's instructions in order. Raises MachineError if listing and code differ."""
    texts = list(_texts(listing))
    if len(texts) != len(code):
        raise MachineError(f"the listing has {len(texts)} instructions, and the machine code {len(code)}")
    return tuple(_line(text, instruction) for text, instruction in zip(texts, code, strict=True))


def _texts(listing: str) -> Iterator[str]:
    for row in listing.split("\n"):
        if match := _LINE.match(row):
            yield match.group(2).partition("(*")[0].strip()


def _line(text: str, instruction: Instruction) -> Line:
    guard, negated = None, False
    if match := _GUARD.match(text):
        number = TRUE if match.group(3) == "T" else int(match.group(3))
        guard, negated = Register(match.group(2), number), match.group(1) == "!"
        text = text[match.end() :]
    opcode, _, rest = text.partition(" ")
    name, *modifiers = opcode.split(".")
    operands = tuple(_operand(part.strip()) for part in _split(rest))
    return Line(instruction, name, tuple(modifiers), operands, guard, negated)


def _split(text: str) -> Iterator[str]:
    """Split operands at the commas outside of brackets."""
    depth, start = 0, 0
    for at, character in enumerate(text):
        depth += (character in "[(") - (character in "])")
        if character == "," and depth == 0:
            yield text[start:at]
            start = at + 1
    if text[start:].strip():
        yield text[start:]


def _operand(text: str) -> Operand:
    if match := _REGISTER.match(text):
        return Operand(
            "register", text, _register(match.group(3), match.group(4)), match.group(1), bool(match.group(2))
        )
    if match := _CONSTANT.match(text):
        bank, inside = int(match.group(3), 16), match.group(4)
        terms, offset, _ = _terms(inside)
        return Operand("constant", text, None, match.group(1), bool(match.group(2)), offset | bank << 32, terms)
    if match := _ADDRESS.match(text):
        terms, offset, wide = _terms(match.group("terms"))
        return Operand("address", text, None, "", False, offset, terms, wide)
    if _NUMBER.match(text):
        return Operand("number", text, number=int(text, 0))
    return Operand("name", text)


def _terms(text: str) -> tuple[tuple[Register, ...], int, bool]:
    """Return the registers and the offset of "R3+UR6+0x340", and whether the first is the lower one of a pair."""
    registers, offset, wide = [], 0, False
    for term in re.findall(r"[-+]?[^-+]+", text):
        bare = term.lstrip("+")
        if match := _REGISTER.match(bare):
            registers.append(_register(match.group(3), match.group(4)))
            wide = wide or ".64" in match.group(5)
        else:
            offset += int(bare, 0)
    return tuple(registers), offset, wide


def _register(file: str, number: str) -> Register:
    if number in ("Z", "T"):
        return Register(file, {"R": ZERO, "UR": UNIFORM_ZERO}.get(file, TRUE))
    return Register(file, int(number))
