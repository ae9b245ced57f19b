"""Tensor layouts that kernels can address: contiguous rows that start at multiples of 16 bytes, or dense tensors."""

from typing import Any

import torch

from tuner.errors import InputError

_ROWS = 16  # bytes: alignment of every row of a tensor, and of the start of a dense one


def addressable(x: Any) -> Any:
    """Return the tensor, or a copy if a row is not contiguous or not aligned.

    Raises InputError for a nested tensor.
    """
    if x.is_nested:
        raise InputError("nested tensors are not supported here: call tuner.torch.scaled_dot_product_attention")
    steps = [stride for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True) if size > 1]
    return x if _aligned(x, *steps) and x.stride(-1) == 1 else _copy(x)


def dense(x: Any) -> Any:
    """Return the tensor, or a copy if it has gaps or is not aligned."""
    return x if _aligned(x) and x.is_contiguous() else _copy(x)


def _aligned(x: Any, *steps: int) -> bool:
    """Return whether its start and these strides are multiples of 16 bytes."""
    offset = 0 if torch.compiler.is_compiling() else x.storage_offset()  # which torch.compile does not trace
    return all(step * x.element_size() % _ROWS == 0 for step in (offset, *steps))


def _copy(x: Any) -> Any:
    return x.clone(memory_format=torch.contiguous_format)  # contiguous() does not copy a dense tensor
