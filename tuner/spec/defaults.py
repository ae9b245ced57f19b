"""Defaults for what an operator or an implementation omits, derived from its arguments, reference and plan."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, replace
from inspect import Parameter, Signature
from math import prod
from typing import Any

import numpy as np

from tuner.arch import Arch
from tuner.errors import TemplateError, UsageError
from tuner.spec.argument import Argument, Role
from tuner.spec.operator import Cost, Implementation, Operator, Request, Updated, Work, not_defined
from tuner.spec.parameters import with_present_arguments
from tuner.spec.plan import Plan
from tuner.spec.problem import Arrays, extents, sizes
from tuner.spec.tolerance import Tolerance, rounding_tolerance

Functions = dict[str, Callable[..., Any]]

_SMALL, _LARGE = (1, 7), 131  # extents of small problems: 1, and primes that no tile size divides
_UNITS = tuple(1 << n for n in range(9))
_LOAD = 16  # bytes in flight per thread if undeclared


def completed(operator: Operator[Any]) -> Operator[Any]:
    """Return the operator with every omitted function replaced by a default."""
    made: Functions = {
        "inputs": lambda problem, rng, _kind: inputs(operator, problem, rng),
        "rounded": lambda problem, arrays: rounded(operator, problem, arrays),
        "tolerance": lambda problem: tolerance(operator, problem),
        "cost": lambda problem: cost(operator, problem),
        "tails": tails,
        "call": call(operator),
    }
    return replace(operator, **_missing(operator, made))


def completed_implementation(
    operator: Operator[Any], implementation: Implementation[Any, Any]
) -> Implementation[Any, Any]:
    """Return the implementation with defaults for everything it omits; `operator` is complete."""
    made: Functions = {
        "refusal": lambda _problem, _arch: None,
        "default": lambda problem, arch: first(implementation, problem, arch),
        "work": lambda problem, config, _gpu: work(operator.cost(problem), implementation.plan(problem, config)),
    }

    def plan(problem: Any, config: Any) -> Plan:
        return with_present_arguments(operator, problem, implementation.plan(problem, config))

    declares_work = implementation.work is not not_defined
    return replace(implementation, plan=plan, declares_work=declares_work, **_missing(implementation, made))


def _missing(value: Any, made: Functions) -> dict[str, Any]:
    return {name: function for name, function in made.items() if getattr(value, name) is not_defined}


def inputs(operator: Operator[Any], problem: Any, rng: np.random.Generator) -> Arrays:
    """Draw standard normal numbers for every tensor input."""
    for argument in operator.arguments:
        if argument.required(problem):
            wanted = "define inputs, or give the Argument a default"
            raise TemplateError(f"{operator.name}: no default inputs for {argument.name}, a free scalar: {wanted}")
    supplied = (argument for argument in operator.arguments if argument.supplied)
    return {argument.name: _normal(operator, argument, problem, rng) for argument in supplied}


def _normal(operator: Operator[Any], argument: Argument, problem: Any, rng: np.random.Generator) -> Any:
    dtype = argument.dtype_of(problem)
    if not dtype.is_float or dtype.itemsize == 1:
        raise TemplateError(f"{operator.name}: no default inputs for {argument.name}, {dtype.value}: define inputs")
    return rng.standard_normal(argument.shape(problem)).astype(dtype.numpy)


def rounded(operator: Operator[Any], problem: Any, arrays: Arrays) -> Arrays:
    """Return the reference with each result rounded once to its dtype."""
    exact = operator.reference(problem, arrays)
    kinds = {argument.name: argument.dtype_of(problem).numpy for argument in operator.written}
    # Masked elements have no value to round.
    known = {name: np.ma.filled(exact[name], 0) if np.ma.isMaskedArray(exact[name]) else exact[name] for name in kinds}
    return {name: np.asarray(known[name]).astype(kind).astype(np.float64) for name, kind in kinds.items()}


def tolerance(operator: Operator[Any], problem: Any) -> Mapping[str, Tolerance]:
    """Return the tolerance of one rounding to the dtype of each result."""
    return {argument.name: rounding_tolerance(argument.dtype_of(problem)) for argument in operator.written}


def cost(operator: Operator[Any], problem: Any) -> Cost:
    """Count each tensor's bytes once, twice if it is updated in place; no arithmetic."""
    tensors = [argument for argument in operator.arguments if argument.role is not Role.SCALAR]
    moved = sum(argument.nbytes(problem) for argument in (*tensors, *operator.updated))
    return Cost(flops=0.0, bytes=float(moved))


def tails(problem: Any) -> tuple[Any, ...]:
    """Return small problems: all extents 1, all 7, and each in turn 131 with the others 2, if the Problem accepts them.

    For an extent that must be a multiple of a power of two, the values are multiples of it: 8, 56, 136 and 16 for 8.
    """
    units = {name: _unit(problem, name) for name in sizes(problem)}
    wanted = [{name: unit * size for name, unit in units.items()} for size in _SMALL]
    for large, unit in units.items():
        others = {name: 2 * value for name, value in units.items()}
        wanted.append({**others, large: -(-_LARGE // unit) * unit})
    tails = tuple(dict.fromkeys(tail for extent in wanted if (tail := _accepted(problem, extent)) is not None))
    if not tails:
        raise TemplateError(f"no default tails, because Problem refuses all of {wanted}: define tails")
    return tails


def _unit(problem: Any, name: str) -> int:
    """Return the smallest power of two that the Problem accepts for an extent with the others unchanged, or 1."""
    for unit in _UNITS:
        for others in ({}, dict.fromkeys(sizes(problem), 1)):
            if _accepted(problem, {**others, name: unit}) is not None:
                return unit
    return 1


def _accepted(problem: Any, extent: Mapping[str, int]) -> Any:
    """Return the problem with other extents; None if it refuses them."""
    try:
        return replace(problem, **extent)
    except UsageError:
        return None


def call(operator: Operator[Any]) -> Callable[..., Request]:
    """Return the default call signature.

    The tensor inputs are positional. Keyword arguments are the Problem fields that tensors do not imply, and scalars,
    for which None selects the default.
    """
    given = {argument.name: argument for argument in operator.arguments if argument.supplied}
    chosen = {field.name: field for field in fields(operator.problem) if field.name not in _shown(operator)}
    free = [argument.name for argument in operator.arguments if argument.required(operator.problem)]
    scalars = (argument for argument in operator.arguments if argument.role is Role.SCALAR)
    usual = [scalar.name for scalar in scalars if scalar.default is not None]
    parameters = [
        Parameter(argument.name, Parameter.POSITIONAL_OR_KEYWORD, annotation=Updated if argument.written else Any)
        for argument in given.values()
    ]
    parameters += [
        Parameter(value.name, Parameter.KEYWORD_ONLY, default=_usual(operator, value), annotation=value.type)
        for value in chosen.values()
    ]
    parameters += [Parameter(name, Parameter.KEYWORD_ONLY, annotation=float) for name in free]
    parameters += [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=float | None) for name in usual]
    shown = Signature(parameters)

    def request(*args: Any, **kwargs: Any) -> Request:
        bound = shown.bind(*args, **kwargs)
        bound.apply_defaults()
        values = bound.arguments
        arrays, statics = ({name: values[name] for name in names} for names in (given, chosen))
        return Request(arrays, statics, {name: values[name] for name in (*free, *usual) if values[name] is not None})

    request.__signature__ = shown  # type: ignore[attr-defined]  # read by help() and torch
    request.__name__, request.__doc__ = operator.name, operator.summary
    return request


def _shown(operator: Operator[Any]) -> set[Any]:
    """Return the fields of the Problem that a tensor input implies by a dim or its dtype."""
    return {name for argument in operator.arguments if argument.supplied for name in (*argument.dims, argument.dtype)}


def _usual(operator: Operator[Any], field: Field[Any]) -> Any:
    """Return the default in a call. Sizes have none: the Problem's default is only the start of a search."""
    return Parameter.empty if field.default is MISSING or field.name in extents(operator.problem) else field.default


def first(implementation: Implementation[Any, Any], problem: Any, arch: Arch) -> Any:
    """Return the first config that satisfies the constraints, in the order of the choices."""
    space = implementation.space(problem, arch)
    if not len(space):
        raise UsageError(f"{implementation.name} has no config for this problem on {arch.name}: {_refusing(space)}")
    return space[0]


def _refusing(space: Any) -> str:
    return "; ".join(f"{reason!r} refuses {count}" for reason, count in space.counts()) or "a parameter has no choice"


def work(least: Cost, plan: Plan) -> tuple[Work, ...]:
    """Divide the minimum work among the launches; the rest is derived from machine code (`undeclared`)."""
    share = 1 / len(plan.launches)
    return tuple(_least(least, share, prod(launch.grid), launch.block_threads) for launch in plan.launches)


def _least(least: Cost, share: float, ctas: int, threads: int) -> Work:
    return Work(
        ctas=ctas,
        warps=-(-threads // 32),
        fma=share * least.flops / 64,
        alu=0.0,
        l2_bytes=share * least.bytes,
        dram_bytes=share * least.bytes,
        chain=max(1.0, share * least.bytes / (ctas * threads * _LOAD)),
    )
