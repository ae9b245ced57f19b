"""Sums of products with tensor-core rounding; `tuner.backends.tensor_cores` documents the model."""

from typing import Any

import numpy as np

from tuner.backends.ptx.state.values import Array
from tuner.backends.tensor_cores import SumRule

_ZERO = np.int16(-4096)  # exponent of zero in the search for the largest exponent: below that of any product
_NAN = {np.dtype(np.float32): np.uint32(0x7FFFFFFF), np.dtype(np.float16): np.uint16(0x7FFF)}


def multiply_add(a: Array, b: Array, c: Array, subnormal: tuple[int, int], rule: SumRule, size: int) -> Array:
    """Return a @ b + c in the type of c: fp32 [..., m, k] and [..., k, n], fp32 or fp16 [..., m, n].

    `subnormal` holds the exponents of a's and b's subnormals in their stored types, whose elements have `size` bytes.
    """
    step, total = rule.depth(size), c
    e_a, e_b = _exponents(a, subnormal[0]), _exponents(b, subnormal[1])
    a, b = a.astype(np.float64), np.ascontiguousarray(b, np.float64)
    for first in range(0, a.shape[-1], step):
        k = slice(first, first + step)
        total = _step(a[..., k], b[..., k, :], total, e_a[..., k], e_b[..., k, :], rule)
    return total


def _exponents(x: Array, subnormal: int) -> Array:
    """Return the exponent of each float as hardware reads it: at least `subnormal`; that of zero is below all
    others.
    """
    biased = (x.view(np.uint32) >> 23 & 0xFF).astype(np.int16)
    return np.where(x == 0, _ZERO, np.maximum(biased - np.int16(127), np.int16(subnormal)))


def _step(a: Array, b: Array, c: Array, e_a: Array, e_b: Array, rule: SumRule) -> Array:
    half = c.dtype == np.float16
    start = c.astype(np.float32)
    largest = _exponents(start, -14 if half else -126)
    largest = np.maximum(largest, np.int16(rule.zero_exponent_fp16 if half else rule.zero_exponent))
    exponent = np.empty_like(largest)
    for k in range(a.shape[-1]):
        np.add(e_a[..., k, None], e_b[..., None, k, :], out=exponent)
        np.maximum(largest, exponent, out=largest)
    units = _power(rule.fraction_bits - largest)
    total, term = np.trunc(start * units), np.empty(c.shape)
    for k in range(a.shape[-1]):
        np.multiply(a[..., k, None], b[..., None, k, :], out=term)
        np.multiply(term, units, out=term)
        np.add(total, np.trunc(term, out=term), out=total)
    total *= _power(largest - rule.fraction_bits)
    return _rounded(total, c.dtype, rule.result_bits)


def _power(exponent: Array) -> Array:
    """Return powers of two."""
    return ((exponent.astype(np.int64) + 1023) << 52).view(np.float64)


def _rounded(x: Array, dtype: "np.dtype[Any]", bits: int) -> Array:
    """Round to fp16 to nearest even, or to fp32 toward zero, with `bits` fraction bits; zero is positive; NaN is
    canonical.
    """
    near = x.astype(dtype)
    if dtype == np.float32:
        words = near.view(np.uint32)
        words -= (np.abs(near) > np.abs(x)) & (np.abs(x) < 2.0**128)
        words &= np.where(np.isfinite(near), np.uint32(-1 << (23 - bits) & 0xFFFFFFFF), np.uint32(0xFFFFFFFF))
    near += dtype.type(0)
    near.view(f"u{dtype.itemsize}")[np.isnan(near)] = _NAN[dtype]
    return near
