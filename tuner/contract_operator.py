"""What an operator says of itself, and what its functions return."""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from tuner.argument import KEYWORDS, Argument, Role
from tuner.contract import Complaints, held, is_frozen, of_kind, shown
from tuner.errors import TemplateError
from tuner.operator import Cost, Operator, Tolerance
from tuner.problem import extents, statics


def well_formed(operator: Operator[Any]) -> Operator[Any]:
    """The operator. Raises TemplateError when its Problem, arguments or kinds of inputs make no sense together."""
    for wrong in _declared(operator):
        raise TemplateError(f"{operator.name}/operator.py: {wrong}")
    return operator


def held_operator(operator: Operator[Any]) -> Operator[Any]:
    """The operator with functions that check what they return."""
    place = f"{operator.name}/operator.py"

    def hold(name: str, called: str, check: Callable[..., Complaints]) -> Callable[..., Any]:
        return held(getattr(operator, name), place, operator.folder, f"{name}({called})", check)

    return replace(
        operator,
        inputs=hold("inputs", "problem, rng, kind", lambda found, problem, *_: _inputs(operator, problem, found)),
        reference=hold("reference", "problem, arrays", lambda found, problem, _: _exact(operator, problem, found)),
        rounded=hold("rounded", "problem, arrays", lambda found, problem, _: _results(operator, problem, found)),
        tolerance=hold("tolerance", "problem", lambda found, _: _tolerances(operator, found)),
        cost=hold("cost", "problem", lambda found, _: _cost(found)),
        tails=hold("tails", "problem", _tails),
    )


def _declared(operator: Operator[Any]) -> Complaints:
    yield from _problem(operator.problem)
    for argument in operator.arguments:
        yield from _argument(operator, argument)
    if not operator.written:
        yield "no argument has Role.OUTPUT or Role.UPDATED: say where the kernel leaves its results"
    kinds = operator.input_kinds
    if not isinstance(kinds, tuple) or not kinds:
        yield f'input_kinds is {kinds!r}: give a tuple of names, such as ("normal",)'


def _problem(problem: Any) -> Complaints:
    if not is_frozen(problem):
        yield "Problem must be a frozen dataclass: @dataclass(frozen=True, slots=True)"
        return
    for each in fields(problem):
        if each.metadata.get("kind") not in ("static", "extent"):
            yield f"Problem.{each.name} must be static(…), which selects code, or extent(…), a size at run time"


def _argument(operator: Operator[Any], argument: Argument) -> Complaints:
    if argument.name in KEYWORDS:
        yield f"argument {argument.name!r} is a word of C++, which cannot name the parameter of a kernel"
    known = {each.name: None for each in fields(operator.problem)}
    readable = {*known, *(name for name in dir(operator.problem) if not name.startswith("_"))}
    for dim in argument.dims:
        if dim not in readable:
            yield f"argument {argument.name} has a dim {dim!r}, which is no field of Problem ({', '.join(known)})"
    given = [each.name for each in operator.arguments if each.given]
    for dim, value in argument.without.items():
        if argument.role is not Role.OUTPUT or (isinstance(value, str) and value not in given):
            yield (
                f"argument {argument.name} has without={{{dim!r}: {value!r}}}: only an output holds something without "
                f"a dim, a number or what an argument holds ({', '.join(given)})"
            )
    if isinstance(argument.dtype, str) and argument.dtype not in readable:
        yield (
            f"argument {argument.name} has the dtype of {argument.dtype!r}, which is no field of Problem "
            f"({', '.join(known)}): name one, or give a DType"
        )


def _inputs(operator: Operator[Any], problem: Any, found: Any) -> Complaints:
    if not isinstance(found, Mapping):
        yield f"returned {shown(found)}: return a dict of arrays by argument"
        return
    known = {each.name: each for each in operator.arguments if each.role is not Role.OUTPUT}
    for name in found.keys() - known.keys():
        yield f"returned {name!r}, which is no argument that a call brings ({', '.join(known)})"
    for each in known.values():
        if each.role is Role.SCALAR:
            if each.name not in found and each.free(problem):
                yield f"left out {each.name}: return it, or make it a field of Problem, or give the Argument a default"
        elif each.name in found:
            yield from _tensor(each, problem, found[each.name])
        elif 0 not in each.shape(problem):
            yield f"left out {each.name}: return an array for every tensor that a call brings"


def _tensor(argument: Argument, problem: Any, found: Any) -> Complaints:
    dtype, shape = argument.dtype_of(problem).numpy, argument.shape(problem)
    is_array = isinstance(found, np.ndarray)
    if not is_array or found.dtype != dtype or found.shape != shape:
        actual = f"{found.dtype}{list(found.shape)}" if is_array else shown(found)
        wanted = f"{dtype}{list(shape)}"
        cast = f": .astype({_spelled(argument)})" if is_array and found.dtype != dtype else ""
        yield f"returned {argument.name} as {actual}, the problem says {wanted}{cast}"


def _spelled(argument: Argument) -> str:
    """The expression that gives an argument's NumPy dtype."""
    return f"problem.{argument.dtype}.numpy" if isinstance(argument.dtype, str) else f"{argument.dtype}.numpy"


def _results(operator: Operator[Any], problem: Any, found: Any) -> Complaints:
    names = [each.name for each in operator.written]
    if not isinstance(found, Mapping) or set(names) - found.keys():
        what = shown(found) if not isinstance(found, Mapping) else f"{', '.join(found) or 'nothing'}"
        yield f"returned {what}: return a dict with {', '.join(names)}"
        return
    for each in operator.written:
        if np.shape(found[each.name]) != each.shape(problem):
            yield f"returned {each.name} of shape {list(np.shape(found[each.name]))}, not {list(each.shape(problem))}"


def _exact(operator: Operator[Any], problem: Any, found: Any) -> Complaints:
    yield from _results(operator, problem, found)
    for each in operator.written:
        array = np.asarray(found[each.name])
        if array.dtype in (np.float16, np.float32):
            yield f"returned {each.name} in {array.dtype}: compute in float64, which kernels are judged by"
        if array.dtype.kind == "f" and np.isnan(array).any():
            yield f"returned NaN in {each.name}: no kernel can be judged by that; do the inputs make sense?"


def _tolerances(operator: Operator[Any], found: Any) -> Complaints:
    for each in operator.written:
        if not isinstance(found, Mapping) or not isinstance(found.get(each.name), Tolerance):
            yield f"says nothing about {each.name}: return {{{each.name!r}: Tolerance(…)}}"


def _cost(found: Any) -> Complaints:
    yield from of_kind(found, Cost, "a Cost")
    if not found.bytes > 0 or found.flops < 0 or not found.items > 0:
        yield f"returned {found}: bytes and items must be over 0, flops 0 or more"


def _tails(found: Any, problem: Any) -> Complaints:
    if not isinstance(found, tuple) or not found or not all(isinstance(each, type(problem)) for each in found):
        yield f"returned {shown(found) if found else 'nothing'}: return a tuple of at least one Problem"
        return
    for each in found:
        for name in statics(problem):
            if getattr(each, name) != getattr(problem, name):
                yield (
                    f"changed {name} from {getattr(problem, name)} to {getattr(each, name)}: it selects the code that "
                    f"is to be checked; change extents only ({', '.join(extents(problem))})"
                )
