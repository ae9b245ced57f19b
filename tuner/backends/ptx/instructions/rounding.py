"""Operations that are rounded once, in any rounding mode, built from double-precision sums."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tuner.backends.ptx.state.values import Array


def fused(a: Array, b: Array, c: Array) -> Array:
    """Return a b + c in fp32, rounded once.

    In double precision the product is exact, and the sum is rounded once before it is rounded to fp32. The two
    roundings can differ from one only if the double lies half-way between two floats, or is an fp32 subnormal: then the
    last bit of the sum records the side of the exact value (rounding to odd).
    """
    product = a.astype(np.float64) * b
    total = product + c
    bits = np.atleast_1d(total).view(np.int64)
    doubtful = ((bits & 0x1FFFFFFF) == 0x10000000) | (np.abs(np.atleast_1d(total)) < 2.0**-125)
    return (odd_sum(product, c) if doubtful.any() else total).astype(np.float32).reshape(np.shape(total))


def towards(exact: Array, dtype: "np.dtype[Any]", side: float) -> Array:
    """Round floats or integers to `dtype` in the direction of `side`."""
    if exact.dtype.kind != "f":
        wide = exact.astype(f"{exact.dtype.kind}8")
        exact = odd_sum((wide >> 32).astype(np.float64) * 2.0**32, (wide & 0xFFFFFFFF).astype(np.float64))
    near = exact.astype(dtype)
    beyond = np.where(exact > side, near > exact, near < exact)
    return np.where(beyond, np.nextafter(near, dtype.type(side)), near)


def directed(side: float) -> Callable[[Array, Array, Array], Array]:
    """Return the function a b + c in fp32, rounded in the direction of `side`."""
    return lambda a, b, c: towards(odd_sum(a.astype(np.float64) * b, c), np.dtype(np.float32), side)


def odd_sum(a: Array, b: Array) -> Array:
    """Return a + b in double precision, rounded to odd: an inexact result ends in a 1 bit, so it is never half-way."""
    total, error = _exact_sum(a, b)
    bits = np.atleast_1d(total).view(np.int64)
    grow = np.where((error > 0) == (total > 0), 1, -1)
    odd = np.where((error != 0) & (bits & 1 == 0) & (total != 0) & np.isfinite(total), bits + grow, bits)
    return odd.view(np.float64).reshape(np.shape(total))


def _exact_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return a + b in double precision and its rounding error."""
    total = a + b
    other = total - a
    return total, (a - (total - other)) + (np.float64(1) * b - other)


def _exact_product(a: Array, b: Array) -> tuple[Array, Array]:
    """Return a b in double precision and its rounding error, from exact products of 26-bit halves."""
    (a_high, a_low), (b_high, b_low) = map(_halved, (a, b))
    total = a * b
    return total, ((a_high * b_high - total) + a_high * b_low + a_low * b_high) + a_low * b_low


def _halved(x: Array) -> tuple[Array, Array]:
    scaled = x * (2.0**27 + 1)
    high = scaled - (scaled - x)
    return high, x - high


def fused_doubles(a: Array, b: Array, c: Array) -> Array:
    """Return a b + c in double precision, rounded once (Boldo and Melquiond, 2008); twice if a step leaves the
    range.
    """
    product, rest = _exact_product(a, b)
    small, smaller = _exact_sum(c, rest)
    large, left = _exact_sum(product, small)
    exact = large + odd_sum(smaller, left)
    return np.where(np.isfinite(exact), exact, a * b + c)
