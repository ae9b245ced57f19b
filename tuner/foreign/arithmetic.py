"""Arithmetic of other tuners as Python that an operator's folder can hold: of one config, or of columns of them."""

import ast
import re
from collections.abc import Callable, Collection

from tuner.errors import UsageError

_ARITHMETIC: tuple[type[ast.AST], ...] = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)
_ARITHMETIC += (ast.BitAnd, ast.BitOr, ast.LShift, ast.RShift, ast.USub, ast.UAdd)
_COMPARISONS = {ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn}
_FUNCTIONS = {"min": "np.minimum", "max": "np.maximum", "abs": "np.abs", "int": "np.trunc"}
_CONSTANTS = {"true": "True", "false": "False"}  # as C spells them


def of_config(text: str, names: Collection[str]) -> str:
    """The expression with `config.x` for each parameter x of `names`. Raises UsageError for what is no arithmetic."""
    return _Scalar(names, "config").spelled(text)


def of_columns(text: str, names: Collection[str]) -> str:
    """The condition as a Constraint computes it: `c.x` for each parameter, `&`, `|`, `~`, comparisons one by one."""
    return _Columns(names, "c").condition(text)


class _Scalar:
    """Python's own arithmetic."""

    def __init__(self, names: Collection[str], holder: str) -> None:
        self._names, self._holder = names, holder

    def spelled(self, text: str) -> str:
        return self._parsed(text, self._spelled)

    def _parsed(self, text: str, spell: Callable[[ast.expr], str]) -> str:
        python = re.sub(r"!(?!=)", " not ", text.replace("&&", " and ").replace("||", " or ")).strip()
        try:
            return spell(ast.parse(python, mode="eval").body)
        except (SyntaxError, ValueError) as error:
            raise UsageError(f"{text!r} is no arithmetic of the parameters ({error})") from error

    def _spelled(self, node: ast.expr) -> str:
        match node:
            case ast.Constant(value=bool() | int() | float() | str()):
                return repr(node.value)
            case ast.Name(id=word) if word in self._names:
                return f"{self._holder}.{word}"
            case ast.Name(id=word) if word in _CONSTANTS:
                return _CONSTANTS[word]
            case ast.Name(id=word):
                raise ValueError(f"{word} is none of {', '.join(self._names)}")
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self._not(operand)
            case ast.UnaryOp(op=op, operand=operand) if isinstance(op, _ARITHMETIC):
                return f"({_sign(op)}{self._spelled(operand)})"
            case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _ARITHMETIC):
                return f"({self._spelled(left)} {_sign(op)} {self._spelled(right)})"
            case ast.BoolOp(op=op, values=parts):
                return self._joined(op, parts)
            case ast.Compare(left=left, ops=ops, comparators=others) if {type(each) for each in ops} <= _COMPARISONS:
                sides = [left, *others]
                pairs = [self._compared(sides[i], op, sides[i + 1]) for i, op in enumerate(ops)]
                return pairs[0] if len(pairs) == 1 else self._all(pairs)
            case ast.IfExp(test=test, body=body, orelse=other):
                return self._chosen(test, body, other)
            case ast.Call(func=ast.Name(id=word), args=parts, keywords=[]) if word in _FUNCTIONS and parts:
                return self._called(word, [self._spelled(part) for part in parts])
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                return f"[{', '.join(map(self._spelled, parts))}]"
        raise ValueError(f"{ast.unparse(node)!r}")

    def _not(self, operand: ast.expr) -> str:
        return f"(not {self._spelled(operand)})"

    def _joined(self, op: ast.boolop, parts: list[ast.expr]) -> str:
        word = " and " if isinstance(op, ast.And) else " or "
        return f"({word.join(map(self._spelled, parts))})"

    def _all(self, pairs: list[str]) -> str:
        return f"({' and '.join(pairs)})"

    def _compared(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> str:
        return f"({self._spelled(left)} {_sign(op)} {self._spelled(right)})"

    def _chosen(self, test: ast.expr, body: ast.expr, other: ast.expr) -> str:
        return f"({self._spelled(body)} if {self._spelled(test)} else {self._spelled(other)})"

    def _called(self, word: str, parts: list[str]) -> str:
        return f"{word}({', '.join(parts)})"


class _Columns(_Scalar):
    """The same on NumPy arrays."""

    def condition(self, text: str) -> str:
        return self._parsed(text, self._truth)

    def _not(self, operand: ast.expr) -> str:
        return f"~({self._truth(operand)})"

    def _joined(self, op: ast.boolop, parts: list[ast.expr]) -> str:
        word = " & " if isinstance(op, ast.And) else " | "
        return f"({word.join(map(self._truth, parts))})"

    def _all(self, pairs: list[str]) -> str:
        return f"({' & '.join(pairs)})"

    def _compared(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> str:
        if isinstance(op, ast.In | ast.NotIn):
            found = f"np.isin({self._spelled(left)}, {self._spelled(right)})"
            return f"~{found}" if isinstance(op, ast.NotIn) else found
        return super()._compared(left, op, right)

    def _chosen(self, test: ast.expr, body: ast.expr, other: ast.expr) -> str:
        return f"np.where({self._truth(test)}, {self._spelled(body)}, {self._spelled(other)})"

    def _called(self, word: str, parts: list[str]) -> str:
        joined = parts[0]
        for part in parts[1:]:
            joined = f"{_FUNCTIONS[word]}({joined}, {part})"
        return joined if len(parts) > 1 else f"{_FUNCTIONS[word]}({joined})"

    def _truth(self, node: ast.expr) -> str:
        is_truth = isinstance(node, ast.Compare | ast.BoolOp) or (
            isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        )
        return self._spelled(node) if is_truth else f"({self._spelled(node)} != 0)"


def _sign(op: ast.AST) -> str:
    return _SIGNS[type(op)]


_SIGNS: dict[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.USub: "-",
    ast.UAdd: "+",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
    ast.NotIn: "not in",
}
