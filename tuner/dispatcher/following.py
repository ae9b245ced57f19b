"""What follows from sizes, as a function of them that is compiled from one computation: Python without the detours.

The computation runs once, on sizes that remember (`StrictSize`). Each operation that it did becomes an assignment, and
each answer that it got from a size a condition, under which it would take the same way again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import numpy as np

from tuner.compiler.standalone.sizes import Named, Operand, StrictSize, Term, combined, remembers, value

T = TypeVar("T")
Followed = Callable[[Sequence[int]], T | None]
"""Sizes → what the computation gives for them; None where it would take another way."""


def follow(compute: Callable[[Sequence[int]], T], sizes: Sequence[int]) -> Followed[T] | None:
    """`compute` as it goes for these sizes; None where it does with a size what cannot be followed.

    It is to be a function of the sizes alone. Its result is made of tuples, mappings and dataclasses, with numbers and
    values that do not follow from sizes.
    """
    conditions: dict[Term, None] = {}
    named: Any = tuple(StrictSize.named(f"s{place}", size, conditions) for place, size in enumerate(sizes))
    try:
        result = compute(named)
        return _Code(len(sizes)).function(tuple(conditions), result)
    except Exception:  # whatever breaks on a size that is no int: what cannot be followed is computed each time
        return None


class _Code:
    """The text of a function, whose parts are computed once."""

    def __init__(self, sizes: int) -> None:
        self._lines = [f"{''.join(f's{place}, ' for place in range(sizes))} = sizes"] if sizes else []
        self._variables: dict[Term, str] = {}
        self._equal: dict[Operand, Operand] = {}  # sizes that are another, or a number
        self._values: dict[str, Any] = {}

    def function(self, conditions: tuple[Term, ...], result: Any) -> Followed[Any]:
        equal = [each for each in conditions if each.operation == "==" and isinstance(each.operands[0], Named)]
        asked = set[str]()
        for each in dict.fromkeys((*equal, *conditions)):
            left, right = map(self._simple, each.operands)
            if not (isinstance(left, int) and isinstance(right, int)) and left != right:  # else it holds as it is
                condition = f"{self._operand(left)} {each.operation} {self._operand(right)}"
                self._lines += [f"if not {condition}: return None"] * (condition not in asked)
                asked.add(condition)
            if each in equal and isinstance(left, Named) and not isinstance(right, Term):
                self._equal[left] = right
        self._lines.append(f"return {self._result(result)}")
        body = "".join(f"    {line}\n" for line in self._lines)
        guard = "  except ZeroDivisionError: return None\n"  # where the computation would say why
        exec(f"def followed(sizes):\n  try:\n{body}{guard}", self._values)  # of terms alone: no text is another's
        return self._values["followed"]  # type: ignore[no-any-return]

    def _simple(self, operand: Operand) -> Operand:
        """The same with what is known to be equal."""
        if not isinstance(operand, Term):
            return self._simple(self._equal[operand]) if operand in self._equal else operand
        parts = tuple(map(self._simple, operand.operands))
        if all(isinstance(each, int) for each in parts):
            return value(Term(operand.operation, parts), {})
        return self._folded(operand.operation, *parts)

    def _folded(self, operation: str, left: Operand, *others: Operand) -> Operand:
        """An operation on a multiple of a term, as one on the term where that is the same for all whole numbers."""
        (term, factor), (right, *_) = _scaled(left), (*others, -1)
        if operation == "*" and isinstance(left, int):
            return self._folded("*", right, left)
        if isinstance(right, int) and factor != 1:
            if operation == "*" or not others:
                return combined("*", term, factor * right)
            if operation in ("/", "ceil", "%") and right and factor % right == 0:
                self._operand(term)  # a division by nothing in it is one still
                return 0 if operation == "%" else combined("*", term, factor // right)
        return combined(operation, left, right) if operation in ("*", "/") else Term(operation, (left, *others))

    def _operand(self, operand: Operand) -> str:
        operand = self._simple(operand)
        if not isinstance(operand, Term):
            return operand.name if isinstance(operand, Named) else f"({operand})"
        if operand not in self._variables:
            parts = [self._operand(each) for each in operand.operands]
            self._variables[operand] = f"t{len(self._variables)}"
            self._lines.append(f"{self._variables[operand]} = {_operation(operand.operation, parts)}")
        return self._variables[operand]

    def _result(self, found: Any) -> str:
        return self._spelled(found)[0]

    def _spelled(self, found: Any) -> tuple[str, bool]:
        """An expression for part of a result, and whether it follows from sizes that are not known to be numbers."""
        if remembers(found):
            simple = self._simple(found.term)
            return self._operand(simple), not isinstance(simple, int)
        if not _follows(found):
            return self._named(found), False
        parts: dict[Any, tuple[str, bool]]
        if isinstance(found, Mapping):
            parts = {self._named(key): self._spelled(each) for key, each in found.items()}
            text = f"{{{', '.join(f'{key}: {part}' for key, (part, _) in parts.items())}}}"
        elif isinstance(found, tuple):
            parts = dict(enumerate(map(self._spelled, found)))
            text = f"({', '.join(part for part, _ in parts.values())},)"
            if hasattr(found, "_fields"):
                text = f"{self._named(tuple.__new__)}({self._named(type(found))}, {text})"
        else:
            parts = {each.name: self._spelled(getattr(found, each.name)) for each in fields(found)}
            text = f"{self._named(type(found))}({', '.join(f'{name}={part}' for name, (part, _) in parts.items())})"
        if any(follows for _, follows in parts.values()):
            return text, True
        return self._named(eval(text, self._values)), False  # the same each time: made once

    def _named(self, value: Any) -> str:
        name = f"v{len(self._values)}"
        self._values[name] = value
        return name


def _scaled(operand: Operand) -> tuple[Operand, int]:
    """(term, factor) of a term times a number."""
    if isinstance(operand, Term) and operand.operation == "*" and isinstance(operand.operands[1], int):
        return operand.operands[0], operand.operands[1]
    return operand, 1


def _operation(operation: str, parts: list[str]) -> str:
    if operation == "ceil":
        return f"-(-{parts[0]} // {parts[1]})"
    word = "//" if operation == "/" else operation
    return f"-{parts[0]}" if len(parts) == 1 else f"{parts[0]} {word} {parts[1]}"


def _follows(value: Any) -> bool:
    """Whether a size is somewhere in it. Raises TypeError where one is that cannot be taken apart."""
    if isinstance(value, np.ndarray) and value.dtype == object:
        raise TypeError("an array of sizes")
    return any(remembers(each) or _follows(each) for each in _parts(value))


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, tuple | list):
        yield from value
    elif is_dataclass(value) and not isinstance(value, type):
        yield from (getattr(value, each.name) for each in fields(value))
