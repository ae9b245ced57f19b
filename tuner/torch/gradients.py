"""Autograd of operators: the gradient of an operator is computed by the operator that its `gradient` names."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter, signature
from typing import Any

import torch

from tuner import operators
from tuner.errors import InputError
from tuner.spec.backward import differentiable_outputs
from tuner.spec.operator import Gradient, Operator
from tuner.torch.op_schema import schema
from tuner.torch.tensor_layout import dense


@dataclass(frozen=True)
class Differentiable:
    """An operator and the operator of its gradients. torch calls `keep` and `compute`."""

    operator: Operator[Any]
    gradient: Gradient
    backward: Operator[Any]

    @classmethod
    def of(cls, operator: Operator[Any]) -> "Differentiable | None":
        """Return None for an operator without gradients. Raises TemplateError if the two operators do not fit together,
        or do not fit torch.
        """
        backward = operators.backward(operator)
        if operator.gradient is None or backward is None:
            return None
        schema(backward)  # the overload that autograd calls
        return cls(operator, operator.gradient, backward)

    def keep(
        self,
        ctx: Any,
        inputs: tuple[Any, ...],
        output: Any,
        keyword_only_inputs: Mapping[str, Any] | None = None,
    ) -> None:
        """Save what the backward call needs, after the forward pass."""
        taken = signature(self.backward.call).parameters
        by_place = zip(signature(self.operator.call).parameters, inputs, strict=False)
        given = {**dict(by_place), **(keyword_only_inputs or {})}
        self._refuse(given)
        outputs = output if isinstance(output, tuple) else (output,)
        results = dict(zip((output.name for output in self.operator.outputs), outputs, strict=True))
        wanted = {name: value for name, value in {**given, **results}.items() if name in taken}
        tensors = _tensors(wanted)
        ctx.save_for_backward(*tensors.values())
        ctx.set_materialize_grads(False)  # zeros for an unused output would be read for nothing
        ctx.outputs = {name: (value.shape, value.dtype, value.device) for name, value in results.items()}
        ctx.mark_non_differentiable(*(result for name, result in results.items() if name not in self._upstream))
        ctx.tensors = tuple(tensors)
        ctx.shapes = {name: tensor.shape for name, tensor in _tensors(given).items()}
        ctx.options = {name: value for name, value in wanted.items() if name not in tensors}
        ctx.parameters = tuple(given)[: len(inputs)]

    def compute(self, ctx: Any, *upstream: Any) -> tuple[Any, ...]:
        """Return, in the backward pass, a gradient for each positional parameter."""
        tensors = dict(zip(ctx.tensors, ctx.saved_tensors, strict=True))
        taken = dict(self._taken(ctx.outputs, upstream))
        every = (*tensors.values(), *taken.values())
        differentiable = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in every)
        # torch.func's transforms request gradients of gradients even if they are unused:
        # `undifferentiable` handles these.
        if differentiable and not any(map(torch._C._functorch.is_functorch_wrapped_tensor, every)):
            raise InputError(f"{self.operator.name}: its gradient has none of its own: leave out create_graph=True")
        result = getattr(torch.ops.tuner, self.backward.name)(**tensors, **taken, **ctx.options)
        result = result if isinstance(result, tuple) else (result,)
        given = dict(zip((output.name for output in self.backward.outputs), result, strict=True))
        return tuple(
            given[self.gradient.of_parameter(name)].reshape(ctx.shapes[name]) if needed and name in ctx.shapes else None
            for name, needed in zip(ctx.parameters, ctx.needs_input_grad, strict=False)  # torch omits defaults
        )

    def _refuse(self, given: Mapping[str, Any]) -> None:
        for name, why in self.gradient.unsupported.items():
            if isinstance(given.get(name), torch.Tensor) or given.get(name):
                raise self._without(name, why)
        for name, why in self.gradient.no_gradient.items():
            if isinstance(given.get(name), torch.Tensor) and given[name].requires_grad:
                raise self._without(name, why)

    def _without(self, name: str, why: str) -> InputError:
        return InputError(f"{self.operator.name} has no gradient with {name} ({why}): call under torch.no_grad()")

    @cached_property
    def _upstream(self) -> dict[str, str]:
        """Return output → the backward call's parameter for its gradient."""
        return {name: self.gradient.of_output(name) for name in differentiable_outputs(self.operator, self.gradient)}

    def _taken(
        self, outputs: Mapping[str, tuple[Any, Any, Any]], upstream: tuple[Any, ...]
    ) -> Iterator[tuple[str, Any]]:
        """Return (parameter, gradient) of each used output, with zeros where the backward call requires a gradient."""
        parameters = signature(self.backward.call).parameters
        for (name, (shape, dtype, device)), gradient in zip(outputs.items(), upstream, strict=True):
            if (parameter := self._upstream.get(name)) is None:
                continue
            needed = parameters[parameter].default is Parameter.empty
            if gradient is None and needed:
                yield parameter, torch.zeros(shape, dtype=dtype, device=device)
            elif gradient is not None and (needed or gradient.numel()):  # an output that was not requested is empty
                # `dense`, since it may be a view that repeats one element, such as the gradient of a sum
                yield parameter, dense(gradient)


def kernel(operator: Operator[Any], op: Any, keep: Callable[..., None], compute: Callable[..., Any]) -> Any:
    """Return what torch calls for `op` when it tracks gradients, also in torch.func's transforms.

    torch.func does not support operators that torch registers itself, because their Function has no setup_context.
    `forward` therefore calls the operator again with one transform less, until no transform and no gradient is left.
    """
    names = tuple(signature(operator.call).parameters)

    class Differentiated(torch.autograd.Function):  # type: ignore[misc, unused-ignore]  # torch may be absent
        generate_vmap_rule = True

        @staticmethod
        def forward(*args: Any) -> Any:
            return op(*args[:-1], **args[-1])

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            keep(ctx, inputs[:-1], output, inputs[-1])

        @staticmethod
        def backward(ctx: Any, *upstream: Any) -> Any:
            return (*compute(ctx, *upstream), None)

    def call(*args: Any, **named: Any) -> Any:
        if not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in _tensors_in(args))):
            with torch._C._AutoDispatchBelowAutograd():
                return op(*args, **named)
        by_place = [*args, *(defaults[name] for name in names[len(args) :] if name in defaults)]
        with _outermost():
            return Differentiated.apply(*by_place, named)

    defaults = {
        name: parameter.default
        for name, parameter in signature(operator.call).parameters.items()
        if parameter.kind is not Parameter.KEYWORD_ONLY and parameter.default is not Parameter.empty
    }
    return call


def undifferentiable(operator: Operator[Any], op: Any) -> Any:
    """Wrap the kernel of an operator without gradients. The kernel refuses tensors that require grad, but inside
    torch.func's transforms it does not see them; requesting a gradient there raises an error, since torch would assume
    zero.
    """

    def keep(*_: Any) -> None:
        """Save nothing."""

    def refuse(*_: Any) -> Any:
        raise InputError(f"{operator.name} has no gradient: call it under torch.no_grad(), or detach its tensors")

    differentiated = kernel(operator, op, keep, refuse)

    def call(*args: Any, **named: Any) -> Any:
        if _transforming():
            return differentiated(*args, **named)
        with torch._C._AutoDispatchBelowAutograd():
            return op(*args, **named)

    return call


def _tensors_in(args: Iterable[Any]) -> Iterator[Any]:
    return (argument for argument in args if isinstance(argument, torch.Tensor))


def _transforming() -> bool:
    """Return whether a transform of torch.func is active."""
    return bool(torch._C._are_functorch_transforms_active())


def _outermost() -> Any:
    """Satisfy the protocol of a Function inside a transform of torch.func: the transform must see its call first."""
    if not _transforming():
        return nullcontext()
    keys = torch._C.DispatchKey
    front, back = keys.FuncTorchDynamicLayerFrontMode, keys.FuncTorchDynamicLayerBackMode
    both = torch._C.DispatchKeySet(front) | torch._C.DispatchKeySet(back)
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    return torch._C._ForceDispatchKeyGuard(included | both, excluded - both)


def _tensors(values: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
