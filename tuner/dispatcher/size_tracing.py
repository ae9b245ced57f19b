"""Traces a computation on sizes once and compiles it to a straight Python function of the sizes.

The trace runs on symbolic sizes (`StrictSize`): an operation becomes an assignment, and a comparison a guard. Where a
guard fails, another computation applies.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import numpy as np

from tuner.compiler.standalone.sizes import Named, Operand, StrictSize, Term, combined, remembers, value

T = TypeVar("T")
Followed = Callable[[Sequence[int]], T | None]
"""Sizes → the result of the computation; None where a guard fails."""


def follow(compute: Callable[[Sequence[int]], T], sizes: Sequence[int]) -> Followed[T] | None:
    """Return `compute` compiled for these sizes; None if it uses a size in a way that cannot be traced.

    It must depend on the sizes alone. Its result consists of tuples, mappings and dataclasses of numbers, and of values
    that do not depend on sizes.
    """
    conditions: dict[Term, None] = {}
    named: Any = tuple(StrictSize.named(f"s{position}", size, conditions) for position, size in enumerate(sizes))
    try:
        result = compute(named)
        return _Code(len(sizes)).function(tuple(conditions), result)
    except Exception:  # computed in every call instead
        return None


class _Code:
    """The text of a function with common subexpressions eliminated."""

    def __init__(self, sizes: int) -> None:
        self._lines = [f"{''.join(f's{position}, ' for position in range(sizes))} = sizes"] if sizes else []
        self._variables: dict[Term, str] = {}
        self._equal: dict[Operand, Operand] = {}  # sizes that a guard equates with another size or a number
        self._values: dict[str, Any] = {}

    def function(self, conditions: tuple[Term, ...], result: Any) -> Followed[Any]:
        equalities = [term for term in conditions if term.operation == "==" and isinstance(term.operands[0], Named)]
        guards = set[str]()
        for term in dict.fromkeys((*equalities, *conditions)):
            left, right = map(self._simple, term.operands)
            if not (isinstance(left, int) and isinstance(right, int)) and left != right:  # otherwise it always holds
                condition = f"{self._operand(left)} {term.operation} {self._operand(right)}"
                self._lines += [f"if not {condition}: return None"] * (condition not in guards)
                guards.add(condition)
            if term in equalities and isinstance(left, Named) and not isinstance(right, Term):
                self._equal[left] = right
        self._lines.append(f"return {self._expression(result)[0]}")
        body = "".join(f"    {line}\n" for line in self._lines)
        # The computation itself raises an error there, with the reason.
        guard = "  except ZeroDivisionError: return None\n"
        exec(
            f"def followed(sizes):\n  try:\n{body}{guard}", self._values
        )  # the text consists only of terms and generated names
        return self._values["followed"]  # type: ignore[no-any-return]

    def _simple(self, operand: Operand) -> Operand:
        """Return the operand with equal sizes substituted and constants folded."""
        if not isinstance(operand, Term):
            return self._simple(self._equal[operand]) if operand in self._equal else operand
        parts = tuple(map(self._simple, operand.operands))
        if all(isinstance(part, int) for part in parts):
            return value(Term(operand.operation, parts), {})
        return self._folded(operand.operation, *parts)

    def _folded(self, operation: str, left: Operand, *others: Operand) -> Operand:
        """Simplify an operation on a multiple of a term to one on the term, if both are equal for all integers."""
        (term, factor), (right, *_) = _scaled(left), (*others, -1)
        if operation == "*" and isinstance(left, int):
            return self._folded("*", right, left)
        if isinstance(right, int) and factor != 1:
            if operation == "*" or not others:
                return combined("*", term, factor * right)
            if operation in ("/", "ceil", "%") and right and factor % right == 0:
                self._operand(term)  # preserves a division by zero in the term
                return 0 if operation == "%" else combined("*", term, factor // right)
        return combined(operation, left, right) if operation in ("*", "/") else Term(operation, (left, *others))

    def _operand(self, operand: Operand) -> str:
        operand = self._simple(operand)
        if not isinstance(operand, Term):
            return operand.name if isinstance(operand, Named) else f"({operand})"
        if operand not in self._variables:
            parts = [self._operand(part) for part in operand.operands]
            self._variables[operand] = f"t{len(self._variables)}"
            self._lines.append(f"{self._variables[operand]} = {_operation(operand.operation, parts)}")
        return self._variables[operand]

    def _expression(self, result: Any) -> tuple[str, bool]:
        """Return an expression for part of a result, and whether it depends on a size."""
        if remembers(result):
            simple = self._simple(result.term)
            return self._operand(simple), not isinstance(simple, int)
        if not _depends_on_sizes(result):
            return self._named(result), False
        parts: dict[Any, tuple[str, bool]]
        if isinstance(result, Mapping):
            parts = {self._named(key): self._expression(value) for key, value in result.items()}
            text = f"{{{', '.join(f'{key}: {part}' for key, (part, _) in parts.items())}}}"
        elif isinstance(result, tuple):
            parts = dict(enumerate(map(self._expression, result)))
            text = f"({', '.join(part for part, _ in parts.values())},)"
            if hasattr(result, "_fields"):
                text = f"{self._named(tuple.__new__)}({self._named(type(result))}, {text})"
        else:
            parts = {field.name: self._expression(getattr(result, field.name)) for field in fields(result)}
            text = f"{self._named(type(result))}({', '.join(f'{name}={part}' for name, (part, _) in parts.items())})"
        if any(depends for _, depends in parts.values()):
            return text, True
        return self._named(eval(text, self._values)), False  # a constant of all calls

    def _named(self, value: Any) -> str:
        name = f"v{len(self._values)}"
        self._values[name] = value
        return name


def _scaled(operand: Operand) -> tuple[Operand, int]:
    """Return (term, factor) of a term times a number."""
    if isinstance(operand, Term) and operand.operation == "*" and isinstance(operand.operands[1], int):
        return operand.operands[0], operand.operands[1]
    return operand, 1


def _operation(operation: str, parts: list[str]) -> str:
    if operation == "ceil":
        return f"-(-{parts[0]} // {parts[1]})"
    word = "//" if operation == "/" else operation
    return f"-{parts[0]}" if len(parts) == 1 else f"{parts[0]} {word} {parts[1]}"


def _depends_on_sizes(value: Any) -> bool:
    """Return whether a symbolic size is part of it. Raises TypeError for an array of sizes, which has no expression."""
    if isinstance(value, np.ndarray) and value.dtype == object:
        raise TypeError("an array of sizes")
    return any(remembers(part) or _depends_on_sizes(part) for part in _parts(value))


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, tuple | list):
        yield from value
    elif is_dataclass(value) and not isinstance(value, type):
        yield from (getattr(value, field.name) for field in fields(value))
