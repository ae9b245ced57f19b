"""Integer instructions with several operations: dot products of packed bytes, carries, and legacy instructions."""

from collections.abc import Callable, Mapping

import numpy as np

from tuner.backends.ptx.instructions.arithmetic import applied, check_qualifiers, elementwise
from tuner.backends.ptx.state.machine import Decoder, Step
from tuner.backends.ptx.state.values import DTYPES, Array, Mask, UnsupportedError, assign
from tuner.backends.ptx.state.wave import Wave
from tuner.backends.ptx.text.parse import Instruction


def _parts(word: Array, kind: str, count: int) -> Array:
    """Return [lanes, count] 64-bit values: the bytes or halves of 32 bits, lowest first, extended according to
    `kind`.
    """
    packed = np.ascontiguousarray(np.atleast_1d(word).astype(np.uint32))
    parts: Array = packed.view(f"{'i' if kind[0] == 's' else 'u'}{4 // count}").reshape(-1, count)
    return parts.astype(np.int64)


def _dot(wave: Wave, instruction: Instruction, _: int) -> Step:
    """Decode dp4a and dp2a: four bytes by four, or two halves by two of the bytes (`.lo`, `.hi`), added to c."""
    *mode, left, right = instruction.opcode[1:]
    halves = instruction.opcode[0] == "dp2a"
    if {left, right} - {"s32", "u32"} or mode not in ([["lo"], ["hi"]] if halves else [[]]):
        raise UnsupportedError(instruction.name)
    kind = "u32" if left == right == "u32" else "s32"
    first = 2 if mode == ["hi"] else 0

    def dot(a: Array, b: Array, c: Array) -> Array:
        bytes_ = _parts(b, right, 4)[:, first : first + 2] if halves else _parts(b, right, 4)
        products = _parts(a, left, 2 if halves else 4) * bytes_
        total: Array = (products.sum(1) + c).astype(DTYPES[kind])
        return total

    return applied(wave, instruction, dot, kind, *["u32"] * 3)


def _video(wave: Wave, instruction: Instruction, _: int) -> Step:
    """Decode vabsdiff2 and vabsdiff4: per half or byte, or with `.add` their sum added to c."""
    count, *kinds = int(instruction.opcode[0][-1]), *instruction.opcode[1:4]
    if set(instruction.opcode[4:]) - {"add"} or len(kinds) != 3:
        raise UnsupportedError(instruction.name)

    def differed(a: Array, b: Array, c: Array) -> Array:
        apart = np.abs(np.subtract(*np.broadcast_arrays(_parts(a, kinds[1], count), _parts(b, kinds[2], count))))
        if instruction.has("add"):
            total: Array = (apart.sum(1) + c).astype(np.uint32)
            return total
        packed: Array = np.ascontiguousarray(apart.astype(f"u{4 // count}")).view(np.uint32)[:, 0]
        return packed

    return applied(wave, instruction, differed, "u32", *["u32"] * 3)


def _sad(a: Array, b: Array, c: Array) -> Array:
    """Return c + |a - b|, which fits the unsigned type of the same width."""
    return np.where(a > b, a - b, b - a) + c


def _product24(wave: Wave, instruction: Instruction, _: int) -> Step:
    """Decode mul24 and mad24: the lower 32 bits of the 48-bit product of 24-bit values, or (`hi`) the upper ones."""
    kind, high = instruction.type, instruction.has("hi")
    check_qualifiers(instruction)

    def multiplied(a: Array, b: Array, *c: Array) -> Array:
        wide = [
            (operand.astype(np.int64) << 40 >> 40) if kind[0] == "s" else operand.astype(np.int64) & 0xFFFFFF
            for operand in (a, b)
        ]
        product = wide[0] * wide[1] >> (16 if high else 0)
        return (product + (c[0] if c else 0)).astype(DTYPES[kind])

    return applied(wave, instruction, multiplied, *[kind] * len(instruction.operands))


class Carry:
    """The condition code of each lane."""

    def __init__(self, wave: Wave) -> None:
        self.lanes = np.zeros(wave.lanes, bool)


def carried(wave: Wave, instruction: Instruction, _: int) -> Step:
    """Decode 32-bit or 64-bit add, sub and mad that read the carry (name ends in `c`), write it (`.cc`), or both."""
    name, kind, registers = instruction.opcode[0], instruction.type, wave.registers
    size = int(kind[1:])
    strange = set(instruction.opcode[1:-1]) - {"cc", "lo", "hi"}
    if strange or kind[0] not in "us" or size < 32:
        raise UnsupportedError(instruction.name)
    reads, writes, high = name.endswith("c"), instruction.has("cc"), instruction.has("hi")
    signed = kind[0] == "s" and high
    carry = wave.part(Carry).lanes
    target = registers.write(instruction.word(0), f"u{size}")
    sources = [registers.read(instruction.word(i), f"u{size}") for i in range(1, len(instruction.operands))]

    def exact(source: Array) -> Array:
        wide = np.broadcast_to(source, wave.lanes)
        return (wide.view(f"i{size // 8}") if signed else wide).astype(object)

    def added(mask: Mask) -> None:
        one = carry.astype(int).astype(object) if reads else 0
        everything = (1 << size) - 1
        if name.startswith("mad"):
            product = exact(sources[0]) * exact(sources[1])
            total = ((product >> size if high else product) & everything) + (exact(sources[2]) & everything) + one
        elif name.startswith("sub"):
            total = exact(sources[0]) - exact(sources[1]) - one
        else:
            total = exact(sources[0]) + exact(sources[1]) + one
        if writes:
            assign(carry, np.array([not 0 <= part <= everything for part in total]), mask)
        assign(target, np.array([part & everything for part in total], f"u{size // 8}"), mask)

    return added


def _select_by_sign(wave: Wave, instruction: Instruction, _: int) -> Step:
    """Decode slct: a if c is not negative, else b."""
    kind, tested = instruction.opcode[-2:]
    return applied(wave, instruction, lambda a, b, c: np.where(c >= 0, a, b), kind, kind, kind, tested)


def _nth(mask: int, base: int, offset: int) -> int:
    """Execute fns: return the position of the `offset`-th set bit of `mask` from bit `base`, upwards or downwards."""
    if offset == 0:
        return base if mask >> base & 1 else 0xFFFFFFFF
    bits = range(base, 32) if offset > 0 else range(base, -1, -1)
    ones = [bit for bit in bits if mask >> bit & 1]
    return ones[abs(offset) - 1] if len(ones) >= abs(offset) else 0xFFFFFFFF


def _find_nth(wave: Wave, instruction: Instruction, _: int) -> Step:
    def nth(*sources: Array) -> Array:
        lanes = zip(*(np.broadcast_to(source, wave.lanes).tolist() for source in sources), strict=True)
        return np.array([_nth(*lane) for lane in lanes], np.uint32)

    return applied(wave, instruction, nth, "u32", "u32", "u32", "s32")


_PACKED: Mapping[str, Callable[[Array, Array], Array]] = {"add": np.add, "min": np.minimum, "max": np.maximum}


def decode_packed(wave: Wave, instruction: Instruction) -> Step:
    """Decode add, min and max of two packed 16-bit integers (sm_90)."""
    function, kind = _PACKED.get(instruction.opcode[0]), instruction.type
    relu = instruction.has("relu")
    if function is None or set(instruction.opcode[1:-1]) - {"relu"}:
        raise UnsupportedError(instruction.name)

    def both(a: Array, b: Array) -> Array:
        result = function(*np.broadcast_arrays(_parts(a, kind, 2), _parts(b, kind, 2)))
        halves = np.ascontiguousarray((np.maximum(result, 0) if relu else result).astype(np.uint16))
        packed: Array = halves.view(np.uint32)[:, 0]
        return packed

    return applied(wave, instruction, both, "b32", "u32", "u32")


DECODERS: Mapping[str, Decoder] = {
    "dp4a": _dot,
    "dp2a": _dot,
    "vabsdiff2": _video,
    "vabsdiff4": _video,
    "sad": elementwise(_sad, 3),
    "mul24": _product24,
    "mad24": _product24,
    "addc": carried,
    "subc": carried,
    "madc": carried,
    "slct": _select_by_sign,
    "fns": _find_nth,
}
