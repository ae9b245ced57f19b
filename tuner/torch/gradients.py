"""How torch's autograd finds the gradient of an operator in the one that its `gradient` names."""

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
    """An operator, and the one that computes its gradients: `keep` and `compute` are what torch calls."""

    operator: Operator[Any]
    gradient: Gradient
    backward: Operator[Any]

    @classmethod
    def of(cls, operator: Operator[Any]) -> "Differentiable | None":
        """None for an operator without gradients. Raises TemplateError where the two, or torch and the other, do not
        fit."""
        backward = operators.backward(operator)
        if operator.gradient is None or backward is None:
            return None
        schema(backward)  # by which autograd calls it
        return cls(operator, operator.gradient, backward)

    def keep(
        self,
        ctx: Any,
        inputs: tuple[Any, ...],
        output: Any,
        keyword_only_inputs: Mapping[str, Any] | None = None,
    ) -> None:
        """After the forward pass: saves what the backward call takes."""
        taken = signature(self.backward.call).parameters
        by_place = zip(signature(self.operator.call).parameters, inputs, strict=False)
        given = {**dict(by_place), **(keyword_only_inputs or {})}
        self._refuse(given)
        found = output if isinstance(output, tuple) else (output,)
        results = dict(zip((each.name for each in self.operator.outputs), found, strict=True))
        wanted = {name: value for name, value in {**given, **results}.items() if name in taken}
        tensors = _tensors(wanted)
        ctx.save_for_backward(*tensors.values())
        ctx.set_materialize_grads(False)  # zeros for an output that the loss does not use would be read for nothing
        ctx.outputs = {name: (value.shape, value.dtype, value.device) for name, value in results.items()}
        ctx.mark_non_differentiable(*(each for name, each in results.items() if name not in self._upstream))
        ctx.tensors = tuple(tensors)
        ctx.shapes = {name: each.shape for name, each in _tensors(given).items()}
        ctx.options = {name: value for name, value in wanted.items() if name not in tensors}
        ctx.parameters = tuple(given)[: len(inputs)]

    def compute(self, ctx: Any, *upstream: Any) -> tuple[Any, ...]:
        """In the backward pass: a gradient for each parameter that is given by its place."""
        tensors = dict(zip(ctx.tensors, ctx.saved_tensors, strict=True))
        taken = dict(self._taken(ctx.outputs, upstream))
        every = (*tensors.values(), *taken.values())
        differentiable = torch.is_grad_enabled() and any(each.requires_grad for each in every)
        # torch.func's transforms ask for gradients of gradients whether they are used or not: then
        # `undifferentiable` answers.
        if differentiable and not any(map(torch._C._functorch.is_functorch_wrapped_tensor, every)):
            raise InputError(f"{self.operator.name}: its gradient has none of its own: leave out create_graph=True")
        found = getattr(torch.ops.tuner, self.backward.name)(**tensors, **taken, **ctx.options)
        found = found if isinstance(found, tuple) else (found,)
        given = dict(zip((each.name for each in self.backward.outputs), found, strict=True))
        return tuple(
            given[self.gradient.of_parameter(name)].reshape(ctx.shapes[name]) if needed and name in ctx.shapes else None
            for name, needed in zip(ctx.parameters, ctx.needs_input_grad, strict=False)  # torch leaves defaults out
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
        """Output → the backward call's parameter that takes its gradient."""
        return {name: self.gradient.of_output(name) for name in differentiable_outputs(self.operator, self.gradient)}

    def _taken(
        self, outputs: Mapping[str, tuple[Any, Any, Any]], upstream: tuple[Any, ...]
    ) -> Iterator[tuple[str, Any]]:
        """(parameter, gradient) of each output that the loss uses, and zeros where the backward call must have one."""
        parameters = signature(self.backward.call).parameters
        for (name, (shape, dtype, device)), each in zip(outputs.items(), upstream, strict=True):
            if (parameter := self._upstream.get(name)) is None:
                continue
            needed = parameters[parameter].default is Parameter.empty
            if each is None and needed:
                yield parameter, torch.zeros(shape, dtype=dtype, device=device)
            elif each is not None and (needed or each.numel()):  # an output that was not asked for is empty
                yield parameter, dense(each)  # it may be a view that repeats one element, as that of a sum is


def kernel(operator: Operator[Any], op: Any, keep: Callable[..., None], compute: Callable[..., Any]) -> Any:
    """What torch calls of `op` where it keeps track of gradients, in torch.func's transforms too.

    An operator that torch registers itself takes no part in those: its Function lacks a setup_context. Here `forward`
    calls the operator again, where fewer transforms are left, and in the end none and no gradient.
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
        if not (torch.is_grad_enabled() and any(each.requires_grad for each in _tensors_in(args))):
            with torch._C._AutoDispatchBelowAutograd():
                return op(*args, **named)
        by_place = [*args, *(defaults[name] for name in names[len(args) :] if name in defaults)]
        with _outermost():
            return Differentiated.apply(*by_place, named)

    defaults = {
        name: each.default
        for name, each in signature(operator.call).parameters.items()
        if each.kind is not Parameter.KEYWORD_ONLY and each.default is not Parameter.empty
    }
    return call


def undifferentiable(operator: Operator[Any], op: Any) -> Any:
    """`kernel` of an operator without gradients. It refuses tensors that require grad itself; in torch.func's
    transforms it sees none, and whoever asks for a gradient there is told so: torch would take it for 0."""

    def keep(*_: Any) -> None:
        """Nothing is needed to refuse."""

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
    return (each for each in args if isinstance(each, torch.Tensor))


def _transforming() -> bool:
    """Whether one of torch.func's transforms is at work."""
    return bool(torch._C._are_functorch_transforms_active())


def _outermost() -> Any:
    """Within one of torch.func's transforms, what a Function expects: that the transform sees its call first."""
    if not _transforming():
        return nullcontext()
    keys = torch._C.DispatchKey
    front, back = keys.FuncTorchDynamicLayerFrontMode, keys.FuncTorchDynamicLayerBackMode
    both = torch._C.DispatchKeySet(front) | torch._C.DispatchKeySet(back)
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    return torch._C._ForceDispatchKeyGuard(included | both, excluded - both)


def _tensors(values: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
