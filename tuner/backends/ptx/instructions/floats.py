"""Conversion between numbers and the bits of 8-bit, 16-bit and tf32 floats."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from ml_dtypes import bfloat16, float8_e4m3fn, float8_e5m2

from tuner.backends.ptx.state.values import Array


def bf16_bits(x: Array) -> Array:
    """Return the bits of the bf16 nearest to each float, ties to even; NaN becomes 0x7fff."""
    return np.where(np.isnan(x), np.uint16(0x7FFF), x.astype(np.float32).astype(bfloat16).view(np.uint16))


def bf16_floats(bits: Array) -> Array:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def f16_bits(x: Array) -> Array:
    """Return the bits of the fp16 nearest to each float, ties to even; NaN becomes 0x7fff."""
    return np.where(np.isnan(x), np.uint16(0x7FFF), x.astype(np.float16).view(np.uint16))


def f16_floats(bits: Array) -> Array:
    return np.ascontiguousarray(bits, np.uint16).view(np.float16).astype(np.float32)


def tf32_bits(x: Array) -> Array:
    """Return the tf32 nearest to each float, ties away from zero (`rna`), as fp32 bits."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return np.where(np.isfinite(x), (bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000), bits).astype(np.uint32)


def e5m2_floats(bits: Array) -> Array:
    """Convert e5m2 bits, which are the upper half of an fp16."""
    return f16_floats(bits.astype(np.uint16) << np.uint16(8))


def e4m3_floats(bits: Array) -> Array:
    """Convert e4m3 bits. There are no infinities; only 0x7f and 0xff are NaN."""
    floats: Array = bits.astype(np.uint8).view(float8_e4m3fn).astype(np.float32)
    return floats


def _nearest_byte(dtype: Any, most: float) -> Callable[[Array], Array]:
    """Return a conversion to the nearest 8-bit float, ties to even, saturating at `most`; NaN becomes 0x7f."""
    return lambda x: np.where(np.isnan(x), np.uint8(0x7F), np.clip(x, -most, most).astype(dtype).view(np.uint8))


e4m3_bits, e5m2_bits = _nearest_byte(float8_e4m3fn, 448.0), _nearest_byte(float8_e5m2, 57344.0)


def odd(x: Array) -> Array:
    """Round doubles to fp32, to odd: inexact results get the neighbour whose last bit is 1.

    A further rounding to a type of at most 22 bits then equals rounding the double directly.
    """
    near = x.astype(np.float32)
    bits = near.view(np.uint32) - (np.abs(near.astype(np.float64)) > np.abs(x)).astype(np.uint32)
    inexact = (near != x) & ~np.isnan(x)
    return np.where(inexact, bits | np.uint32(1), near.view(np.uint32)).view(np.float32)


HALVES: Mapping[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "f16": (f16_floats, lambda x: f16_bits(odd(x))),
    "bf16": (bf16_floats, lambda x: bf16_bits(odd(x))),
}  # per type: conversion from bits, and from a double to the bits of the nearest value
