"""Arithmetic on fp16 and bf16, scalar or packed in pairs, computed in double precision and rounded once."""

from collections.abc import Callable, Mapping

import numpy as np

from tuner.backends.ptx.instructions.arithmetic import MAXIMUM, MAXIMUM_NAN, MINIMUM, MINIMUM_NAN, unit
from tuner.backends.ptx.instructions.floats import HALVES
from tuner.backends.ptx.instructions.rounding import odd_sum
from tuner.backends.ptx.instructions.selection import relation
from tuner.backends.ptx.state.machine import Step
from tuner.backends.ptx.state.values import Array, Mask, UnsupportedError, assign
from tuner.backends.ptx.state.wave import Wave
from tuner.backends.ptx.text.parse import Instruction

TYPES = frozenset({"f16", "bf16", "f16x2", "bf16x2"})
_FUNCTIONS: Mapping[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "fma": lambda a, b, c: odd_sum(a * b, c),  # the product of two halves is exact
    "neg": np.negative,
    "abs": np.abs,
    "min": MINIMUM,
    "max": MAXIMUM,
    "ex2": np.exp2,
    "tanh": np.tanh,
}
KNOWN = frozenset({*_FUNCTIONS, "setp", "set"})
_NORMAL = {"f16": 2.0**-14, "bf16": 2.0**-126}  # smallest normal number


def decode(wave: Wave, instruction: Instruction, _: int) -> Step:
    """Decode an instruction of `KNOWN` on one of `TYPES`. Raises UnsupportedError for qualifiers that change the
    result.
    """
    name, kind = instruction.opcode[0], instruction.type
    if name in ("setp", "set"):
        return _compare(wave, instruction) if name == "setp" else _set(wave, instruction)
    if strange := set(instruction.opcode[1:-1]) - {"rn", "approx", "NaN", "relu", "sat", "ftz"}:
        raise UnsupportedError(f"{instruction.name} ({', '.join(strange)})")
    function = _FUNCTIONS[name]
    if instruction.has("NaN"):
        function = MINIMUM_NAN if name == "min" else MAXIMUM_NAN
    relu, saturates, bits = instruction.has("relu"), instruction.has("sat"), HALVES[kind.removesuffix("x2")][1]
    smallest = _NORMAL[kind.removesuffix("x2")] if instruction.has("ftz") else 0.0

    def flushed(x: Array) -> Array:
        return np.where(np.abs(x) < smallest, np.copysign(0.0, x), x)

    target = wave.registers.write(instruction.word(0), "b32" if kind.endswith("x2") else "b16")
    sources = [_operand(wave, instruction.word(i), kind) for i in range(1, len(instruction.operands))]

    def computed(mask: Mask) -> None:
        result = flushed(function(*(flushed(source()) for source in sources)))
        result = unit(result) if saturates else np.fmax(result, 0) if relu else result
        halves = bits(result)
        assign(target, np.ascontiguousarray(halves).view(target.dtype)[:, 0], mask)

    return computed


def added(kind: str, old: Array, value: Array) -> Array:
    """Return the bits of the sum of two values of `kind`, each half rounded separately, for atomics."""
    floats, bits = HALVES[kind.removesuffix("x2")]
    halves = [floats(np.atleast_1d(register).view(np.uint16)).astype(np.float64) for register in (old, value)]
    total: Array = np.ascontiguousarray(bits(halves[0] + halves[1])).view(old.dtype).reshape(())
    return total


def _operand(wave: Wave, name: str, kind: str) -> Callable[[], Array]:
    """Return a function that reads the operand as [lanes, 1 or 2] doubles."""
    packed, floats = kind.endswith("x2"), HALVES[kind.removesuffix("x2")][0]
    register = np.broadcast_to(wave.registers.read(name, "b32" if packed else "b16"), wave.lanes)

    def read() -> Array:
        halves = np.ascontiguousarray(register).view(np.uint16).reshape(wave.lanes, -1)
        return floats(halves).astype(np.float64)

    return read


def _set(wave: Wave, instruction: Instruction) -> Step:
    """Decode set with one comparison: 1.0, or all bits of an integer, for each half in which it holds."""
    if len(instruction.opcode) != 4:
        raise UnsupportedError(instruction.name)
    compare, to, kind = relation(instruction.opcode[1], True), instruction.opcode[2], instruction.type
    packed = kind.endswith("x2")
    wide = "b32" if packed or to in ("u32", "s32") else "b16"
    target = wave.registers.write(instruction.word(0), wide)
    one = int(HALVES[to.removesuffix("x2")][1](np.ones(1))[0]) if to in TYPES else -1
    a, b = (_operand(wave, instruction.word(i), kind) for i in (1, 2))

    def compared(mask: Mask) -> None:
        halves = np.where(compare(a(), b()), one, 0).astype(np.int64)
        value = halves[:, 0] & 0xFFFF | halves[:, 1] << 16 if packed else halves[:, 0]
        assign(target, value.astype(target.dtype), mask)

    return compared


def _compare(wave: Wave, instruction: Instruction) -> Step:
    """Decode setp with one comparison; for packed halves `p|q` receives both results."""
    if len(instruction.opcode) != 3:
        raise UnsupportedError(instruction.name)
    compare = relation(instruction.opcode[1], True)
    targets = [wave.registers.array(name) for name in instruction.word(0).split("|")]
    a, b = (_operand(wave, instruction.word(i), instruction.type) for i in (1, 2))

    def compared(mask: Mask) -> None:
        result = compare(a(), b())
        for target, half in zip(targets, result.T, strict=True):
            assign(target, half, mask)

    return compared
