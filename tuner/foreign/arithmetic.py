"""Arithmetic of other tuners as Python code for an operator's folder, on a config or on columns of configs."""

import ast
from collections.abc import Callable, Collection, Iterable
from functools import partial, reduce
from typing import Any

from tuner.errors import UsageError
from tuner.search.replay.expression import CONSTANTS, parsed

_ARITHMETIC = (ast.Name, ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.List, ast.Tuple, ast.Set)
_REFUSED = (ast.MatMult, ast.BitXor, ast.Invert, ast.Is, ast.IsNot)
_FUNCTIONS = {"min": "minimum", "max": "maximum", "abs": "abs", "int": "trunc"}  # Python name → NumPy name


def of_config(text: str, names: Collection[str]) -> str:
    """Return the expression with `config.x` for each parameter x of `names`. Raises UsageError if it is not
    arithmetic.
    """
    return _spelled(text, _Scalar(names, "config").visit)


def of_columns(text: str, names: Collection[str]) -> str:
    """Return the condition for a Constraint: `c.x` for each parameter, `&`, `|`, `~`, and chained comparisons
    split up.
    """
    return _spelled(text, _Columns(names, "c").truth)


def _spelled(text: str, rewritten: Callable[[ast.expr], ast.expr]) -> str:
    try:
        return ast.unparse(rewritten(parsed(text)))
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{text!r} is not an arithmetic expression of the parameters ({error})") from error


class _Scalar(ast.NodeTransformer):
    """Scalar Python arithmetic."""

    def __init__(self, names: Collection[str], holder: str) -> None:
        self._names, self._holder = names, holder

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.expr) and not _is_arithmetic(node):
            raise ValueError(f"{ast.unparse(node)!r}")
        return super().visit(node)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self._names:
            return ast.Attribute(ast.Name(self._holder, ast.Load()), node.id, ast.Load())
        if node.id in CONSTANTS:
            return ast.Constant(CONSTANTS[node.id])
        raise ValueError(f"{node.id} is none of {', '.join(self._names)}")

    def visit_Call(self, node: ast.Call) -> ast.expr:
        return ast.Call(node.func, list(map(self.visit, node.args)), [])

    def visit_Set(self, node: ast.Set) -> ast.expr:
        return ast.List(list(map(self.visit, node.elts)), ast.Load())


class _Columns(_Scalar):
    """Arithmetic on NumPy arrays."""

    def truth(self, node: ast.expr) -> ast.expr:
        negated = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        condition: ast.expr = self.visit(node)
        is_truth = negated or isinstance(node, ast.Compare | ast.BoolOp)
        return condition if is_truth else ast.Compare(condition, [ast.NotEq()], [ast.Constant(0)])

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        if isinstance(node.op, ast.Not):
            return ast.UnaryOp(ast.Invert(), self.truth(node.operand))
        return self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        return _joined(ast.BitAnd() if isinstance(node.op, ast.And) else ast.BitOr(), map(self.truth, node.values))

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        sides = [self.visit(side) for side in (node.left, *node.comparators)]
        return _joined(ast.BitAnd(), map(_compared, sides, node.ops, sides[1:]))

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        return _numpy("where", self.truth(node.test), self.visit(node.body), self.visit(node.orelse))

    def visit_Call(self, node: ast.Call) -> ast.expr:
        function, (first, *others) = _FUNCTIONS[ast.unparse(node.func)], map(self.visit, node.args)
        return reduce(partial(_numpy, function), others, first) if others else _numpy(function, first)


def _is_arithmetic(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=value):
            return isinstance(value, bool | int | float | str)
        case ast.Call(func=ast.Name(id=word), args=parts, keywords=[]):
            return word in _FUNCTIONS and bool(parts)
    allowed = isinstance(node, _ARITHMETIC)
    return allowed and not any(isinstance(child, _REFUSED) for child in ast.iter_child_nodes(node))


def _joined(by: ast.operator, truths: Iterable[ast.expr]) -> ast.expr:
    return reduce(lambda one, other: ast.BinOp(one, by, other), truths)


def _compared(left: ast.expr, op: ast.cmpop, right: ast.expr) -> ast.expr:
    if not isinstance(op, ast.In | ast.NotIn):
        return ast.Compare(left, [op], [right])
    membership = _numpy("isin", left, right)
    return ast.UnaryOp(ast.Invert(), membership) if isinstance(op, ast.NotIn) else membership


def _numpy(function: str, *arguments: ast.expr) -> ast.expr:
    return ast.Call(ast.Attribute(ast.Name("np", ast.Load()), function, ast.Load()), list(arguments), [])
