"""Tensors as kernels address them: contiguous rows that start at multiples of 16 bytes."""

from typing import Any

import torch

_ROWS = 16  # bytes: every row of a tensor starts at a multiple of them


def addressable(x: Any) -> Any:
    """A tensor as it is, or a copy where a row is not contiguous, or starts elsewhere."""
    offset = 0 if torch.compiler.is_compiling() else x.storage_offset()  # which torch.compile does not trace
    steps = [stride for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True) if size > 1]
    aligned = all(each * x.element_size() % _ROWS == 0 for each in (offset, *steps))
    return x if aligned and x.stride(-1) == 1 else x.contiguous()
