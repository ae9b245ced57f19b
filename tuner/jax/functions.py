"""An operator as a function that JAX traces, batches and differentiates; XLA runs it through `handler`."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property, wraps
from inspect import Parameter, signature
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from tuner import operators
from tuner.dispatcher.calls import request_of
from tuner.errors import InputError
from tuner.jax import handler, shapes, sharding
from tuner.spec.backward import differentiable_outputs, differentiable_parameters
from tuner.spec.operator import Operator, Request

Outputs = tuple[jax.Array, ...]


def function(operator: Operator[Any]) -> Callable[..., Any]:
    """Call the operator on JAX's arrays, traced or not. Raises InputError for unsuitable arrays or options."""

    @wraps(operator.call)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature(operator.call).bind(*args, **kwargs).arguments
        arrays = {name: jnp.asarray(value) for name, value in bound.items() if _is_array(value)}
        options = {name: value for name, value in bound.items() if name not in arrays}
        try:
            spelled = json.dumps(options, sort_keys=True)
        except TypeError as error:
            raise InputError(f"{operator.name}: {error}: pass plain values beside the arrays") from error
        result = _call(operator.name, tuple(arrays), spelled)(*shapes.varying_alike(arrays.values()))
        return result if len(result) > 1 else result[0]

    return call


def _is_array(value: Any) -> bool:
    return isinstance(value, (jax.Array, np.ndarray))  # tracers are jax.Arrays


@cache
def _call(operator: str, names: tuple[str, ...], options: str) -> Callable[..., Outputs]:
    return Call(operators.load(operator), names, json.loads(options)).differentiable()


class Call:
    """An operator with its options, as a function of arrays in the order of their names."""

    def __init__(self, operator: Operator[Any], names: tuple[str, ...], options: Mapping[str, Any]) -> None:
        self.operator, self.names, self.options = operator, names, options
        batched = jax.custom_batching.custom_vmap(jax.jit(self._partitioned))
        batched.def_vmap(self._batched)
        self.run = jax.custom_jvp(batched)
        self.run.defjvp(self._refuse_jvp)
        handler.register()

    def differentiable(self) -> Callable[..., Outputs]:
        function: Any = jax.custom_vjp(self.run)
        gradients = Gradients(self)
        function.defvjp(gradients.keep, gradients.compute, symbolic_zeros=True)
        return cast(Callable[..., Outputs], function)

    def request(self, arrays: Sequence[Any]) -> Request:
        request = request_of(self.operator, (), {**dict(zip(self.names, arrays, strict=True)), **self.options})
        for argument in self.operator.updated:
            if argument.name in request.arrays:
                raise InputError(
                    f"{self.operator.name} would update {argument.name} in place, and JAX's arrays never change"
                )
        return request

    def _refuse_jvp(self, primals: Any, tangents: Any) -> Any:
        del primals, tangents
        name = self.operator.name.removesuffix("_backward")
        raise InputError(
            f"{name} has first derivatives in reverse mode only: jax.hessian, jax.jvp, jax.jacfwd and the gradient of "
            "a gradient are not supported"
        )

    def _partitioned(self, *arrays: Any) -> Outputs:
        if jax.sharding.get_abstract_mesh().manual_axes:  # inside jax.shard_map, arrays are the device's part
            return self._run(*arrays)
        request = self.request(arrays)
        sizes = [array.shape for array in (*arrays, *shapes.outputs(self.operator, request))]
        laid_out = sharding.layout(self.operator, arrays, request, sizes)
        run = sharding.partitioned(self._run, laid_out, sizes)
        return cast(Outputs, sharding.by_types(run, laid_out, arrays)(*arrays))

    def _run(self, *arrays: Any) -> Outputs:
        structs = shapes.outputs(self.operator, self.request(arrays), shapes.varying(arrays))
        call = json.dumps([self.operator.name, self.names, dict(self.options)])
        run = jax.ffi.ffi_call(handler.TARGET, structs)
        return tuple(run(*arrays, **{handler.ATTRIBUTE: call}))

    # ---- jax.vmap ----

    def _batched(self, size: int, mapped: Sequence[bool], *arrays: Any) -> tuple[Outputs, tuple[bool, ...]]:
        """Batch the call: one call of a larger batch if every mapped array and every output has a batch, otherwise one
        per element.
        """
        one = [array[0] if is_mapped else array for array, is_mapped in zip(arrays, mapped, strict=True)]
        folded = self._folded(size, mapped, arrays, one)
        if folded is None:
            result = jax.lax.map(lambda slices: self.run(*_merged(arrays, mapped, slices)), _taken(arrays, mapped))
        else:
            request = self.request(one)
            axes = [shapes.batch_axis(output, request) or 0 for output in self.operator.outputs]
            result = tuple(_unfold(output, size, axis) for output, axis in zip(self.run(*folded), axes, strict=True))
        return result, (True,) * len(result)

    def _folded(self, size: int, mapped: Sequence[bool], arrays: Sequence[Any], one: Sequence[Any]) -> list[Any] | None:
        """Return the arrays of the single larger call; None if it is impossible."""
        request = self.request(one)
        if any(shapes.batch_axis(output, request) is None for output in self.operator.outputs):
            return None
        dims = {
            id(array): shapes.batch_axis(self.operator.argument(name), request)
            for name, array in request.arrays.items()
        }
        folded = []
        for array, single, is_mapped in zip(arrays, one, mapped, strict=True):
            axis = dims.get(id(single))
            if axis is None:
                if is_mapped:
                    return None
                folded.append(array)
            else:
                folded.append(_fold(array if is_mapped else jnp.broadcast_to(array, (size, *array.shape)), axis))
        try:
            shapes.outputs(self.operator, self.request(folded))
        except InputError:  # packed sequences have a batch of 1
            return None
        return folded


def _fold(array: Any, axis: int) -> Any:
    moved = jnp.moveaxis(array, 0, axis)
    return moved.reshape(*moved.shape[:axis], -1, *moved.shape[axis + 2 :])


def _unfold(array: Any, size: int, axis: int) -> Any:
    shape = array.shape
    return jnp.moveaxis(array.reshape(*shape[:axis], size, shape[axis] // size, *shape[axis + 1 :]), axis, 0)


def _taken(arrays: Sequence[Any], mapped: Sequence[bool]) -> list[Any]:
    return [array for array, is_mapped in zip(arrays, mapped, strict=True) if is_mapped]


def _merged(arrays: Sequence[Any], mapped: Sequence[bool], taken: Sequence[Any]) -> list[Any]:
    rest = iter(taken)
    return [next(rest) if is_mapped else array for array, is_mapped in zip(arrays, mapped, strict=True)]


class Gradients:
    """The two functions of `jax.custom_vjp`: one returns the values that the backward pass needs, one computes that
    pass.
    """

    def __init__(self, call: Call) -> None:
        self.call, self.operator, self.names = call, call.operator, call.names

    def keep(self, *primals: Any) -> tuple[Outputs, tuple[Any, Any]]:
        self._refuse([name for name, primal in zip(self.names, primals, strict=True) if primal.perturbed])
        arrays = [primal.value for primal in primals]
        result = self.call.run(*arrays)
        return result, (arrays, result)

    def compute(self, kept: tuple[Any, Any], upstream: Sequence[Any]) -> tuple[Any, ...]:
        arrays, results = kept
        gradient, backward = self.operator.gradient, self._backward
        assert gradient is not None and backward is not None, "keep() has refused"
        taken = signature(backward.call).parameters
        outputs = [output.name for output in self.operator.outputs]
        given = {**dict(zip(self.names, arrays, strict=True)), **dict(zip(outputs, results, strict=True))}
        given = {name: array for name, array in given.items() if name in taken}
        for name, cotangent in zip(outputs, upstream, strict=True):
            if name in differentiable_outputs(self.operator, gradient):
                given |= _gradient_of(cotangent, taken[gradient.of_output(name)])
        options = {name: value for name, value in self.call.options.items() if name in taken}
        call = Call(backward, tuple(given), options)
        gradients = dict(zip((output.name for output in backward.outputs), call.run(*given.values()), strict=True))
        smooth = differentiable_parameters(self.operator, gradient)
        return tuple(
            gradients[gradient.of_parameter(name)].reshape(array.shape).astype(array.dtype) if name in smooth else None
            for name, array in zip(self.names, arrays, strict=True)
        )

    @cached_property
    def _backward(self) -> Operator[Any] | None:
        return operators.backward(self.operator)

    def _refuse(self, perturbed: Sequence[str]) -> None:
        gradient, name = self.operator.gradient, self.operator.name
        if gradient is None or self._backward is None:
            raise InputError(f"{name} has no gradient: call it outside of jax.grad, or on jax.lax.stop_gradient(…)")
        refused = {
            option: why
            for option, why in gradient.unsupported.items()
            if option in self.names or self.call.options.get(option)
        }
        refused |= {name: gradient.no_gradient[name] for name in perturbed if name in gradient.no_gradient}
        for argument, why in refused.items():
            raise InputError(f"{name} has no gradient with {argument} ({why}): call it outside of jax.grad")


def _gradient_of(cotangent: Any, parameter: Parameter) -> dict[str, Any]:
    """Return the argument of the backward call; none if the loss does not use an output and the call can omit it."""
    if not isinstance(cotangent, jax.custom_derivatives.SymbolicZero):
        return {parameter.name: cotangent} if cotangent.size else {}
    if parameter.default is Parameter.empty:
        return {parameter.name: jnp.zeros(cotangent.shape, cotangent.dtype)}
    return {}
