"""Integer and floating-point arithmetic, by NumPy's functions except where PTX differs."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tuner.backends.ptx.instructions.rounding import directed, fused, fused_doubles, towards
from tuner.backends.ptx.state.machine import Decoder, Step
from tuner.backends.ptx.state.values import DTYPES, Array, Mask, UnsupportedError, assign
from tuner.backends.ptx.state.wave import Wave
from tuner.backends.ptx.text.parse import Instruction

_SMALLEST = np.float32(2.0**-126)  # smallest normal number


def flushed(x: Array) -> Array:
    """Flush fp32 subnormals to zero with their sign (`.ftz`)."""
    return np.where(np.abs(x) < _SMALLEST, np.copysign(np.float32(0), x), x)


def elementwise(function: Callable[..., Any], inputs: int, qualifiers: tuple[str, ...] = ()) -> Decoder:
    """Return a decoder that applies a NumPy function to `inputs` operands of the instruction's type; allows
    `qualifiers`.
    """

    def decode(wave: Wave, instruction: Instruction, _: int) -> Step:
        kind, saturates = instruction.type, instruction.has("sat") and instruction.type == "f32"
        check_qualifiers(instruction, (*qualifiers, "sat") if saturates else qualifiers)
        target = wave.registers.write(instruction.word(0), kind)
        sources = [wave.registers.read(instruction.word(i + 1), kind) for i in range(inputs)]
        applied = (lambda *given: unit(function(*given))) if saturates else function
        return computed(target, applied, sources, instruction.has("ftz"))

    return decode


def unit(x: Array) -> Array:
    """Clamp to [0, 1]; NaN becomes 0 (`.sat`)."""
    return np.clip(np.where(np.isnan(x), 0, x), 0, 1)


_KNOWN = {"rn", "approx", "full", "ftz", "lo", "hi", "wide", "NaN", "b32"}  # b32 is prmt's type


def check_qualifiers(instruction: Instruction, qualifiers: tuple[str, ...] = ()) -> None:
    """Raise UnsupportedError for any other qualifier that changes the result: a rounding mode, `.sat`, `.cc`."""
    relu = {"relu"} if instruction.type == "s32" else set()
    if strange := set(instruction.opcode[1:-1]) - _KNOWN - relu - {*qualifiers}:
        raise UnsupportedError(f"{instruction.name} ({', '.join(strange)})")


def applied(wave: Wave, instruction: Instruction, function: Callable[..., Any], to: str, *kinds: str) -> Step:
    """Return a step that applies `function` to the source operands, read as `kinds`, and writes the first operand as
    `to`.
    """
    target = wave.registers.write(instruction.word(0), to)
    return computed(
        target, function, [wave.registers.read(instruction.word(i), kind) for i, kind in enumerate(kinds, 1)]
    )


def computed(target: Array, function: Callable[..., Any], sources: list[Array], ftz: bool = False) -> Step:
    """Return a step that writes `function(*sources)`, in place if it is a NumPy ufunc."""
    if ftz:

        def flushing(mask: Mask) -> None:
            assign(target, flushed(function(*map(flushed, sources))), mask)

        return flushing
    if isinstance(function, np.ufunc) and all(source.dtype == target.dtype for source in sources):

        def in_place(mask: Mask) -> None:
            if mask is None:
                function(*sources, out=target)
            else:
                function(*sources, out=target, where=mask)

        return in_place

    def assigning(mask: Mask) -> None:
        assign(target, function(*sources), mask)

    return assigning


TOWARDS: Mapping[str, float] = {"rm": -np.inf, "rp": np.inf, "rz": 0.0}


def _side(instruction: Instruction) -> str:
    """Return the rounding mode unless it is round-to-nearest; otherwise an empty string."""
    return next((direction for direction in TOWARDS if instruction.has(direction)), "")


def _sum(sign: int) -> Decoder:
    """Decode add or sub: fp32 with every rounding mode, s32 with `.sat`."""
    function = np.add if sign > 0 else np.subtract

    def saturated(a: Array, b: Array) -> Array:
        return np.clip(function(a.astype(np.int64), b.astype(np.int64)), -(1 << 31), (1 << 31) - 1)

    def decode(wave: Wave, instruction: Instruction, at: int) -> Step:
        if instruction.type == "s32" and instruction.has("sat"):
            return elementwise(saturated, 2, ("sat",))(wave, instruction, at)
        if instruction.type != "f32" or not (side := _side(instruction)):
            return elementwise(function, 2)(wave, instruction, at)
        rounded, one = directed(TOWARDS[side]), np.array(sign, np.float32)
        return elementwise(lambda a, b: rounded(b, one, a), 2, (side,))(wave, instruction, at)

    return decode


def _float_product(wave: Wave, instruction: Instruction, at: int) -> Step:
    if instruction.type != "f32" or not (side := _side(instruction)):
        return elementwise(np.multiply, 2)(wave, instruction, at)
    rounded, nothing = directed(TOWARDS[side]), np.array(-0.0, np.float32)
    return elementwise(lambda a, b: rounded(a, b, nothing), 2, (side,))(wave, instruction, at)


def _fma(wave: Wave, instruction: Instruction, at: int) -> Step:
    if instruction.type == "f32":
        side = _side(instruction)
        rounding = directed(TOWARDS[side]) if side else fused
        return elementwise(rounding, 3, (side,))(wave, instruction, at)
    if instruction.type == "f64":
        return elementwise(fused_doubles, 3)(wave, instruction, at)
    raise UnsupportedError(f"fma of {instruction.type}")


def quotient(a: Array, b: Array) -> Array:
    """Integer division that truncates; division by zero sets all bits."""
    divisor = np.where(b == 0, b.dtype.type(1), b)
    result = (a - np.fmod(a, divisor)) // divisor
    return np.where(b == 0, ~np.zeros_like(result), result)


def remainder(a: Array, b: Array) -> Array:
    return np.where(b == 0, a, np.fmod(a, np.where(b == 0, b.dtype.type(1), b)))


def _directly(function: Callable[..., Array], inputs: int) -> Decoder:
    """Decode div, rcp or sqrt with every fp32 rounding mode; a double determines the side of a float on which
    they lie.
    """

    def decode(wave: Wave, instruction: Instruction, at: int) -> Step:
        if instruction.type != "f32" or not (side := _side(instruction)):
            return elementwise(_unary(function) if inputs == 1 else function, inputs)(wave, instruction, at)

        def rounded(*sources: Array) -> Array:
            return towards(
                function(*(value.astype(np.float64) for value in sources)), np.dtype(np.float32), TOWARDS[side]
            )

        return elementwise(rounded, inputs, (side,))(wave, instruction, at)

    return decode


def _div(wave: Wave, instruction: Instruction, at: int) -> Step:
    if instruction.type.startswith("f"):
        return _directly(np.divide, 2)(wave, instruction, at)
    return elementwise(quotient, 2)(wave, instruction, at)


def high(a: Array, b: Array) -> Array:
    """Return the upper half of a product."""
    size = 8 * a.itemsize
    if size < 64:
        wide = np.dtype(f"{a.dtype.kind}{a.itemsize * 2}")
        upper: Array = (a.astype(wide) * b.astype(wide) >> size).astype(a.dtype)
        return upper
    exact: Array = ((a.astype(object) * b.astype(object)) >> size).astype(a.dtype)
    return exact


def _product(wave: Wave, instruction: Instruction, at: int) -> Step:
    """Decode mul or mad: floats, or the low half, the high half or all (`wide`) of an integer product."""
    kind, adds = instruction.type, instruction.opcode[0] == "mad"
    if kind.startswith("f"):
        return _fma(wave, instruction, at) if adds else _float_product(wave, instruction, at)
    check_qualifiers(instruction)
    registers, wide = wave.registers, instruction.has("wide")
    result = kind[0] + str(2 * int(kind[1:])) if wide else kind
    dtype, target = DTYPES[result], registers.write(instruction.word(0), result)
    a, b = (registers.read(instruction.word(i), kind) for i in (1, 2))
    c = registers.read(instruction.word(3), result) if adds else None
    if not wide and not adds:
        return computed(target, high if instruction.has("hi") else np.multiply, [a, b])

    def multiplied(mask: Mask) -> None:
        product = high(a, b) if instruction.has("hi") else a.astype(dtype) * b.astype(dtype)
        assign(target, product if c is None else product + c, mask)

    return multiplied


def _unary(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Return a special function unit's function, computed here with full fp32 accuracy."""

    def rounded(x: Array) -> Array:
        return function(x.astype(np.float64)).astype(x.dtype)

    return rounded


def _chosen(function: Callable[[Array, Array], Array], zero: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    """Return a minimum or maximum that orders -0 below +0, as in the PTX ISA; NumPy's order depends on the platform."""

    def chosen(a: Array, b: Array) -> Array:
        zeros = (a == 0) & (b == 0)
        return np.where(zeros, zero(a, b), function(a, b)) if np.any(zeros) else function(a, b)

    return chosen


def _lesser_zero(a: Array, b: Array) -> Array:
    return -(-a - b)


# Floating-point functions; those of the second row return NaN if an operand is NaN.
MINIMUM, MAXIMUM = _chosen(np.fmin, _lesser_zero), _chosen(np.fmax, np.add)
MINIMUM_NAN, MAXIMUM_NAN = _chosen(np.minimum, _lesser_zero), _chosen(np.maximum, np.add)


def _maximum(wave: Wave, instruction: Instruction, at: int) -> Step:
    """Decode min or max of two or three operands. Float NaNs are ignored without `.NaN`; integers allow `.relu`."""
    smaller = instruction.opcode[0] == "min"
    if not instruction.type.startswith("f"):
        function: Callable[..., Array] = np.minimum if smaller else np.maximum
    elif instruction.has("NaN"):
        function = MINIMUM_NAN if smaller else MAXIMUM_NAN
    else:
        function = MINIMUM if smaller else MAXIMUM
    if instruction.has("relu") and instruction.type == "s32":
        return elementwise(lambda a, b: np.maximum(function(a, b), 0), 2)(wave, instruction, at)
    if len(instruction.operands) == 4:
        return elementwise(lambda a, b, c: function(function(a, b), c), 3)(wave, instruction, at)
    return elementwise(function, 2)(wave, instruction, at)


_PAIRED: Mapping[str, Callable[..., Array]] = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "fma": fused}


def decode_pairs(wave: Wave, instruction: Instruction) -> Step:
    """Decode f32x2 arithmetic: both 32-bit halves as fp32."""
    check_qualifiers(instruction)
    function, ftz = _PAIRED.get(instruction.opcode[0]), instruction.has("ftz")
    if function is None:
        raise UnsupportedError(instruction.name)
    target = wave.registers.write(instruction.word(0), "b64")
    sources = [wave.registers.read(word, "b64") for word in map(instruction.word, range(1, len(instruction.operands)))]

    def floats(source: Array) -> Array:
        halves: Array = np.ascontiguousarray(np.broadcast_to(source, wave.lanes)).view(np.float32)
        return flushed(halves) if ftz else halves

    def computed_both(mask: Mask) -> None:
        result = function(*map(floats, sources)).astype(np.float32)
        assign(target, np.ascontiguousarray(flushed(result) if ftz else result).view(np.uint64), mask)

    return computed_both


DECODERS: Mapping[str, Decoder] = {
    "add": _sum(1),
    "sub": _sum(-1),
    "mul": _product,
    "mad": _product,
    "fma": _fma,
    "div": _div,
    "rem": elementwise(remainder, 2),
    "neg": elementwise(np.negative, 1),
    "abs": elementwise(np.abs, 1),
    "min": _maximum,
    "max": _maximum,
    "ex2": elementwise(_unary(np.exp2), 1),
    "lg2": elementwise(_unary(np.log2), 1),
    "rcp": _directly(np.reciprocal, 1),
    "sqrt": _directly(np.sqrt, 1),
    "rsqrt": elementwise(_unary(lambda x: 1 / np.sqrt(x)), 1),
    "sin": elementwise(_unary(np.sin), 1),
    "cos": elementwise(_unary(np.cos), 1),
    "tanh": elementwise(_unary(np.tanh), 1),
    "copysign": elementwise(lambda a, b: np.copysign(b, a), 2),
}
