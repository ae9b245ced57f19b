"""Operators inside torch.autocast: tensors that must be of one dtype, and come in several, take the context's."""

from collections.abc import Callable, Iterable
from inspect import signature
from typing import Any

import torch

from tuner.operator import Operator

DEVICES = {"AutocastCPU": "cpu", "AutocastCUDA": "cuda"}
_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.AutocastCUDA
)


def cast(operator: Operator[Any], call: Callable[..., Any], device: str) -> Callable[..., Any]:
    """`call` behind the casts. Tensors of one dtype keep it: torch and flash-attn disagree what is to be done there."""
    together, parameters = tuple(_together(operator)), signature(operator.call)

    def casts(*args: Any, **kwargs: Any) -> Any:
        bound = parameters.bind(*args, **kwargs)
        for names in together:
            tensors = {name: bound.arguments[name] for name in names if _casts(bound.arguments.get(name))}
            if len({each.dtype for each in tensors.values()}) > 1:
                wanted = torch.get_autocast_dtype(device)
                bound.arguments.update({name: each.to(wanted) for name, each in tensors.items()})
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            return call(*bound.args, **bound.kwargs)

    return casts


def _together(operator: Operator[Any]) -> Iterable[tuple[str, ...]]:
    """Parameters whose tensors are of one dtype, which a field of the Problem holds; none that a call updates."""
    shown = [each for each in operator.arguments if each.given and not each.written and isinstance(each.dtype, str)]
    for field in dict.fromkeys(each.dtype for each in shown):
        yield tuple(each.name for each in shown if each.dtype == field)


def _casts(given: Any) -> bool:
    return isinstance(given, torch.Tensor) and given.is_floating_point() and given.dtype != torch.float64
