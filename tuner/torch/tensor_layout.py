"""Tensors as kernels address them: rows that are contiguous and start at multiples of 16 bytes, or all of it dense."""

from typing import Any

import torch

from tuner.errors import InputError

_ROWS = 16  # bytes: every row of a tensor starts at a multiple of them, and what is dense at one of them


def addressable(x: Any) -> Any:
    """A tensor as it is, or a copy where a row is not contiguous, or starts elsewhere.

    Raises InputError for a nested tensor.
    """
    if x.is_nested:
        raise InputError("nested tensors are not served here: call tuner.torch.scaled_dot_product_attention")
    steps = [stride for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True) if size > 1]
    return x if _aligned(x, *steps) and x.stride(-1) == 1 else _copy(x)


def dense(x: Any) -> Any:
    """A tensor as it is, or a copy where it has gaps, or starts elsewhere."""
    return x if _aligned(x) and x.is_contiguous() else _copy(x)


def _aligned(x: Any, *steps: int) -> bool:
    """Whether it starts, and goes on by these steps, at multiples of 16 bytes."""
    offset = 0 if torch.compiler.is_compiling() else x.storage_offset()  # which torch.compile does not trace
    return all(each * x.element_size() % _ROWS == 0 for each in (offset, *steps))


def _copy(x: Any) -> Any:
    return x.clone(memory_format=torch.contiguous_format)  # contiguous() leaves a dense tensor where it is
