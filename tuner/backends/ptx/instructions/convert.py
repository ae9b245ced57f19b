"""cvt: conversions between integers and floats of every width, with rounding modes, saturation and packed halves."""

from collections.abc import Callable, Mapping

import numpy as np

from tuner.backends.ptx.instructions.arithmetic import TOWARDS, flushed, unit
from tuner.backends.ptx.instructions.floats import (
    bf16_bits,
    bf16_floats,
    e4m3_bits,
    e4m3_floats,
    e5m2_bits,
    e5m2_floats,
    f16_bits,
    f16_floats,
    tf32_bits,
)
from tuner.backends.ptx.instructions.rounding import towards
from tuner.backends.ptx.state.machine import Decoder, Step
from tuner.backends.ptx.state.values import DTYPES, Array, Mask, UnsupportedError, assign
from tuner.backends.ptx.state.wave import Wave
from tuner.backends.ptx.text.parse import Instruction

Conversion = Callable[[Array], Array]
_TO_INTEGRAL: Mapping[str, Conversion] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}


_NARROW: Mapping[str, Conversion] = {"bf16": bf16_bits, "f16": f16_bits, "tf32": tf32_bits}


def _to_integer(x: Array, kind: str) -> Array:
    """Convert integral floats within the range of `kind`; NaN becomes 0."""
    limits = np.iinfo(DTYPES[kind])
    beyond = x >= float(limits.max)
    inside = np.where(np.isnan(x) | beyond | (x <= float(limits.min)), 0, x).astype(DTYPES[kind])
    below = np.where(x <= float(limits.min), limits.min, inside)
    return np.where(beyond, limits.max, below).astype(DTYPES[kind])


def _integers(value: Array, kind: str, saturate: bool) -> Array:
    if not saturate:
        return value.astype(DTYPES[kind])
    limits = np.iinfo(DTYPES[kind])
    low = max(int(limits.min), int(np.iinfo(value.dtype).min))
    return np.clip(value, low, min(int(limits.max), int(np.iinfo(value.dtype).max))).astype(DTYPES[kind])


def _converter(to: str, source: str, opcode: tuple[str, ...]) -> Conversion:
    """Return the conversion of an operand (bits for bf16) to a result (bits for narrow floats)."""
    integral = next((f for name, f in _TO_INTEGRAL.items() if name in opcode), None)
    if source == "bf16":
        inner = _converter(to, "f32", opcode)
        return lambda x: inner(bf16_floats(x))
    if source.startswith("f") and to[0] in "us":
        return lambda x: _to_integer((integral or np.trunc)(x), to)
    side = next((direction for direction in TOWARDS if direction in opcode), "")
    if to == "f16" and (integral or side) and "relu" not in opcode:
        return lambda x: f16_bits(integral(x) if integral else towards(x, np.dtype(np.float16), TOWARDS[side]))
    if to in _NARROW:
        if to == "bf16" and side == "rz":
            return lambda x: (np.ascontiguousarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)
        if not set(opcode) & ({"rna"} if to == "tf32" else {"rn"}) or "relu" in opcode or "satfinite" in opcode:
            raise UnsupportedError(".".join(opcode))
        return lambda x: _NARROW[to](x.astype(np.float32))
    if to == "f32" and side:
        return lambda x: towards(x, np.dtype(np.float32), TOWARDS[side])
    if to.startswith("f"):
        if side:
            raise UnsupportedError(".".join(opcode))
        saturated = unit if "sat" in opcode else np.asarray
        return lambda x: saturated((integral(x) if integral else x).astype(DTYPES[to]))
    return lambda x: _integers(x, to, "sat" in opcode)


def _cvt(wave: Wave, instruction: Instruction, _: int) -> Step:
    to, source = instruction.opcode[-2:]
    if to in _BYTES or source in _BYTES:
        return _packed_bytes(wave, instruction, to, source)
    if to in ("bf16x2", "f16x2"):
        return _packed(wave, instruction, to.removesuffix("x2"))
    if strange := set(instruction.opcode[1:-2]) - {"rn", "rna", "rz", "rm", "rp", "ftz", "sat", *_TO_INTEGRAL}:
        raise UnsupportedError(f"{instruction.name} ({', '.join(strange)})")
    convert = _converter(to, source, instruction.opcode)
    target = wave.registers.write(instruction.word(0), {"bf16": "u16", "f16": "u16", "tf32": "u32"}.get(to, to))
    value = wave.registers.read(instruction.word(1), "u16" if source == "bf16" else source)
    ftz = instruction.has("ftz")

    def converted(mask: Mask) -> None:
        assign(target, convert(flushed(value) if ftz else value), mask)

    return converted


def _packed(wave: Wave, instruction: Instruction, half: str) -> Step:
    """Pack two floats into the halves of a register: the first one goes to the upper half."""
    if instruction.type != "f32" or instruction.opcode[1:-2] not in (("rn",), ("rn", "relu")):
        raise UnsupportedError(instruction.name)
    target, relu = wave.registers.write(instruction.word(0), "b32"), instruction.has("relu")
    upper, lower = (wave.registers.read(instruction.word(i), "f32") for i in (1, 2))

    def narrow(x: Array) -> Array:
        return _NARROW[half](np.maximum(x, np.float32(0)) if relu else x)

    def packed(mask: Mask) -> None:
        assign(target, narrow(upper).astype(np.uint32) << np.uint32(16) | narrow(lower), mask)

    return packed


_BYTES = {"e4m3x2": (e4m3_bits, e4m3_floats), "e5m2x2": (e5m2_bits, e5m2_floats)}


def _packed_bytes(wave: Wave, instruction: Instruction, to: str, source: str) -> Step:
    """Convert two fp32 values or a register of packed halves to two 8-bit floats, or back to halves; with `.relu`."""
    relu, qualifiers = instruction.has("relu"), set(instruction.opcode[1:-2]) - {"relu"}
    if qualifiers != ({"rn", "satfinite"} if to in _BYTES else {"rn"}) or {to, source} - {*_BYTES, "f32", "f16x2"}:
        raise UnsupportedError(instruction.name)
    target = wave.registers.write(instruction.word(0), "b16" if to in _BYTES else "b32")
    kind = {"f32": "f32", "f16x2": "u32"}.get(source, "u16")
    words = [wave.registers.read(instruction.word(i), kind) for i in range(1, len(instruction.operands))]

    def floats() -> tuple[Array, Array]:
        if source == "f32":
            return words[0], words[1]
        size = 16 if source == "f16x2" else 8
        read = f16_floats if source == "f16x2" else _BYTES[source][1]
        upper, lower = words[0] >> size, words[0] & (1 << size) - 1
        return read(np.asarray(upper)), read(np.asarray(lower))

    def packed(mask: Mask) -> None:
        bits, size = (_BYTES[to][0], 8) if to in _BYTES else (f16_bits, 16)
        upper, lower = (bits(np.maximum(x, np.float32(0)) if relu else x).astype(target.dtype) for x in floats())
        assign(target, upper << target.dtype.type(size) | lower, mask)

    return packed


DECODERS: Mapping[str, Decoder] = {"cvt": _cvt}
