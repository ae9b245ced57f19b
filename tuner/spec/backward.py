"""Check that an operator and the operator of its gradients fit together."""

from collections.abc import Callable, Iterator
from inspect import Parameter, signature
from typing import Any

from tuner.errors import TemplateError
from tuner.spec.contract import Complaints
from tuner.spec.dtype import DType
from tuner.spec.operator import Gradient, Operator, Request, Updated

_TENSORS = (Any, Updated, Any | float)  # annotations of call parameters that are arrays, always or sometimes
_INTEGERS = (DType.INT32, DType.INT64)


def matching_backward(operator: Operator[Any], gradient: Gradient, backward: Operator[Any]) -> Operator[Any]:
    """Return `backward`. Both operators are complete. Raises TemplateError if their calls do not fit together."""
    for wrong in _mismatches(operator, gradient, backward):
        raise TemplateError(f"{operator.name}/operator.py: gradient {wrong}")
    return backward


def differentiable_outputs(operator: Operator[Any], gradient: Gradient) -> tuple[str, ...]:
    """Return the names of the differentiable outputs."""
    without = {*gradient.no_gradient, *_integers(operator)}
    return tuple(argument.name for argument in operator.outputs if argument.name not in without)


def differentiable_parameters(operator: Operator[Any], gradient: Gradient) -> tuple[str, ...]:
    """Return the names of the differentiable tensor parameters of the operator's call."""
    without = {*gradient.no_gradient, *gradient.unsupported, *_integers(operator)}
    tensors = (name for name, value in _parameters(operator.call) if value.annotation in _TENSORS)
    return tuple(name for name in tensors if name not in without)


def _mismatches(operator: Operator[Any], gradient: Gradient, backward: Operator[Any]) -> Complaints:
    parameters, outputs = dict(_parameters(operator.call)), {argument.name for argument in operator.outputs}
    takes, gives = dict(_parameters(backward.call)), {argument.name for argument in backward.outputs}
    yield from _unknown("upstream", gradient.upstream, outputs, f"an output of {operator.name}")
    yield from _unknown("upstream", gradient.upstream.values(), takes, f"a parameter of {backward.name}")
    yield from _unknown("gradients", gradient.gradients, parameters, f"a parameter of {operator.name}")
    yield from _unknown("gradients", gradient.gradients.values(), gives, f"an output of {backward.name}")
    yield from _unknown("unsupported", gradient.unsupported, parameters, f"a parameter of {operator.name}")
    yield from _unknown(
        "no_gradient", gradient.no_gradient, {**parameters, **dict.fromkeys(outputs)}, f"a name of {operator.name}"
    )
    upstream = {gradient.of_output(name) for name in differentiable_outputs(operator, gradient)}
    for name in sorted(upstream - takes.keys()):
        yield f"{name} is not a parameter of {backward.name}: name it in upstream, or give the reason in no_gradient"
    for name in differentiable_parameters(operator, gradient):
        if gradient.of_parameter(name) not in gives:
            yield (
                f"of {name} is not an output of {backward.name} ({', '.join(sorted(gives))}): "
                "name it in gradients, or say in no_gradient why there is none"
            )
    if backward.updated:
        yield f"is of {backward.name}, which updates {backward.updated[0].name} in place: return it instead"
    known = {*takes, *differentiable_parameters(operator, gradient), *gradient.no_gradient, *gradient.unsupported}
    for name in (parameter for parameter in parameters if parameter not in known):
        yield f"leaves out {name}, which {backward.name} does not take: say why in no_gradient or unsupported"
    for name, value in takes.items():
        if value.default is Parameter.empty and name not in {*parameters, *outputs, *upstream}:
            yield f"does not say what {name} of {backward.name} is: no parameter, output or gradient of {operator.name}"


def _parameters(call: Callable[..., Request]) -> Iterator[tuple[str, Parameter]]:
    return iter(signature(call).parameters.items())


def _integers(operator: Operator[Any]) -> Iterator[str]:
    problem = operator.problem()
    return (argument.name for argument in operator.arguments if argument.dtype_of(problem) in _INTEGERS)


def _unknown(where: str, names: Any, known: Any, what: str) -> Complaints:
    for name in names:
        if name not in known:
            yield f"{where} names {name!r}, which is not {what} ({', '.join(sorted(known))})"
