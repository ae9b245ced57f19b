"""Heads of any width: zeros behind those that are no multiple of 8 elements, which no score and no sum sees."""

from typing import Any

import torch

_STEP = 8  # elements


def padded(*tensors: Any) -> tuple[Any, ...]:
    """Tensors as they are, or with their last dim as the next multiple of 8."""
    return tuple(torch.nn.functional.pad(x, (0, -x.shape[-1] % _STEP)) if x.shape[-1] % _STEP else x for x in tensors)


def scale_of(q: Any, softmax_scale: float | None) -> float | None:
    """The scale of queries, before they are padded: None where the kernels' default is it."""
    if softmax_scale is not None or q.shape[-1] % _STEP == 0:
        return softmax_scale
    return float(q.shape[-1] ** -0.5)
