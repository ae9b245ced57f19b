"""What follows from sizes, as a function of them that is compiled from one computation: Python without the detours.

The computation runs once, on sizes that remember (`StrictSize`). Each operation that it did becomes an assignment, and
each answer that it got from a size a condition, under which it would take the same way again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import numpy as np

from tuner.compiler.standalone.sizes import Named, Operand, StrictSize, Term, remembers

T = TypeVar("T")
Followed = Callable[[Sequence[int]], T | None]
"""Sizes → what the computation gives for them; None where it would take another way."""


def follow(compute: Callable[[Sequence[int]], T], sizes: Sequence[int]) -> Followed[T] | None:
    """`compute` as it goes for these sizes; None where it does with a size what cannot be followed.

    It is to be a function of the sizes alone. Its result is made of tuples, mappings and dataclasses, with numbers and
    values that do not follow from sizes.
    """
    conditions: dict[Term, None] = {}
    named = tuple(StrictSize.named(f"s{place}", size, conditions) for place, size in enumerate(sizes))
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
        self._values: dict[str, Any] = {}

    def function(self, conditions: tuple[Term, ...], result: Any) -> Followed[Any]:
        for each in conditions:
            left, right = (self._operand(operand) for operand in each.operands)
            self._lines.append(f"if not {left} {each.operation} {right}: return None")
        self._lines.append(f"return {self._result(result)}")
        body = "".join(f"  {line}\n" for line in self._lines)
        exec(f"def followed(sizes):\n{body}", self._values)  # of terms alone: no text comes from elsewhere
        return _guarded(self._values["followed"])

    def _operand(self, operand: Operand) -> str:
        if not isinstance(operand, Term):
            return operand.name if isinstance(operand, Named) else f"({operand})"
        if operand not in self._variables:
            parts = [self._operand(each) for each in operand.operands]
            self._variables[operand] = f"t{len(self._variables)}"
            self._lines.append(f"{self._variables[operand]} = {_spelled(operand.operation, parts)}")
        return self._variables[operand]

    def _result(self, value: Any) -> str:
        if remembers(value):
            return self._operand(value.term)
        if not _follows(value):
            return self._named(value)
        if isinstance(value, Mapping):
            return f"{{{', '.join(f'{self._named(key)}: {self._result(each)}' for key, each in value.items())}}}"
        if isinstance(value, tuple):
            parts = ", ".join(map(self._result, value))
            return f"{self._named(type(value))}({parts})" if hasattr(value, "_fields") else f"({parts},)"
        parts = ", ".join(f"{each.name}={self._result(getattr(value, each.name))}" for each in fields(value))
        return f"{self._named(type(value))}({parts})"

    def _named(self, value: Any) -> str:
        name = f"v{len(self._values)}"
        self._values[name] = value
        return name


def _spelled(operation: str, parts: list[str]) -> str:
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


def _guarded(function: Callable[[Sequence[int]], T | None]) -> Followed[T]:
    def followed(sizes: Sequence[int]) -> T | None:
        try:
            return function(sizes)
        except ZeroDivisionError:  # where the computation would say why
            return None

    return followed
