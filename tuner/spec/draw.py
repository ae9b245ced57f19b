"""Random tensors of any size. Large tensors are drawn in parallel, because a device waits for them."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from math import prod
from typing import Any

import numpy as np

from tuner.spec.problem import Array

_LARGE = 1 << 22  # elements; a smaller tensor is drawn from the caller's generator directly
_PART = 1 << 18  # approximate number of elements of a part, so that it stays in the cache during conversion

Make = Callable[[np.random.Generator, tuple[int, ...]], Array]


def random_tensor(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any, make: Make) -> Array:
    """Return make(rng, shape) as `dtype`.

    `make` must treat all rows (along the last dim) alike: a large tensor is drawn as several [rows, columns] parts, by
    several threads with one generator each. The same generator gives the same tensor on any number of processors.
    """
    if prod(shape) < _LARGE:
        return make(rng, shape).astype(dtype, copy=False)
    columns, rows = shape[-1], prod(shape[:-1])
    values, step = np.empty((rows, columns), dtype), max(_PART // columns, 1)
    firsts = range(0, rows, step)

    def fill(first: int, generator: np.random.Generator) -> None:
        part = make(generator, (min(step, rows - first), columns))
        # NumPy's conversion releases the GIL, and converting from float32 is the fastest path of ml_dtypes.
        values[first : first + step] = part.astype(np.float32) if values.itemsize < 4 else part

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        list(threads.map(fill, firsts, rng.spawn(len(firsts))))
    return values.reshape(shape)


def normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    """Draw from N(0, 1)."""
    return random_tensor(rng, shape, dtype, lambda generator, part: generator.standard_normal(part))
