"""Symbolic integers: sizes that record the arithmetic and comparisons of a plan.

Arithmetic returns symbolic sizes, and each comparison records a condition under which it has the same result. A `Size`
is an int: `int()` and NumPy convert it to plain numbers without a record, so its expressions must be checked at other
sizes. A `StrictSize` is not an int: if code needs its number, equality with that number becomes a condition, so its
expressions are always valid.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np


@dataclass(frozen=True, slots=True)
class Named:
    """A size, identified by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class Term:
    """An operation: `ceil` divides and rounds up, `/` rounds down."""

    operation: str
    operands: "tuple[Operand, ...]"


Operand = Term | Named | int


def value(operand: Operand, sizes: Mapping[str, int]) -> int:
    """Return the value for these sizes."""
    if isinstance(operand, Term):
        return int(_OPERATIONS[operand.operation](*(value(inner, sizes) for inner in operand.operands)))
    return sizes[operand.name] if isinstance(operand, Named) else operand


def names(operand: Operand) -> Iterator[str]:
    """Yield the sizes that it depends on."""
    if isinstance(operand, Term):
        for inner in operand.operands:
            yield from names(inner)
    elif isinstance(operand, Named):
        yield operand.name


def spell(operand: Operand) -> str:
    """Return the C++ expression; `floor_div` is used for possibly negative operands, since C++ division rounds toward
    zero.
    """
    if not isinstance(operand, Term):
        return operand.name if isinstance(operand, Named) else str(operand)
    if operand.operation == "ceil":
        return f"ceil_div({', '.join(map(spell, operand.operands))})"
    if operand.operation == "/" and not _natural(operand.operands[0]):
        return f"floor_div({', '.join(map(spell, operand.operands))})"
    words = [_in_parentheses(inner, operand.operation) for inner in operand.operands]
    return f"-{words[0]}" if len(words) == 1 else f" {operand.operation} ".join(words)


def _in_parentheses(operand: Operand, around: str) -> str:
    """Return the C++ expression inside another operation."""
    inner = operand.operation if isinstance(operand, Term) else "ceil"
    binds = inner == "ceil" or (inner in ("*", "/", "%") and around in ("+", "-")) or (inner, around) == ("*", "*")
    bare = binds or (around in _ASKED and inner != "&")
    return spell(operand) if bare else f"({spell(operand)})"


def _natural(operand: Operand) -> bool:
    """Return whether it cannot be negative; sizes never are."""
    if isinstance(operand, Term):
        return operand.operation in ("+", "*", "/", "%", "ceil") and all(map(_natural, operand.operands))
    return isinstance(operand, Named) or operand >= 0


class Remembering:
    """A number with its term; `conditions` collects the comparisons of all numbers from the same problem."""

    number: int
    term: Operand
    conditions: dict[Term, None]

    def __init__(self, number: int) -> None:
        self.number = number

    @classmethod
    def named(cls, name: str, number: int, conditions: dict[Term, None]) -> Self:
        return cls.of(number, Named(name), conditions)

    @classmethod
    def of(cls, number: int, term: Operand, conditions: dict[Term, None]) -> Self:
        result = cls(number)
        result.term, result.conditions = term, conditions
        return result

    def __bool__(self) -> bool:
        return self._asked("!=", "==", 0, self.number != 0)

    def __neg__(self) -> Self:
        return self.of(-self.number, _negative(self.term), self.conditions)

    def _asked(self, operation: str, otherwise: str, other: Any, answer: bool) -> bool:
        terms = self.term, term_of(other)
        if terms[0] != terms[1] and not all(isinstance(term, int) for term in terms):
            self.conditions[Term(operation if answer else otherwise, terms)] = None
        return answer


class Size(Remembering, int):
    """An int that records its term."""

    __hash__ = int.__hash__


class StrictSize(Remembering):
    """A symbolic integer that is not an int, although isinstance() says so; every use of its number records a
    condition.

    It has no hash, so it cannot be a dictionary key; unsupported operations raise TypeError.
    """

    __hash__ = None  # type: ignore[assignment]

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int

    def __index__(self) -> int:
        self._asked("==", "!=", self.number, True)
        return self.number

    def __int__(self) -> int:
        return self.__index__()

    def __float__(self) -> float:
        return float(self.__index__())

    def __repr__(self) -> str:
        return str(self.__index__())


def term_of(number: Any) -> Operand:
    """Return a Size's term, or the number itself."""
    return number.term if remembers(number) else int(number)


def remembers(number: Any) -> bool:
    return issubclass(type(number), Remembering)


def _number(of: Any) -> int:
    return of.number if remembers(of) else int(of)


def _negative(term: Operand) -> Operand:
    if isinstance(term, int):
        return -term
    inner = _negated(term)
    return Term("-", (term,)) if inner is None else inner


def _negated(term: Operand) -> Operand | None:
    """Return the operand of a negation."""
    alone = isinstance(term, Term) and term.operation == "-" and len(term.operands) == 1
    return term.operands[0] if isinstance(term, Term) and alone else None


def combined(operation: str, left: Operand, right: Operand) -> Operand:
    """Return `left operation right`; signs are moved outwards, so that -(-a // b) becomes a division that rounds up."""
    inner = _negated(left)
    if inner is not None and operation == "*":
        return _negative(combined("*", inner, right))
    if inner is not None and operation == "/" and right != 1 and _natural(inner) and _natural(right):
        return _negative(Term("ceil", (inner, right)))
    if operation == "*" and 0 in (left, right):
        return 0
    if operation in ("*", "/") and right == 1:
        return left
    if operation == "*" and left == 1:
        return right
    return Term(operation, (left, right))


_ASKED = ("<", "<=", ">", ">=", "==", "!=")
_OPERATIONS: dict[str, Callable[..., int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b=None: -a if b is None else a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "&": lambda a, b: a & b,
    "ceil": lambda a, b: -(-a // b),
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}
_ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "floordiv": "/", "mod": "%", "and": "&"}
_COMPARISONS = {"lt": ("<", ">="), "le": ("<=", ">"), "gt": (">", "<="), "ge": (">=", "<")}
_EQUALITIES = {"eq": ("==", "!="), "ne": ("!=", "==")}


def _arithmetic(operation: str, *, swapped: bool) -> Callable[[Size, Any], Any]:
    def method(self: Remembering, other: Any) -> Any:
        if not isinstance(other, int | np.integer):
            return NotImplemented
        left, right = (other, self) if swapped else (self, other)
        number = _OPERATIONS[operation](_number(left), _number(right))
        return self.of(number, combined(operation, term_of(left), term_of(right)), self.conditions)

    return method


def _comparison(operation: str, otherwise: str) -> Callable[[Size, Any], Any]:
    def method(self: Remembering, other: Any) -> Any:
        if not isinstance(other, int | np.integer):
            return NotImplemented
        return self._asked(operation, otherwise, other, bool(_OPERATIONS[operation](self.number, _number(other))))

    return method


for _name, _operation in _ARITHMETIC.items():
    setattr(Remembering, f"__{_name}__", _arithmetic(_operation, swapped=False))
    setattr(Remembering, f"__r{_name}__", _arithmetic(_operation, swapped=True))
for _name, _pair in (_COMPARISONS | _EQUALITIES).items():
    setattr(Remembering, f"__{_name}__", _comparison(*_pair))
