"""Comparison, selection and move instructions, including packing and unpacking."""

from collections.abc import Callable, Mapping

import numpy as np

from tuner.backends.ptx.instructions.arithmetic import flushed
from tuner.backends.ptx.state.machine import Decoder, Step
from tuner.backends.ptx.state.values import DTYPES, Array, Mask, UnsupportedError, assign
from tuner.backends.ptx.state.wave import Wave
from tuner.backends.ptx.text.parse import Instruction

_RELATIONS: Mapping[str, np.ufunc] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}


def relation(name: str, real: bool) -> Callable[[Array, Array], Array]:
    """Return a comparison by its PTX name; a name with the suffix `u` also holds for NaN."""
    if not real or (name not in ("ne", "neu") and name in _RELATIONS):
        return _RELATIONS[name]
    if name == "num":
        return lambda a, b: ~(np.isnan(a) | np.isnan(b))
    if name == "nan":
        return lambda a, b: np.isnan(a) | np.isnan(b)
    if name == "ne":
        return lambda a, b: (a < b) | (a > b)
    if name == "neu":
        return np.not_equal
    ordered = _RELATIONS[name.removesuffix("u")]
    return lambda a, b: ordered(a, b) | np.isnan(a) | np.isnan(b)


def _compare(wave: Wave, instruction: Instruction, _: int) -> Step:
    """Decode setp: a comparison, optionally combined with a predicate; `p|q` also receives the complement."""
    kind, registers = instruction.type, wave.registers
    if strange := set(instruction.opcode[2:-1]) - {"ftz", *_COMBINED}:
        raise UnsupportedError(f"{instruction.name} ({', '.join(strange)})")
    compare = relation(instruction.opcode[1], kind.startswith("f"))
    names = instruction.word(0).split("|")
    targets = [registers.array(name) for name in names]
    a, b = (registers.read(instruction.word(i), kind) for i in (1, 2))
    combine = next((f for n, f in _COMBINED.items() if instruction.has(n)), None)
    if len(names) == 1 and combine is None and isinstance(compare, np.ufunc) and not instruction.has("ftz"):
        return _compared(targets[0], compare, a, b)

    def compared(mask: Mask) -> None:
        result = compare(flushed(a), flushed(b)) if instruction.has("ftz") else compare(a, b)
        for target, value in zip(targets, (result, ~result), strict=False):
            other = registers.condition(instruction.word(3)) if combine else None
            assign(target, value if other is None or combine is None else combine(value, other), mask)

    return compared


def _set(wave: Wave, instruction: Instruction, _: int) -> Step:
    """Decode set: like setp, but writes a register: 1.0, or all bits of an integer, if the comparison holds."""
    to, kind, registers = *instruction.opcode[-2:], wave.registers
    if set(instruction.opcode[2:-2]) - {"ftz", *_COMBINED}:
        raise UnsupportedError(instruction.name)
    compare = relation(instruction.opcode[1], kind.startswith("f"))
    combine = next((f for n, f in _COMBINED.items() if instruction.has(n)), None)
    target, one = registers.write(instruction.word(0), to), 1.0 if to == "f32" else -1
    a, b = (registers.read(instruction.word(i), kind) for i in (1, 2))

    def compared(mask: Mask) -> None:
        holds = compare(flushed(a), flushed(b)) if instruction.has("ftz") else compare(a, b)
        if combine is not None:
            holds = combine(holds, registers.condition(instruction.word(3)))
        assign(target, np.where(holds, one, 0).astype(target.dtype), mask)

    return compared


_COMBINED = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def _compared(target: Array, compare: np.ufunc, a: Array, b: Array) -> Step:
    def step(mask: Mask) -> None:
        compare(a, b, out=target) if mask is None else compare(a, b, out=target, where=mask)

    return step


def _select(wave: Wave, instruction: Instruction, _: int) -> Step:
    kind, registers = instruction.type, wave.registers
    target = registers.write(instruction.word(0), kind)
    a, b = (registers.read(instruction.word(i), kind) for i in (1, 2))
    condition = instruction.word(3)

    def selected(mask: Mask) -> None:
        assign(target, np.where(registers.condition(condition), a, b), mask)

    return selected


def _move(wave: Wave, instruction: Instruction, _: int) -> Step:
    """Decode mov: a register, number or address; or `{a, b}` into one register, lowest first, or the reverse."""
    target, source = instruction.words(0), instruction.words(1)
    if len(target) > 1:
        return _unpack(wave, target, source[0], instruction.type)
    if len(source) > 1:
        return _pack(wave, target[0], source, instruction.type)
    to = wave.registers.write(target[0], instruction.type)
    if instruction.type == "pred":
        return lambda mask: assign(to, wave.registers.condition(source[0]), mask)
    value = wave.registers.read(source[0], instruction.type)
    return lambda mask: assign(to, value, mask)


def _pack(wave: Wave, target: str, parts: tuple[str, ...], kind: str) -> Step:
    size = int(kind[1:]) // len(parts)
    to, dtype = wave.registers.write(target, f"u{kind[1:]}"), DTYPES[f"u{kind[1:]}"]
    sources = [wave.registers.read(part, f"u{size}") for part in parts]

    def packed(mask: Mask) -> None:
        total = sum(source.astype(dtype) << dtype.type(i * size) for i, source in enumerate(sources))
        assign(to, total, mask)

    return packed


def _unpack(wave: Wave, targets: tuple[str, ...], source: str, kind: str) -> Step:
    size, dtype = int(kind[1:]) // len(targets), DTYPES[f"u{kind[1:]}"]
    value = wave.registers.read(source, f"u{kind[1:]}")
    to = [wave.registers.write(target, f"u{size}") for target in targets]

    def unpacked(mask: Mask) -> None:
        kept = value.copy()
        for i, register in enumerate(to):
            assign(register, (kept >> dtype.type(i * size)).astype(f"u{size // 8}"), mask)

    return unpacked


DECODERS: Mapping[str, Decoder] = {"setp": _compare, "set": _set, "selp": _select, "mov": _move}
