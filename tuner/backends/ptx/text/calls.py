"""Inlining of functions that the compiler did not inline."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tuner.backends.ptx.text.parse import Address, Body, Instruction, Operand, Variable
from tuner.errors import UsageError

_DEEPEST = 64  # maximum call depth


@dataclass(frozen=True)
class Function:
    """A `.func`: its parameters, return values and body; the body is None if it is only declared."""

    name: str
    parameters: tuple[Variable, ...]
    returns: tuple[Variable, ...]
    body: Body | None


def inlined(body: Body, functions: Mapping[str, Function], depth: int = 0) -> Body:
    """Return `body` with calls of `functions` inlined. Arguments and results share local memory with the caller's
    names.

    Calls of functions that are only declared remain: vprintf prints nothing, and __assertfail raises a fault when
    reached. Raises UsageError for recursion.
    """
    if not any(instruction.opcode[0] == "call" for instruction in body.code):
        return body
    if depth > _DEEPEST:
        raise UsageError("the PTX calls functions that call themselves: the PTX interpreter has no stack for them")
    code: list[Instruction] = []
    indices: dict[int, int] = {}  # index of each of the caller's instructions in the new code
    labels: dict[str, int] = {}
    registers, local = dict(body.registers), list(body.local)
    for at, instruction in enumerate(body.code):
        indices[at] = len(code)
        callee = functions.get(_callee(instruction)) if instruction.opcode[0] == "call" else None
        if callee is None or callee.body is None:
            code.append(instruction)
            continue
        own = inlined(callee.body, functions, depth + 1)
        prefix = f"call{at}of{depth}."
        arguments = _bound(instruction, callee)
        copied = _copied(own, prefix, arguments)
        labels |= {prefix + name: len(code) + index for name, index in own.labels.items()}
        code += copied
        labels[f"{prefix}end"] = len(code)
        registers |= {prefix + name: kind for name, kind in own.registers.items()}
        local += [replace(variable, name=prefix + variable.name) for variable in own.local]
    indices[len(body.code)] = len(code)
    labels |= {name: indices[at] for name, at in body.labels.items()}
    return replace(body, code=tuple(code), labels=labels, registers=registers, local=tuple(local))


def _callee(call: Instruction) -> str:
    """Return the name in `call (results), name, (arguments)`; empty lists are omitted in the text."""
    return next((operand for operand in call.operands if isinstance(operand, str)), "")


def _bound(call: Instruction, callee: Function) -> dict[str, str]:
    """Map the callee's parameters and results to the caller's names."""
    lists = [operand for operand in call.operands if isinstance(operand, tuple)]
    results = lists.pop(0) if callee.returns else ()
    arguments = lists[0] if callee.parameters else ()
    names = [parameter.name for parameter in (*callee.returns, *callee.parameters)]
    return dict(zip(names, (*results, *arguments), strict=True))


def _copied(body: Body, prefix: str, arguments: Mapping[str, str]) -> list[Instruction]:
    own = {variable.name for variable in body.local}

    def renamed(name: str) -> str:
        if "|" in name:
            return "|".join(map(renamed, name.split("|")))
        plain = name.lstrip("!")
        sign = name[: len(name) - len(plain)]
        if plain in arguments:
            return sign + arguments[plain]
        return sign + prefix + plain if plain in own or body.register_type(plain) else name

    return [_moved(instruction, prefix, arguments, renamed) for instruction in body.code]


def _moved(
    instruction: Instruction, prefix: str, arguments: Mapping[str, str], renamed: Callable[[str], str]
) -> Instruction:
    guard = renamed(instruction.guard) if instruction.guard else ""
    if instruction.opcode[0] == "ret":
        return replace(instruction, guard=guard, opcode=("bra",), operands=(f"{prefix}end",))
    if instruction.opcode[0] == "bra":
        return replace(instruction, guard=guard, operands=(prefix + instruction.word(0),))
    operands = tuple(_operand(operand, renamed) for operand in instruction.operands)
    if instruction.opcode[0] == "brx":
        operands = (operands[0], tuple(prefix + label for label in instruction.words(1)))
    moved = replace(instruction, guard=guard, operands=operands)
    passes = any(isinstance(operand, Address) and operand.base in arguments for operand in instruction.operands)
    return moved.in_local() if passes else moved


def _operand(operand: Operand, renamed: Callable[[str], str]) -> Operand:
    if isinstance(operand, Address):
        return replace(operand, base=renamed(operand.base), coordinates=tuple(map(renamed, operand.coordinates)))
    return tuple(map(renamed, operand)) if isinstance(operand, tuple) else renamed(operand)
