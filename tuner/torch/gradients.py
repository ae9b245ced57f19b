"""How torch's autograd finds the gradient of an operator in another one, `<name>_backward`."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from inspect import Parameter, signature
from typing import Any

import torch

from tuner import operators
from tuner.errors import InputError
from tuner.spec.operator import Operator
from tuner.torch.rows import dense


@dataclass(frozen=True, slots=True)
class Names:
    """What `<name>_backward` calls the gradients. All else that it takes has the name that it has in the forward call,
    where it is a parameter or an output; what it does not take, it needs not."""

    taken: Mapping[str, str]  # output → the parameter that takes its gradient; the others have none
    given: Mapping[str, str] = field(default_factory=dict)  # parameter → output; the others are d<parameter>
    refused: tuple[str, ...] = ()  # parameters with which there is no gradient


DIFFERENTIABLE: Mapping[str, Names] = {
    "flash_attention": Names({"o": "dout", "lse": "dlse"}),
    "kda": Names({"o": "do", "final_state": "dht"}, {"initial_state": "dh0"}),
    "linear_attention": Names({"o": "do", "final_state": "dht"}, {"initial_state": "dh0"}),
    "streaming_attention": Names({"o": "dout", "lse": "dlse"}, refused=("seq_k", "cache_seqlens", "rolling")),
}


def keep(operator: Operator[Any]) -> Callable[..., None]:
    """What torch calls after the forward pass: saves what the backward call takes."""
    names, taken = DIFFERENTIABLE[operator.name], signature(_backward(operator).call).parameters

    def saves(
        ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...], keyword_only_inputs: Mapping[str, Any] | None = None
    ) -> None:
        given = dict(zip(signature(operator.call).parameters, inputs, strict=False)) | dict(keyword_only_inputs or {})
        _refuse(operator, given)
        results = dict(zip((each.name for each in operator.outputs), output, strict=True))
        wanted = {name: value for name, value in {**given, **results}.items() if name in taken}
        tensors = {name: value for name, value in wanted.items() if isinstance(value, torch.Tensor)}
        ctx.save_for_backward(*tensors.values())
        ctx.set_materialize_grads(False)  # zeros for an output that the loss does not use would be read for nothing
        ctx.outputs = {name: (value.shape, value.dtype, value.device) for name, value in results.items()}
        ctx.mark_non_differentiable(*(value for name, value in results.items() if name not in names.taken))
        ctx.tensors = tuple(tensors)
        ctx.options = {name: value for name, value in wanted.items() if name not in tensors}
        ctx.parameters = tuple(given)[: len(inputs)]

    return saves


def _refuse(operator: Operator[Any], given: Mapping[str, Any]) -> None:
    for name in DIFFERENTIABLE[operator.name].refused:
        value = given.get(name)
        if isinstance(value, torch.Tensor) or value:
            raise InputError(f"{operator.name} has no gradient with {name}: call under torch.no_grad()")


def gradient(operator: Operator[Any]) -> Callable[..., Any]:
    """What torch calls in the backward pass: a gradient for each parameter that is given by its place."""
    names, backward = DIFFERENTIABLE[operator.name], _backward(operator)

    def computes(ctx: Any, *upstream: Any) -> tuple[Any, ...]:
        tensors = dict(zip(ctx.tensors, ctx.saved_tensors, strict=True))
        taken = dict(_taken(names, backward, ctx.outputs, upstream))
        if torch.is_grad_enabled() and any(each.requires_grad for each in (*tensors.values(), *taken.values())):
            raise InputError(f"{operator.name}: its gradient has none of its own: leave out create_graph=True")
        found = getattr(torch.ops.tuner, backward.name)(**tensors, **taken, **ctx.options)
        given = dict(zip((each.name for each in backward.outputs), found, strict=True))
        return tuple(
            given[names.given.get(name, f"d{name}")].reshape(tensors[name].shape)
            if needed and name in tensors
            else None
            for name, needed in zip(ctx.parameters, ctx.needs_input_grad, strict=False)  # torch leaves defaults out
        )

    return computes


def _taken(
    names: Names, backward: Operator[Any], outputs: Mapping[str, tuple[Any, Any, Any]], upstream: tuple[Any, ...]
) -> Iterator[tuple[str, Any]]:
    """(parameter, gradient) of each output that the loss uses, and zeros where the backward call must have one."""
    parameters = signature(backward.call).parameters
    for (name, (shape, dtype, device)), each in zip(outputs.items(), upstream, strict=True):
        parameter = names.taken.get(name)
        if parameter is None:
            continue
        needed = parameters[parameter].default is Parameter.empty
        if each is None and needed:
            yield parameter, torch.zeros(shape, dtype=dtype, device=device)
        elif each is not None and (needed or each.numel()):  # an output that was not asked for is empty
            yield parameter, dense(each)  # it may be a view that repeats one element, as that of a sum is


def _backward(operator: Operator[Any]) -> Operator[Any]:
    return operators.load(f"{operator.name}_backward")
