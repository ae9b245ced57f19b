"""Shapes and dtypes of an operator's outputs, from those of JAX's arrays; and whether a batch of calls is one call."""

from typing import Any

import jax
import numpy as np

from tuner.dispatcher.arrays import CPU, Facts
from tuner.dispatcher.binding import bind
from tuner.spec.argument import Argument, dense_strides
from tuner.spec.operator import Operator, Request

BATCH = "batch"


def outputs(operator: Operator[Any], request: Request) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Raises InputError for arrays that do not fit."""
    bound = bind(operator, request, {name: _facts(each) for name, each in request.arrays.items()})
    return tuple(
        jax.ShapeDtypeStruct(bound.tensors[each.name].caller_shape, each.dtype_of(bound.problem).numpy)
        for each in operator.outputs
    )


def _facts(array: Any) -> Facts:
    """As XLA will hand it over: in C order, wherever it is."""
    dtype, shape = np.dtype(array.dtype), tuple(array.shape)
    return Facts("numpy", CPU, dtype, shape, tuple(dtype.itemsize * each for each in dense_strides(shape)), 0)


def batch_axis(argument: Argument, request: Request) -> int | None:
    """Of the caller's array; None where the argument has no batch."""
    axes = request.axes.get(argument.name, range(len(argument.dims)))
    return axes[argument.dims.index(BATCH)] if BATCH in argument.dims else None
