"""Shapes and dtypes of an operator's outputs, from those of JAX's arrays; and whether a batch of calls is one call."""

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from tuner.dispatcher.arrays import CPU, Facts
from tuner.dispatcher.binding import bind
from tuner.spec.argument import Argument, dense_strides
from tuner.spec.operator import Operator, Request

BATCH = "batch"


def outputs(
    operator: Operator[Any], request: Request, axes: frozenset[str] = frozenset()
) -> tuple[jax.ShapeDtypeStruct, ...]:
    """axes: those of a mesh over which the outputs vary, in jax.shard_map. Raises InputError for arrays that do not
    fit."""
    bound = bind(operator, request, {name: _facts(array) for name, array in request.arrays.items()})
    return tuple(
        _struct(bound.tensors[output.name].caller_shape, output.dtype_of(bound.problem).numpy, axes)
        for output in operator.outputs
    )


def varying(arrays: Iterable[Any]) -> frozenset[str]:
    """The axes of a mesh over which one of the arrays varies, in jax.shard_map."""
    return frozenset[str]().union(*map(_varying, arrays))


def _varying(array: Any) -> frozenset[str]:
    kind = jax.typeof(array)
    axes: frozenset[str] = kind.vma if hasattr(kind, "vma") else kind.manual_axis_type.varying  # JAX 0.10.0, and newer
    return axes


def _struct(shape: tuple[int, ...], dtype: Any, axes: frozenset[str]) -> jax.ShapeDtypeStruct:
    if not axes:
        return jax.ShapeDtypeStruct(shape, dtype)
    mesh = NamedSharding(jax.sharding.get_abstract_mesh(), PartitionSpec())
    if hasattr(jax.sharding, "ManualAxisType"):
        kind = jax.sharding.ManualAxisType(varying=axes)
        return jax.ShapeDtypeStruct(shape, dtype, sharding=mesh, manual_axis_type=kind)
    return jax.ShapeDtypeStruct(shape, dtype, sharding=mesh, vma=axes)


def varying_alike(arrays: Iterable[Any]) -> tuple[Any, ...]:
    """The arrays, all of which vary over what one of them varies over: so their gradients do, which JAX then sums."""
    arrays = tuple(arrays)
    axes = varying(arrays)
    missing = (tuple(axes - _varying(array)) for array in arrays)
    return tuple(
        jax.lax.pcast(array, names, to="varying") if names else array
        for array, names in zip(arrays, missing, strict=True)
    )


def _facts(array: Any) -> Facts:
    """As XLA will hand it over: in C order, wherever it is."""
    dtype, shape = np.dtype(array.dtype), tuple(array.shape)
    return Facts("numpy", CPU, dtype, shape, tuple(dtype.itemsize * stride for stride in dense_strides(shape)), 0)


def batch_axis(argument: Argument, request: Request) -> int | None:
    """Of the caller's array; None where the argument has no batch."""
    axes = request.axes.get(argument.name, range(len(argument.dims)))
    return axes[argument.dims.index(BATCH)] if BATCH in argument.dims else None
