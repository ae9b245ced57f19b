"""Random tensors of any size: a large one is drawn in parts, side by side, since a device waits for it."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from math import prod
from typing import Any

import numpy as np

from tuner.spec.problem import Array

_LARGE = 1 << 22  # elements; a smaller tensor comes from the caller's generator itself
_PART = 1 << 18  # elements, about: of a size that stays in a cache while it is converted

Make = Callable[[np.random.Generator, tuple[int, ...]], Array]


def random_tensor(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any, make: Make) -> Array:
    """make(rng, shape) as `dtype`. `make` must treat all rows, which lie along the last dim, alike: of a large tensor
    it is asked for some at a time, as [rows, columns], by several threads, each part from a generator of its own.

    The same generator gives the same tensor on any number of processors.
    """
    if prod(shape) < _LARGE:
        return make(rng, shape).astype(dtype, copy=False)
    columns, rows = shape[-1], prod(shape[:-1])
    values, step = np.empty((rows, columns), dtype), max(_PART // columns, 1)
    firsts = range(0, rows, step)

    def fill(first: int, generator: np.random.Generator) -> None:
        part = make(generator, (min(step, rows - first), columns))
        # NumPy's own conversion lets other threads run, and that of a float32 is the quickest of ml_dtypes.
        values[first : first + step] = part.astype(np.float32) if values.itemsize < 4 else part

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        list(threads.map(fill, firsts, rng.spawn(len(firsts))))
    return values.reshape(shape)


def normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    """N(0, 1)."""
    return random_tensor(rng, shape, dtype, lambda generator, part: generator.standard_normal(part))
