"""Padding of heads with zeros to a multiple of 8 elements, which changes no score and no sum."""

from typing import Any

import torch

_STEP = 8  # elements


def padded(*tensors: Any) -> tuple[Any, ...]:
    """Return tensors whose last dim is padded to a multiple of 8; unchanged if it is one."""
    return tuple(torch.nn.functional.pad(x, (0, -x.shape[-1] % _STEP)) if x.shape[-1] % _STEP else x for x in tensors)


def scale_of(q: Any, softmax_scale: float | None) -> float | None:
    """Return the scale for the unpadded head_dim; None if it is the kernels' default."""
    if softmax_scale is not None or q.shape[-1] % _STEP == 0:
        return softmax_scale
    return float(q.shape[-1] ** -0.5)
