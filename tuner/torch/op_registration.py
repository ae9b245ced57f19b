"""Registration of operators as torch custom ops: kernels for CPU (emulator) and CUDA, fake tensors, gradients."""

import warnings
from collections.abc import Callable, Iterator
from inspect import signature
from typing import Any

import torch
from torch.autograd import forward_ad

from tuner import dispatcher, operators
from tuner.errors import InputError, TunerError, UsageError
from tuner.spec.operator import Operator
from tuner.torch import autocast, gradients, meta, op_schema, transforms
from tuner.torch.gradients import Differentiable

_LIBRARY: Any = torch.library.Library("tuner", "DEF")  # type: ignore[no-untyped-call, unused-ignore]  # torch may be absent


def register() -> None:
    """Register every operator. One that is broken, or that torch cannot express, causes a warning."""
    operators_and_schemas = tuple(_found())
    backward = {operator.gradient.operator for operator, _ in operators_and_schemas if operator.gradient}
    for operator, schemas in operators_and_schemas:
        differentiable = _differentiable(operator)
        for schema in schemas:
            _define(schema, _kernel(operator, detached=differentiable is not None), meta.outputs(operator))
        if differentiable:
            _differentiate(differentiable, schemas)
        elif not operator.updated:
            for name in map(_name, schemas):
                _LIBRARY.impl(name, gradients.undifferentiable(operator, _op(name)), "Autograd")
        for name in map(_name, schemas):
            if not operator.updated and not op_schema.names_tensors(operator):
                torch.library.register_vmap(f"tuner::{name}", transforms.batches(operator, _op(name)), lib=_LIBRARY)
        transforms.count_flops(operator, getattr(torch.ops.tuner, operator.name))
        if operator.name not in backward:  # autograd passes the arguments of the forward call to those
            _autocast(operator, schemas)


def register_sharding() -> None:
    """Allow DTensors of these operators to be sharded over the sequences of a batch, and over heads: flash_attention
    over both, any other operator over those that each of its outputs has.

    Heads remain sharded if the number of devices divides every kind of head. Imports torch.distributed.tensor, whose
    API for this is experimental, so it is done on request.
    """
    for operator, schemas in _found():
        if not operator.updated:
            for name in map(_name, schemas):
                transforms.shards(operator, _op(name))


def _found() -> Iterator[tuple[Operator[Any], tuple[str, ...]]]:
    """Yield (operator, its schemas)."""
    for name in operators.names():
        try:
            operator = operators.load(name)
            schemas = op_schema.overloads(operator)
        except TunerError as error:
            warnings.warn(f"there is no torch.ops.tuner.{name}: {error}", stacklevel=3)
            continue
        yield operator, schemas


def _differentiable(operator: Operator[Any]) -> Differentiable | None:
    try:
        return Differentiable.of(operator)
    except TunerError as error:
        warnings.warn(f"torch.ops.tuner.{operator.name} has no gradient: {error}", stacklevel=3)
        return None


def _define(schema: str, kernel: Callable[..., Any], shapes: Callable[..., Any]) -> None:
    name = _name(schema)
    _LIBRARY.define(schema)
    for key in ("CPU", "CUDA"):
        _LIBRARY.impl(name, kernel, key)
    torch.library.register_fake(f"tuner::{name}", shapes, lib=_LIBRARY)


def _autocast(operator: Operator[Any], schemas: tuple[str, ...]) -> None:
    for name in map(_name, schemas):
        call = _op(name)
        for key, device in autocast.DEVICES.items():
            _LIBRARY.impl(name, autocast.cast(operator, call, device), key)


def _name(schema: str) -> str:
    """Return the overload name of a schema."""
    return schema.partition("(")[0]


def _op(name: str) -> Any:
    """Return the overload with this name."""
    base, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.tuner, base), overload or "default")


def _kernel(operator: Operator[Any], *, detached: bool) -> Callable[..., Any]:
    """Return the dispatcher's call. It refuses tensors that require grad; when torch tracks gradients, it receives
    detached ones.
    """
    call: Callable[..., Any] = getattr(dispatcher, operator.name)
    own = _detach if detached else lambda arg: arg

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if forward_ad._current_level >= 0:  # torch would assume zero for an unknown tangent
            raise InputError(
                f"{operator.name} has no derivative in forward mode: call it outside of torch.func.jvp and dual levels"
            )
        return call(*map(own, args), **{name: own(arg) for name, arg in kwargs.items()})

    return kernel


def _detach(arg: Any) -> Any:
    return arg.detach() if isinstance(arg, torch.Tensor) else arg


def _differentiate(differentiable: Differentiable, schemas: tuple[str, ...]) -> None:
    """Register a differentiable twin: torch does not differentiate operators that may update arguments or have
    keyword-only tensors.
    """
    operator, names = differentiable.operator, tuple(map(_name, schemas))
    if operator.updated or op_schema.names_tensors(operator):
        twin = op_schema.functional(operator)
        kernel, shapes = _kernel(operator, detached=True), meta.outputs(operator)
        _define(twin, _by_place(operator, kernel), _by_place(operator, shapes))
        _LIBRARY.impl(operator.name, _routed(operator), "Autograd")
        names = (_name(twin),)
    for name in names:
        call = gradients.kernel(operator, _op(name), differentiable.keep, differentiable.compute)
        _LIBRARY.impl(name, call, "Autograd")


def _by_place(operator: Operator[Any], call: Callable[..., Any]) -> Callable[..., Any]:
    names = tuple(signature(operator.call).parameters)
    return lambda *args: call(**dict(zip(names, args, strict=False)))


def _routed(operator: Operator[Any]) -> Callable[..., Any]:
    """Call the twin or, if arguments are updated, the operator's own kernel, which has no gradient."""
    own, parameters = getattr(torch.ops.tuner, operator.name), signature(operator.call)

    def route(*args: Any, **kwargs: Any) -> Any:
        bound = parameters.bind(*args, **kwargs)
        bound.apply_defaults()
        if not _updates(operator, args, kwargs):
            return getattr(torch.ops.tuner, f"{operator.name}_functional")(*bound.arguments.values())
        given = {name: arg for name, arg in bound.arguments.items() if isinstance(arg, torch.Tensor)}
        if differentiable := [name for name, arg in given.items() if arg.requires_grad and torch.is_grad_enabled()]:
            raise InputError(
                f"{differentiable[0]} requires grad, and {operator.name} has no gradient where it updates "
                f"{operator.updated[0].name} in place: call under torch.no_grad()"
            )
        with torch._C._AutoDispatchBelowAutograd():
            return own(*args, **kwargs)

    return route


def _updates(operator: Operator[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    try:
        request = operator.call(*args, **kwargs)
    except UsageError as error:
        raise InputError(str(error)) from error
    return any(argument.name in request.arrays for argument in operator.updated)
