"""Evaluation of third-party arithmetic without `eval`: value lists and conditions of a T1 file."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import numpy as np

from tuner.errors import UsageError

_OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: np.power,  # 64-bit: Python integers would make 9**9**9 exhaust the memory
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.LShift: np.left_shift,
    ast.RShift: operator.rshift,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda value, among: np.isin(value, among),
    ast.NotIn: lambda value, among: ~np.isin(value, among),
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: lambda value: ~_truth(value),
}
_LONGEST = 1 << 20  # maximum length of a range


def _range(*bounds: int) -> list[int]:
    values = range(*bounds)
    if len(values) > _LONGEST:
        raise ValueError(f"a range of {len(values):,} values is too long for a parameter")
    return list(values)


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "min": lambda *values: reduce(np.minimum, values),
    "max": lambda *values: reduce(np.maximum, values),
    "abs": np.abs,
    "int": lambda value: np.trunc(value).astype(int),
    "range": _range,
    "list": list,
}
CONSTANTS = {"true": True, "false": False}  # C spelling


def parsed(text: str) -> ast.expr:
    """Parse a Python or C expression. Raises SyntaxError."""
    python = re.sub(r"!(?!=)", " not ", text.replace("&&", " and ").replace("||", " or ")).strip()
    return ast.parse(python, mode="eval").body


def evaluate(text: str, name: Callable[[str], Any]) -> Any:
    """Evaluate a Python or C expression; `name` returns the value of a name, a number or a NumPy array.

    Raises UsageError for anything except arithmetic, comparison and logic.
    """
    try:
        tree = parsed(text)
        with np.errstate(divide="ignore", invalid="ignore"):  # both sides of `n == 0 or m % n == 0` are evaluated
            return _value(tree, name)
    except (SyntaxError, TypeError, ValueError, ArithmeticError) as error:
        raise UsageError(f"cannot compute {text!r}: {error}") from error


def _value(node: ast.expr, name: Callable[[str], Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=word):
            return CONSTANTS[word] if word in CONSTANTS else name(word)
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [_value(part, name) for part in parts]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(operand, name))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, name), _value(right, name))
        case ast.BoolOp(op=op, values=parts):
            join = np.logical_and if isinstance(op, ast.And) else np.logical_or
            return reduce(join, [_truth(_value(part, name)) for part in parts])
        case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _OPERATORS for op in ops):
            values = [_value(part, name) for part in (left, *others)]
            return reduce(np.logical_and, [_OPERATORS[type(op)](*values[i : i + 2]) for i, op in enumerate(ops)])
        case ast.IfExp(test=test, body=body, orelse=other):
            return np.where(_truth(_value(test, name)), _value(body, name), _value(other, name))
        case ast.Call(func=ast.Name(id=word), args=parts, keywords=[]) if word in _FUNCTIONS:
            return _FUNCTIONS[word](*(_value(part, name) for part in parts))
        case ast.ListComp(elt=part, generators=[ast.comprehension(target=ast.Name(id=word), iter=source, ifs=[])]):
            return [_value(part, _with(name, word, value)) for value in _value(source, name)]
    raise ValueError(f"{ast.unparse(node)!r} is not arithmetic, comparison or logic")


def _with(name: Callable[[str], Any], word: str, value: Any) -> Callable[[str], Any]:
    return lambda other: value if other == word else name(other)


def _truth(value: Any) -> Any:
    return np.asarray(value) != 0
