"""Outputs for tensors without memory: shapes and dtypes, also with symbolic sizes."""

from collections.abc import Callable
from typing import Any

import torch

from tuner.errors import InputError
from tuner.spec.dtype import DType
from tuner.spec.operator import Operator, Request
from tuner.spec.shapes import InferredProblem, infer_problem


def outputs(operator: Operator[Any]) -> Callable[..., Any]:
    """Return a function of the operator's arguments."""

    def fake(*args: Any, **kwargs: Any) -> Any:
        request = operator.call(*args, **kwargs)
        (sizes, _), made = _facts(operator, request), outlined(operator, request)
        first = next(iter(request.arrays.values()))
        results = []
        for argument in operator.outputs:
            shape = [sizes[dim] if dim in sizes else made.size(dim) for dim in argument.dims]
            order = request.axes.get(argument.name, tuple(range(len(shape))))
            dtype = getattr(torch, argument.dtype_of(made.problem).framework_name)
            results.append(first.new_empty([shape[order.index(axis)] for axis in range(len(shape))], dtype=dtype))
        return tuple(results) if len(results) > 1 else results[0]

    return fake


def outlined(operator: Operator[Any], request: Request) -> InferredProblem:
    """Return the Problem of a call. Raises UsageError for an invalid one."""
    sizes, dtypes = _facts(operator, request)
    symbolic = {name: value for name, value in request.statics.items() if isinstance(value, torch.SymInt)}
    plain = {name: value for name, value in request.statics.items() if name not in symbolic}
    return infer_problem(operator, {**sizes, **symbolic}, {**dtypes, **plain})


def _facts(operator: Operator[Any], request: Request) -> tuple[dict[str, Any], dict[str, DType]]:
    """Return (dim → size, Problem field → dtype) of the given tensors."""
    names = {getattr(torch, dtype.framework_name): dtype for dtype in DType}
    sizes: dict[str, Any] = {}
    dtypes: dict[str, DType] = {}
    for name, tensor in request.arrays.items():
        argument = operator.argument(name)
        order = request.axes.get(name, range(tensor.ndim))
        if tensor.ndim != len(argument.dims):
            raise InputError(f"{operator.name}: {name} has {tensor.ndim} dims: give [{', '.join(argument.dims)}]")
        for dim, axis in zip(argument.dims, order, strict=True):
            _agree(operator, name, dim, tensor.shape[axis], sizes.setdefault(dim, tensor.shape[axis]))
        if isinstance(argument.dtype, str):
            dtypes[argument.dtype] = names[tensor.dtype]
    return sizes, dtypes


def _agree(operator: Operator[Any], name: str, dim: str, size: Any, other: Any) -> None:
    """Refuse, during shape inference, what the kernel's call would refuse."""

    def told() -> str:
        return f"{operator.name}: {name} has {dim} {size}, and another tensor {other}"

    if not (isinstance(size, int) and isinstance(other, int)):
        torch._check(size == other, told)
    elif size != other:
        raise InputError(told())
