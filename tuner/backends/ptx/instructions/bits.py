"""Logic, shifts, bit fields and permutations."""

from collections.abc import Mapping

import numpy as np

from tuner.backends.ptx.instructions.arithmetic import applied, elementwise
from tuner.backends.ptx.state.machine import Decoder, Step
from tuner.backends.ptx.state.values import DTYPES, Array, UnsupportedError
from tuner.backends.ptx.state.wave import Wave
from tuner.backends.ptx.text.parse import Instruction


def _logic(bitwise: np.ufunc, logical: np.ufunc) -> Decoder:
    def decode(wave: Wave, instruction: Instruction, at: int) -> Step:
        return elementwise(logical if instruction.type == "pred" else bitwise, bitwise.nin)(wave, instruction, at)

    return decode


def _shift(function: np.ufunc) -> Decoder:
    """Shifts by a 32-bit register; an amount of at least the width shifts out all bits, as in NumPy."""

    def decode(wave: Wave, instruction: Instruction, _: int) -> Step:
        kind = instruction.type
        dtype, widest = DTYPES[kind], np.uint32(8 * DTYPES[kind].itemsize)

        def shifted(a: Array, by: Array) -> Array:
            result: Array = function(a, np.minimum(by, widest).astype(dtype))
            return result

        return applied(wave, instruction, shifted, kind, kind, "u32")

    return decode


def _funnel(wave: Wave, instruction: Instruction, _: int) -> Step:
    """Decode shf: shift the 64-bit value {b, a} left (and return the upper half) or right (the lower half)."""

    def shifted(low: Array, high: Array, by: Array) -> Array:
        count = by & np.uint32(31) if instruction.has("wrap") else np.minimum(by, np.uint32(32))
        both, by64 = high.astype(np.uint64) << np.uint64(32) | low, count.astype(np.uint64)
        moved: Array = both << by64 >> np.uint64(32) if instruction.has("l") else both >> by64
        return moved.astype(np.uint32)

    return applied(wave, instruction, shifted, "b32", "u32", "u32", "u32")


def _insert(a: Array, b: Array, at: Array, length: Array) -> Array:
    """Insert the low `length` bits of a into b at bit `at` (bfi)."""
    one, width = b.dtype.type(1), 8 * b.itemsize
    at, length = at & 255, length & 255
    full = np.where(length >= width, ~b.dtype.type(0), (one << np.minimum(length, width - 1).astype(b.dtype)) - one)
    moved = full << np.minimum(at, width).astype(b.dtype)
    inserted: Array = (b & ~moved) | (a << np.minimum(at, width).astype(b.dtype) & moved)
    return inserted


def _field_insert(wave: Wave, instruction: Instruction, _: int) -> Step:
    kind = "u" + instruction.type[1:]
    return applied(wave, instruction, _insert, kind, kind, kind, "u32", "u32")


def _field(wave: Wave, instruction: Instruction, _: int) -> Step:
    """Decode bfe: extract `length` bits of a from bit `at`; signed types extend the field's top bit, or the value's."""
    kind = instruction.type
    width, dtype = 8 * DTYPES[kind].itemsize, DTYPES[kind]

    def extracted(a: Array, at: Array, length: Array) -> Array:
        begin, count = (at & 255).astype(np.int64), (length & 255).astype(np.int64)
        top = np.minimum(begin + count, width)
        up = (width - top).astype(dtype)  # the field's top bit becomes the value's top bit
        down = np.minimum(width - np.maximum(top - begin, 0), width).astype(dtype)
        return np.where(count == 0, 0, np.right_shift(np.left_shift(a, up), down))

    return applied(wave, instruction, extracted, kind, kind, "u32", "u32")


def _bits(a: Array) -> Array:
    """Return [bits, lanes], lowest first."""
    width = 8 * a.itemsize
    result: Array = (a[None, :] >> np.arange(width, dtype=a.dtype)[:, None]) & a.dtype.type(1)
    return result


def _highest(a: Array) -> Array:
    """Return the index of the highest set bit, -1 if none."""
    bits = _bits(np.atleast_1d(a))
    return np.where(bits.any(0), len(bits) - 1 - np.argmax(bits[::-1], 0), -1).astype(np.int64)


def _find(wave: Wave, instruction: Instruction, _: int) -> Step:
    """Decode bfind, clz and popc: the highest bit that differs from the sign; the zeros above it; the number of
    ones.
    """
    kind, name = instruction.type, instruction.opcode[0]
    unsigned, width = "u" + kind[1:], 8 * DTYPES[kind].itemsize

    def position(a: Array) -> Array:
        if name == "popc":
            result = _bits(np.atleast_1d(a)).sum(0)
        elif name == "clz":
            result = width - 1 - _highest(a)
        else:
            top = _highest(np.where(a >> a.dtype.type(width - 1) == 1, ~a, a) if kind[0] == "s" else a)
            result = np.where(top < 0, -1, width - 1 - top) if instruction.has("shiftamt") else top
        counted: Array = result.astype(np.uint32)
        return counted

    return applied(wave, instruction, position, "u32", unsigned)


def _reverse(a: Array) -> Array:
    bits = _bits(np.atleast_1d(a))[::-1]
    result: Array = (bits << np.arange(len(bits), dtype=a.dtype)[:, None]).sum(0, dtype=a.dtype)
    return result


def _permute(a: Array, b: Array, selector: Array) -> Array:
    """Execute prmt: each nibble of the selector selects a byte of {b, a} or, if its top bit is set, that byte's
    sign.
    """
    both = b.astype(np.uint64) << np.uint64(32) | a
    result = np.zeros(np.shape(both), np.uint64)
    for i in range(4):
        nibble = (selector >> np.uint32(4 * i) & 15).astype(np.uint64)
        byte = both >> (nibble & np.uint64(7)) * np.uint64(8) & np.uint64(255)
        signed = np.where(byte >> np.uint64(7) == 1, np.uint64(255), np.uint64(0))
        result |= np.where(nibble & np.uint64(8) != 0, signed, byte) << np.uint64(8 * i)
    return result.astype(np.uint32)


def _prmt(wave: Wave, instruction: Instruction, at: int) -> Step:
    if instruction.type != "b32" or len(instruction.opcode) != 2:
        raise UnsupportedError(instruction.name)
    return elementwise(_permute, 3)(wave, instruction, at)


def _lop3(wave: Wave, instruction: Instruction, _: int) -> Step:
    table = int(instruction.word(4), 0)

    def looked_up(a: Array, b: Array, c: Array) -> Array:
        result = np.zeros(np.shape(a | b | c), np.uint32)
        for row in range(8):
            if table >> row & 1:
                result |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
        return result

    return applied(wave, instruction, looked_up, *["b32"] * 4)


DECODERS: Mapping[str, Decoder] = {
    "and": _logic(np.bitwise_and, np.logical_and),
    "or": _logic(np.bitwise_or, np.logical_or),
    "xor": _logic(np.bitwise_xor, np.logical_xor),
    "not": _logic(np.invert, np.logical_not),
    "shl": _shift(np.left_shift),
    "shr": _shift(np.right_shift),
    "shf": _funnel,
    "bfi": _field_insert,
    "bfe": _field,
    "bfind": _find,
    "clz": _find,
    "popc": _find,
    "brev": elementwise(_reverse, 1),
    "prmt": _prmt,
    "lop3": _lop3,
}
