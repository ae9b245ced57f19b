"""Operators inside torch.autocast: tensors that must have one dtype but differ are cast to the context's dtype."""

from collections.abc import Callable, Iterable
from inspect import signature
from typing import Any

import torch

from tuner.spec.dtype import DType
from tuner.spec.operator import Operator

DEVICES = {"AutocastCPU": "cpu", "AutocastCUDA": "cuda"}
_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.AutocastCUDA
)


def cast(operator: Operator[Any], call: Callable[..., Any], device: str) -> Callable[..., Any]:
    """Return `call` behind the casts. Tensors of one dtype keep it, since torch and flash-attn treat that case
    differently.
    """
    together, parameters = tuple(_together(operator)), signature(operator.call)

    def casts(*args: Any, **kwargs: Any) -> Any:
        bound = parameters.bind(*args, **kwargs)
        for names in together:
            tensors = {name: bound.arguments[name] for name in names if _casts(bound.arguments.get(name))}
            if len({tensor.dtype for tensor in tensors.values()}) > 1:
                wanted = torch.get_autocast_dtype(device)
                bound.arguments.update({name: tensor.to(wanted) for name, tensor in tensors.items()})
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            return call(*bound.args, **bound.kwargs)

    return casts


def _together(operator: Operator[Any]) -> Iterable[tuple[str, ...]]:
    """Return the parameters whose tensors share a dtype, which is a field of the Problem; none that a call updates."""
    shown = [
        argument
        for argument in operator.arguments
        if argument.supplied and not argument.written and isinstance(argument.dtype, str)
    ]
    fields = {argument.name: _leading(operator, str(argument.dtype)) for argument in shown}
    for field in dict.fromkeys(fields.values()):
        yield tuple(name for name in fields if fields[name] == field)


def _leading(operator: Operator[Any], field: str) -> str:
    """Return the field of a Problem that determines the default of this one: `dtype`, or the field itself."""
    if field == "dtype" or not hasattr(operator.problem, "dtype"):
        return field
    problems = [operator.problem(dtype=dtype) for dtype in (DType.FP16, DType.BF16)]
    return "dtype" if all(getattr(problem, field) is problem.dtype for problem in problems) else field


def _casts(given: Any) -> bool:
    if not isinstance(given, torch.Tensor) or not given.is_floating_point():
        return False
    return bool(given.dtype != torch.float64 and given.element_size() > 1)  # caches are stored as bytes
