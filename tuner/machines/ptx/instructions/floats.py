"""Floats of 8, 16 and 19 bits: what their bits say, and the bits of the one that is nearest to a number."""

from collections.abc import Callable, Mapping

import numpy as np

from tuner.machines.ptx.state.values import Array


def bf16_bits(x: Array) -> Array:
    """The bf16 nearest to each float, ties to even, as its bits; NaN is 0x7fff."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(x), np.uint32(0x7FFF), rounded).astype(np.uint16)


def bf16_floats(bits: Array) -> Array:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def f16_bits(x: Array) -> Array:
    """The same as fp16; NaN is 0x7fff there too."""
    return np.where(np.isnan(x), np.uint16(0x7FFF), x.astype(np.float16).view(np.uint16))


def f16_floats(bits: Array) -> Array:
    return np.ascontiguousarray(bits, np.uint16).view(np.float16).astype(np.float32)


def tf32_bits(x: Array) -> Array:
    """The tf32 nearest to each float, ties away from zero (`rna`), as the bits of a float."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return np.where(np.isfinite(x), (bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000), bits).astype(np.uint32)


def e5m2_floats(bits: Array) -> Array:
    """The upper half of an fp16."""
    return f16_floats(bits.astype(np.uint16) << np.uint16(8))


def e4m3_floats(bits: Array) -> Array:
    """Without infinities: only 0x7f and 0xff are no numbers."""
    exponent, mantissa = (bits >> 3 & 15).astype(np.int32), (bits & 7).astype(np.float32)
    normal = np.ldexp(mantissa + 8, exponent - 10)
    size = np.where(exponent == 0, np.ldexp(mantissa, -9), np.where(bits & 127 == 127, np.nan, normal))
    return np.where(bits >> 7 == 1, -size, size).astype(np.float32)


def _nearest_byte(floats: Callable[[Array], Array], largest: int) -> Callable[[Array], Array]:
    """The byte of the nearest float, ties to even; what is beyond the largest becomes that, and NaN 0x7f."""
    values = floats(np.arange(largest + 1, dtype=np.uint8)).astype(np.float64)

    def bits(x: Array) -> Array:
        size = np.minimum(np.abs(np.asarray(x, np.float64)), values[-1])
        above = np.searchsorted(values, np.nan_to_num(size))
        below = np.maximum(above - 1, 0)
        up, down = values[above] - size, size - values[below]
        near = np.where((up < down) | ((up == down) & (above % 2 == 0)), above, below)
        return np.where(np.isnan(x), 0x7F, near | np.signbit(x) << 7).astype(np.uint8)

    return bits


e4m3_bits = _nearest_byte(e4m3_floats, 0x7E)
e5m2_bits = _nearest_byte(e5m2_floats, 0x7B)


def odd(x: Array) -> Array:
    """Doubles as fp32 rounded to odd: inexact ones get the neighbour whose last bit is 1, so that the next rounding,
    to a type of at most 22 bits, is that of the double."""
    near = x.astype(np.float32)
    bits = near.view(np.uint32) - (np.abs(near.astype(np.float64)) > np.abs(x)).astype(np.uint32)
    inexact = (near != x) & ~np.isnan(x)
    return np.where(inexact, bits | np.uint32(1), near.view(np.uint32)).view(np.float32)


HALVES: Mapping[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "f16": (f16_floats, lambda x: f16_bits(odd(x))),
    "bf16": (bf16_floats, lambda x: bf16_bits(odd(x))),
}  # what the bits say, and the bits of the nearest one of a double
