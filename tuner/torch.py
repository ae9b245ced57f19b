"""Every operator as `torch.ops.tuner.<operator>`, which `torch.compile` and `torch.export` keep as one node.

    import tuner.torch
    o, lse = torch.ops.tuner.flash_attention(q, k, v, causal=True)

Plain eager code needs no more than `tuner.dispatcher`. flash_attention has a gradient, through o and not through lse;
tensors that require grad are refused by the others.
"""

from collections.abc import Callable
from dataclasses import fields
from inspect import Parameter, signature
from typing import Any

import torch

from tuner import dispatcher, operators
from tuner.dtype import DType
from tuner.errors import TemplateError
from tuner.operator import Operator, Request, Updated, from_fields

_LIBRARY: Any = torch.library.Library("tuner", "DEF")  # type: ignore[no-untyped-call, unused-ignore]  # torch may be absent
_TYPES: dict[Any, str] = {
    Any: "Tensor",
    Updated: "Tensor(a!)",
    bool: "bool",
    int: "int",
    int | None: "int?",
    float: "float",
    float | None: "float?",
    str: "str",
    tuple[Any, Any] | None: "Tensor[]?",
}


def schema(operator: Operator[Any]) -> str:
    """The operator's signature as torch writes it. Raises TemplateError for a parameter that torch has no type for."""
    words: list[str] = []
    for parameter in signature(operator.call).parameters.values():
        if parameter.kind is Parameter.KEYWORD_ONLY and "*" not in words:
            words.append("*")
        words.append(_declared(operator, parameter))
    results = ", ".join(["Tensor"] * len(operator.outputs))
    return f"{operator.name}({', '.join(words)}) -> " + (f"({results})" if len(operator.outputs) > 1 else results)


def _declared(operator: Operator[Any], parameter: Parameter) -> str:
    if parameter.annotation not in _TYPES:
        known = ", ".join(map(str, _TYPES))
        raise TemplateError(f"{operator.name}: torch has no type for the parameter {parameter} (known: {known})")
    optional = parameter.annotation in (Any, Updated) and parameter.default is None
    declared = f"{_TYPES[parameter.annotation]}{'?' * optional} {parameter.name}"
    if parameter.default is Parameter.empty:
        return declared
    spelled = f'"{parameter.default}"' if isinstance(parameter.default, str) else str(parameter.default)
    return f"{declared}={spelled}"


def _shapes(operator: Operator[Any]) -> Callable[..., Any]:
    """What torch calls to learn the outputs of tensors that have no memory: shapes and dtypes, symbolic sizes too."""

    def fake(*args: Any, **kwargs: Any) -> Any:
        request = operator.call(*args, **kwargs)
        sizes, dtypes = _facts(operator, request)
        known = {each.name for each in fields(operator.problem)}
        chosen = {name: value for name, value in {**sizes, **dtypes, **request.statics}.items() if name in known}
        problem, first = from_fields(operator.problem, chosen), next(iter(request.arrays.values()))
        outputs = []
        for argument in operator.outputs:
            shape = [sizes.get(dim, getattr(problem, dim)) for dim in argument.dims]
            order = request.axes.get(argument.name, tuple(range(len(shape))))
            dtype = getattr(torch, argument.dtype_of(problem).numpy.name)
            outputs.append(first.new_empty([shape[order.index(axis)] for axis in range(len(shape))], dtype=dtype))
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    return fake


def _facts(operator: Operator[Any], request: Request) -> tuple[dict[str, Any], dict[str, DType]]:
    """(dim → size, Problem field → dtype) of the tensors that are given."""
    names = {getattr(torch, each.numpy.name): each for each in DType}
    sizes: dict[str, Any] = {}
    dtypes: dict[str, DType] = {}
    for name, tensor in request.arrays.items():
        argument = operator.argument(name)
        order = request.axes.get(name, range(tensor.ndim))
        sizes |= {dim: tensor.shape[axis] for dim, axis in zip(argument.dims, order, strict=True)}
        if isinstance(argument.dtype, str):
            dtypes[argument.dtype] = names[tensor.dtype]
    return sizes, dtypes


# Operators whose gradient is `<name>_backward(gradient of the first output, *tensors, *outputs, **options)`.
_DIFFERENTIABLE = ("flash_attention",)


def _keep(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: tuple[Any, ...]) -> None:
    """What torch calls after the forward pass."""
    ctx.save_for_backward(*inputs, *output)
    ctx.mark_non_differentiable(*output[1:])
    ctx.options = keyword_only_inputs


def _gradient(operator: Operator[Any]) -> Callable[..., Any]:
    backward = f"{operator.name}_backward"

    def gradient(ctx: Any, first: Any, *_others: Any) -> Any:
        # A gradient may be a view that repeats one element, as that of a sum is.
        return getattr(torch.ops.tuner, backward)(first.contiguous(), *ctx.saved_tensors, **ctx.options)

    return gradient


def _detached(name: str) -> Callable[..., Any]:
    """The dispatcher's call, which refuses tensors that require grad, for where torch keeps track of the gradient."""

    def call(*args: Any, **kwargs: Any) -> Any:
        given = [arg.detach() if isinstance(arg, torch.Tensor) else arg for arg in args]
        return getattr(dispatcher, name)(*given, **kwargs)

    return call


def _register(operator: Operator[Any]) -> None:
    name, differentiable = _LIBRARY.define(schema(operator)), operator.name in _DIFFERENTIABLE
    for key in ("CPU", "CUDA"):
        call = _detached(operator.name) if differentiable else getattr(dispatcher, operator.name)
        _LIBRARY.impl(name, call, key)
    torch.library.register_fake(f"tuner::{operator.name}", _shapes(operator), lib=_LIBRARY)
    if differentiable:
        torch.library.register_autograd(
            f"tuner::{operator.name}", _gradient(operator), setup_context=_keep, lib=_LIBRARY
        )


for _name in operators.names():
    _register(operators.load(_name))
