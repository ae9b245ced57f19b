"""Parsing of PTX text into the bodies of kernels and functions: registers, symbols and instructions with operands."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from tuner.errors import UsageError

BYTES = {"b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "b32": 4, "u32": 4, "s32": 4, "f32": 4}
BYTES |= {"b64": 8, "u64": 8, "s64": 8, "f64": 8, "bf16": 2, "f16x2": 4, "bf16x2": 4, "b128": 16}


@dataclass(frozen=True, slots=True)
class Address:
    """`[base + offset]`, or `[base, {coordinates}]` for a tensor."""

    base: str
    offset: int = 0
    coordinates: tuple[str, ...] = ()


Operand = str | tuple[str, ...] | Address  # a word, `{a, b}`, or a memory operand


@dataclass(frozen=True, slots=True)
class Instruction:
    """`@guard opcode operands;` with the opcode split at its dots; a label is an instruction index."""

    line: int
    text: str
    guard: str
    opcode: tuple[str, ...]
    operands: tuple[Operand, ...]

    @property
    def name(self) -> str:
        """The opcode with its dots."""
        return ".".join(self.opcode)

    def has(self, *qualifiers: str) -> bool:
        return any(qualifier in self.opcode for qualifier in qualifiers)

    @property
    def type(self) -> str:
        """The last part of the opcode."""
        return self.opcode[-1]

    def word(self, at: int) -> str:
        operand = self.operands[at]
        assert isinstance(operand, str), f"operand {at} of {self.text} is a name or a number"
        return operand

    def in_local(self) -> "Instruction":
        """Return the same access in local memory, which holds the arguments of inlined functions."""
        return replace(self, opcode=tuple("local" if part.startswith("param") else part for part in self.opcode))

    def address(self, at: int) -> Address:
        operand = self.operands[at]
        assert isinstance(operand, Address), f"operand {at} of {self.text} is an address"
        return operand

    def words(self, at: int) -> tuple[str, ...]:
        """Return a vector's elements; a single name is a vector of one."""
        operand = self.operands[at]
        assert not isinstance(operand, Address), f"operand {at} of {self.text} is a register or several"
        return (operand,) if isinstance(operand, str) else operand


@dataclass(frozen=True, slots=True)
class Variable:
    """A parameter, or a symbol of shared or local memory; `nbytes` is 0 if the launch decides its size."""

    name: str
    nbytes: int
    align: int


@dataclass(frozen=True)
class Body:
    """Instructions and label positions. `registers` maps a name, or the prefix of numbered names, to its type."""

    code: tuple[Instruction, ...]
    labels: Mapping[str, int]
    registers: Mapping[str, str]
    shared: tuple[Variable, ...]
    local: tuple[Variable, ...]  # local memory per lane, including arguments of inlined functions

    def register_type(self, name: str) -> str | None:
        return self.registers.get(name) or self.registers.get(name.rstrip("0123456789"))


def read_body(text: str, start: int) -> tuple[Body, int]:
    """Parse the statements after the brace at `start`; return them and the position after the closing brace."""
    operand = _Statements(text, start)
    inside = text[start : operand.end]
    shared, local = (tuple(variables(inside, space)) for space in ("shared", "local"))
    return Body(
        tuple(operand.code), operand.labels, operand.registers, shared, (*local, *operand.passed.values())
    ), operand.end


_POINTS_TO = r"(?:\.ptr\s+(?:\.(?:global|shared|local|const)\s+)?(?:\.align\s+\d+\s+)?)?"  # part of a pointer parameter
_VARIABLE = r"\.{space}\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+" + _POINTS_TO + r"([\w$]+)\s*(\[(\d*)\])?\s*[;=]"


def variables(text: str, space: str) -> Iterator[Variable]:
    """Yield the variables that a text declares in a state space."""
    for declaration in re.finditer(_VARIABLE.replace("{space}", space), text):
        size = BYTES[declaration[2]]
        count = int(declaration[5] or 0) if declaration[4] else 1
        yield Variable(declaration[3], size * count, int(declaration[1] or size))


@dataclass
class _Statements:
    """The statements from the brace at `start`: braces open scopes, in which names hide outer names."""

    whole: str
    start: int
    code: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    registers: dict[str, str] = field(default_factory=dict)
    passed: dict[str, Variable] = field(default_factory=dict)  # arguments and results of calls
    end: int = 0

    def __post_init__(self) -> None:
        self._scopes: list[int] = [0]
        self._opened, self._declared = 0, {""}
        self._jumps: list[tuple[int, tuple[int, ...]]] = []
        self._tables: dict[str, tuple[str, ...]] = {}  # branch lists of brx.idx: name → labels
        self._latest = ""  # last label
        self._line = self.whole.count("\n", 0, self.start) + 1
        self.end = self._statements()
        for index, scopes in self._jumps:
            self._resolve(index, scopes)

    def _statements(self) -> int:
        at, counted = self.start, self.start
        while self._scopes:
            match = _STATEMENT.match(self.whole, at)
            if not match:
                raise UsageError(f"line {self._line}: no end of the kernel")
            self._line += self.whole.count("\n", counted, match.start("what"))
            counted = match.start("what")
            at = match.end()
            self._take(match)
        return at

    def _take(self, match: re.Match[str]) -> None:
        if match["open"]:
            self._opened += 1
            self._scopes.append(self._opened)
        elif match["close"]:
            self._scopes.pop()
        elif match["label"]:
            self._latest = match["label"]
            self.labels[self._scoped(self._latest, self._scopes[-1])] = len(self.code)
        elif match["statement"].startswith(".reg"):
            self._declare(match["statement"])
        elif match["statement"].startswith(".branchtargets"):
            self._tables[self._latest] = tuple(_split(match["statement"].removeprefix(".branchtargets")))
        elif match["statement"].startswith(".param"):
            self._pass(match["statement"])
        elif not match["statement"].startswith("."):
            self._instruction(" ".join(match["statement"].split()))

    @staticmethod
    def _scoped(name: str, scope: int) -> str:
        return f"{name}@{scope}" if scope else name

    def _declare(self, statement: str) -> None:
        kind, names = re.split(r"\s+", statement.removeprefix(".reg").strip(), maxsplit=1)
        for name in names.split(","):
            plain = re.sub(r"<\d+>", "", name.strip())
            self.registers[self._scoped(plain, self._scopes[-1])] = kind[1:]

    def _pass(self, statement: str) -> None:
        for variable in variables(statement + ";", "param"):
            name = self._scoped(variable.name, self._scopes[-1])
            self.passed[name] = replace(variable, name=name)

    def _instruction(self, text: str) -> None:
        match = re.match(r"(?:@(!?)([\w$%]+)\s+)?([\w.:]+)\s*(.*)$", text)
        if not match:
            raise UsageError(f"line {self._line}: no instruction: {text}")
        opcode = tuple(match[3].split("."))
        operands = tuple(self._operand(part) for part in _split(match[4]))
        guard = (match[1] or "") + self._name(match[2]) if match[2] else ""
        if opcode[0] in ("bra", "brx"):
            self._jumps.append((len(self.code), tuple(self._scopes)))
        instruction = Instruction(self._line, text, guard, opcode, operands)
        passes = any(isinstance(operand, Address) and operand.base in self.passed for operand in operands)
        self.code.append(instruction.in_local() if passes else instruction)

    def _operand(self, text: str) -> Operand:
        if text.startswith(("{", "(")):
            return tuple(self._name(part) for part in _split(text[1:-1]))
        if not text.startswith("["):
            return self._name(text)
        base, *rest = _split(text[1:-1])
        match = re.match(r"([\w$%.]+)\s*(?:\+\s*(-?\w+))?$", base)
        if not match:
            raise UsageError(f"line {self._line}: no address: {text}")
        coordinates = tuple(self._name(part) for part in _split(rest[0].strip("{} "))) if rest else ()
        return Address(self._name(match[1]), int(match[2] or "0", 0), coordinates)

    def _name(self, name: str) -> str:
        """Return the name, qualified by the innermost scope that declares it."""
        name = name.strip()
        if "|" in name:
            return "|".join(self._name(part) for part in name.split("|"))
        inverted = "!" if name.startswith("!") else ""
        for scope in reversed(self._scopes):
            scoped = self._scoped(name.lstrip("!"), scope)
            if scope and (scoped in self.registers or scoped in self.passed):
                return inverted + scoped
        return name

    def _resolve(self, index: int, scopes: tuple[int, ...]) -> None:
        jump = self.code[index]
        if jump.opcode[0] == "brx":
            names = tuple(self._label(jump, name, scopes) for name in self._tables.get(jump.word(-1), ()))
            self.code[index] = replace(jump, operands=(jump.operands[0], names))
        else:
            self.code[index] = replace(jump, operands=(self._label(jump, jump.word(-1), scopes),))

    def _label(self, jump: Instruction, name: str, scopes: tuple[int, ...]) -> str:
        """Return the label, qualified by the innermost scope that contains it."""
        for scope in reversed(scopes):
            if self._scoped(name, scope) in self.labels:
                return self._scoped(name, scope)
        raise UsageError(f"line {jump.line}: no label {name}")


_STATEMENT = re.compile(
    r"\s*(?P<what>(?P<open>\{)|(?P<close>\})|(?P<label>[\w$]+)\s*:(?!:)|(?P<statement>[^;]+);)", re.DOTALL
)


def _split(text: str) -> list[str]:
    """Split operands at the commas outside brackets."""
    parts, depth, start = [], 0, 0
    for at, sign in enumerate(text):
        depth += (sign in "[{(") - (sign in "]})")
        if sign == "," and not depth:
            parts.append(text[start:at].strip())
            start = at + 1
    return [*parts, text[start:].strip()] if text.strip() else []
