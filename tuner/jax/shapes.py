"""Shapes and dtypes of an operator's outputs, from those of JAX's arrays; and whether a batch of calls is one call."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from tuner.errors import InputError, UsageError
from tuner.spec.argument import Argument
from tuner.spec.dtype import DType
from tuner.spec.operator import Operator, Request
from tuner.spec.shapes import outline

BATCH = "batch"


def outputs(operator: Operator[Any], request: Request) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Raises InputError for arrays that do not fit."""
    sizes = dict(_sizes(operator, request))
    try:
        made = outline(operator, sizes, {**dict(_dtypes(operator, request)), **request.statics})
    except InputError:
        raise
    except UsageError as error:
        raise InputError(str(error)) from error
    for name, size in sizes.items():
        if made.size(name) != size:
            raise InputError(f"{name} {size}: {operator.name} takes {made.size(name)} here")
    found = []
    for argument in operator.outputs:
        shape, order = made.shape(argument), axes(argument, request)
        placed = tuple(shape[order.index(axis)] for axis in range(len(shape)))
        found.append(jax.ShapeDtypeStruct(placed, argument.dtype_of(made.problem).numpy))
    return tuple(found)


def axes(argument: Argument, request: Request) -> tuple[int, ...]:
    """Where each of an argument's dims lies in the caller's array."""
    return tuple(request.axes.get(argument.name, range(len(argument.dims))))


def batch_axis(argument: Argument, request: Request) -> int | None:
    """Of the caller's array; None where the argument has no batch."""
    return axes(argument, request)[argument.dims.index(BATCH)] if BATCH in argument.dims else None


def _sizes(operator: Operator[Any], request: Request) -> Iterator[tuple[str, int]]:
    known: dict[str, tuple[int, str]] = {}
    for name, array in request.arrays.items():
        argument = operator.argument(name)
        if len(argument.dims) != len(array.shape):
            dims = ", ".join(argument.dims)
            raise InputError(f"{name} has shape {array.shape}: it takes {len(argument.dims)} dims, [{dims}]")
        for dim, axis in zip(argument.dims, axes(argument, request), strict=True):
            size, other = known.setdefault(dim, (array.shape[axis], name))
            if size != array.shape[axis]:
                raise InputError(f"{name} {array.shape}: {dim} is {array.shape[axis]}, but {size} in {other}")
            yield dim, size


def _dtypes(operator: Operator[Any], request: Request) -> Iterator[tuple[str, DType]]:
    seen: dict[str, DType] = {}
    for name, array in request.arrays.items():
        argument, found = operator.argument(name), DType.of(np.dtype(array.dtype))
        if found is None:
            raise InputError(f"{name} is {array.dtype}: no kernel takes that")
        wanted = argument.dtype if isinstance(argument.dtype, DType) else seen.setdefault(argument.dtype, found)
        if found is not wanted:
            raise InputError(f"{name} is {found.value}: {operator.name} takes {wanted.value} here")
        if isinstance(argument.dtype, str):
            yield argument.dtype, found
