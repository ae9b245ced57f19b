"""Shapes and dtypes of an operator's outputs from JAX's arrays, and whether a batch of calls can be one call."""

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
    """Return the structures of the outputs. axes: mesh axes over which the outputs vary in jax.shard_map.

    Raises InputError for unsuitable arrays.
    """
    bound = bind(operator, request, {name: _facts(array) for name, array in request.arrays.items()})
    return tuple(
        _struct(bound.tensors[output.name].caller_shape, output.dtype_of(bound.problem).numpy, axes)
        for output in operator.outputs
    )


def varying(arrays: Iterable[Any]) -> frozenset[str]:
    """Return the mesh axes over which any of the arrays varies in jax.shard_map."""
    return frozenset[str]().union(*map(_varying, arrays))


def _varying(array: Any) -> frozenset[str]:
    kind = jax.typeof(array)
    axes: frozenset[str] = kind.vma if hasattr(kind, "vma") else kind.manual_axis_type.varying  # since JAX 0.10.0
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
    """Return the arrays, all varying over the mesh axes of any of them, so that JAX sums their gradients over these
    axes.
    """
    arrays = tuple(arrays)
    axes = varying(arrays)
    missing = (tuple(axes - _varying(array)) for array in arrays)
    return tuple(
        jax.lax.pcast(array, names, to="varying") if names else array
        for array, names in zip(arrays, missing, strict=True)
    )


def _facts(array: Any) -> Facts:
    """Return the array's properties as XLA will pass it: in C order, on any device."""
    dtype, shape = np.dtype(array.dtype), tuple(array.shape)
    return Facts("numpy", CPU, dtype, shape, tuple(dtype.itemsize * stride for stride in dense_strides(shape)), 0)


def batch_axis(argument: Argument, request: Request) -> int | None:
    """Return the batch axis in the caller's array; None if the argument has no batch."""
    axes = request.axes.get(argument.name, range(len(argument.dims)))
    return axes[argument.dims.index(BATCH)] if BATCH in argument.dims else None
