"""Warp-level matrix instructions: mma.sync, ldmatrix, stmatrix and movmatrix (PTX ISA, "Matrix Fragments")."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tuner.backends.ptx.instructions.access import addresses
from tuner.backends.ptx.instructions.exchange import together
from tuner.backends.ptx.instructions.floats import bf16_floats, e4m3_floats, e5m2_floats, f16_floats
from tuner.backends.ptx.instructions.products import multiply_add
from tuner.backends.ptx.state.machine import Decoder, Step
from tuner.backends.ptx.state.values import Array, Mask, UnsupportedError
from tuner.backends.ptx.state.wave import WARP, Wave
from tuner.backends.ptx.text.parse import Instruction
from tuner.backends.tensor_cores import SumRule, of_mma_sync
from tuner.errors import UsageError

# GroupID and threadID_in_group of the ISA.
_GROUP, _IN_GROUP = np.arange(WARP)[:, None] // 4, np.arange(WARP)[:, None] % 4


@dataclass(frozen=True)
class Fragment:
    """The layout of a warp's registers: [lanes, elements] rows and columns of a tile."""

    rows: Array
    columns: Array
    shape: tuple[int, int]

    def tile(self, elements: Array) -> Array:
        """Convert [warps, lanes, elements] to [warps, *shape]."""
        tiles = np.empty((len(elements), *self.shape), elements.dtype)
        tiles[:, self.rows, self.columns] = elements
        return tiles

    def elements(self, tile: Array) -> Array:
        result: Array = tile[:, self.rows, self.columns]
        return result


@cache
def a_fragment(k: int, size: int) -> Fragment:
    """Return the layout of A (16 x k) with elements of `size` bytes; the elements of a register are adjacent in
    a row.
    """
    register, position, count = _in_registers(k // 2, size)
    return Fragment(_GROUP + 8 * (register % 2), count * _IN_GROUP + position + 4 * count * (register // 2), (16, k))


@cache
def b_fragment(k: int, size: int) -> Fragment:
    """Return the layout of B (k x 8); the elements of a register are adjacent in a column."""
    register, position, count = _in_registers(k // 4, size)
    row = count * _IN_GROUP + position + 4 * count * register
    return Fragment(row, np.broadcast_to(_GROUP, row.shape), (k, 8))


def _in_registers(elements: int, size: int) -> tuple[Array, Array, int]:
    """Return the register of each element and its position in it, [1, elements], and the elements per register."""
    count = 4 // size
    i = np.arange(elements)[None, :]
    return i // count, i % count, count


@cache
def c_fragment() -> Fragment:
    """Return the layout of C and D (16 x 8)."""
    i = np.arange(4)[None, :]
    return Fragment(_GROUP + 8 * (i // 2), 2 * _IN_GROUP + i % 2, (16, 8))


def _tf32(bits: Array) -> Array:
    return (bits & np.uint32(0xFFFFE000)).view(np.float32)  # the lower 13 bits are ignored


@dataclass(frozen=True)
class Element:
    """An operand type: its size in bytes, its elements per instruction along k, and its conversion from bits."""

    size: int
    depth: int
    floats: Callable[[Array], Array]
    subnormal: int = -126  # exponent of its subnormals


ELEMENTS: Mapping[str, Element] = {
    "bf16": Element(2, 16, bf16_floats),
    "f16": Element(2, 16, f16_floats, -14),
    "tf32": Element(4, 8, _tf32),
    "e4m3": Element(1, 32, e4m3_floats, -6),
    "e5m2": Element(1, 32, e5m2_floats, -14),
    "s8": Element(1, 32, lambda bits: bits.view(np.int8).astype(np.float32)),
    "u8": Element(1, 32, lambda bits: bits.astype(np.float32)),
}


def registers_of(wave: Wave, names: tuple[str, ...]) -> list[Array]:
    return [np.broadcast_to(wave.registers.read(name, "b32"), wave.lanes) for name in names]


# The types of C and D.
SUMS: Mapping[str, "np.dtype[Any]"] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "s32": np.dtype(np.int32),
}


def elements(registers: list[Array], lanes: Any, size: int) -> Array:
    """Return [warps, lanes, 4 / size · registers] elements of registers, as bits."""
    words = np.stack([register[lanes] for register in registers], axis=1)
    return words.reshape(-1, WARP, len(registers)).view(f"u{size}")


def _mma(wave: Wave, instruction: Instruction, at: int) -> Step:
    opcode = instruction.opcode
    shape, kinds = opcode[3], tuple(part for part in opcode[6:] if part != "satfinite")
    typed = len(kinds) == 4 and kinds[0] == kinds[3] and kinds[0] in SUMS and {*kinds[1:3]} <= ELEMENTS.keys()
    if not typed or opcode[4:6] != ("row", "col") or not shape.startswith("m16n8k"):
        raise UnsupportedError(instruction.name)
    left, right, k = ELEMENTS[kinds[1]], ELEMENTS[kinds[2]], int(shape.rpartition("k")[2])
    if k not in (left.depth, left.depth // 2) or left.size != right.size:
        raise UnsupportedError(instruction.name)
    if (kinds[0] == "s32") != (left.size == 1 and kinds[1][1:] == "8"):
        raise UnsupportedError(instruction.name)
    targets, sums = [wave.registers.write(name, "b32") for name in instruction.words(0)], SUMS[kinds[0]]
    saturate = instruction.has("satfinite")
    a, b, c = (registers_of(wave, instruction.words(i)) for i in (1, 2, 3))
    a_at, b_at, c_at = a_fragment(k, left.size), b_fragment(k, right.size), c_fragment()
    sum_products = summation(wave, left, right, sums, saturate)

    def multiplied(mask: Mask) -> None:
        lanes = wave.index(mask)
        addend = c_at.tile(elements(c, lanes, sums.itemsize).view(sums))
        left_tile = a_at.tile(left.floats(elements(a, lanes, left.size)))
        product = sum_products(left_tile, b_at.tile(right.floats(elements(b, lanes, right.size))), addend)
        result = np.ascontiguousarray(c_at.elements(product)).view(np.uint32)
        for target, value in zip(targets, np.moveaxis(result, 2, 0), strict=True):
            target[lanes] = value.reshape(-1)

    return together(wave, at, WARP, multiplied)


def summation(
    wave: Wave, left: Element, right: Element, sums: "np.dtype[Any]", saturate: bool
) -> Callable[[Array, Array, Array], Array]:
    """Return the function (A, B, C) → A @ B + C as `sums`; floats are summed like the tensor cores of the module's
    target.

    Integers are exact, and wrap or saturate at 32 bits.
    """
    if sums.kind == "i":
        return lambda a, b, c: _integers(a, b, c, saturate)
    try:
        rule: SumRule = of_mma_sync(wave.arch, left.size)
    except UsageError as error:
        raise UnsupportedError(str(error)) from error
    return lambda a, b, c: multiply_add(a, b, c.astype(sums), (left.subnormal, right.subnormal), rule, left.size)


def _integers(a: Array, b: Array, c: Array, saturate: bool) -> Array:
    exact = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64) + c
    return (np.clip(exact, -(1 << 31), (1 << 31) - 1) if saturate else exact).astype(np.int32)


def _matrices(instruction: Instruction) -> int:
    result = next((part for part in instruction.opcode if part in ("x1", "x2", "x4")), "")
    if not result or "m8n8" not in instruction.opcode or instruction.type != "b16":
        raise UnsupportedError(instruction.name)
    return int(result[1])


def _rows(wave: Wave, instruction: Instruction, operand: int, count: int) -> Callable[[Any], Array]:
    """Return [warps, count, 8, 8] indices of 16-bit elements; lane 8 i + row holds the address of a row."""
    at = addresses(wave, instruction.address(operand), "shared")

    def rows(lanes: Any) -> Array:
        addressed = at(lanes).reshape(-1, WARP)[:, : 8 * count]
        owners = np.arange(wave.lanes)[lanes].reshape(-1, WARP)[:, : 8 * count]
        indices = wave.shared.locate(addressed, owners, 16)
        if wave.races:
            access = wave.races.writes if instruction.opcode[0] == "stmatrix" else wave.races.reads
            access(indices.reshape(-1), owners.reshape(-1), 16)
        starts = indices // 2
        return starts.reshape(-1, count, 8)[..., None] + np.arange(8)

    return rows


def _load_matrix(wave: Wave, instruction: Instruction, at: int) -> Step:
    count, transposed = _matrices(instruction), instruction.has("trans")
    targets = [wave.registers.write(name, "b32") for name in instruction.words(0)]
    rows = _rows(wave, instruction, 1, count)

    def loaded(mask: Mask) -> None:
        lanes = wave.index(mask)
        tiles = wave.shared.views[2][rows(lanes)]
        words = np.ascontiguousarray(tiles.swapaxes(2, 3) if transposed else tiles).view(np.uint32)
        for i, target in enumerate(targets):
            target[lanes] = words[:, i].reshape(-1)

    return together(wave, at, WARP, loaded)


def _store_matrix(wave: Wave, instruction: Instruction, at: int) -> Step:
    count, transposed = _matrices(instruction), instruction.has("trans")
    sources = registers_of(wave, instruction.words(1))
    rows = _rows(wave, instruction, 0, count)

    def stored(mask: Mask) -> None:
        lanes = wave.index(mask)
        words = np.stack([source[lanes].reshape(-1, 8, 4) for source in sources], axis=1)
        tiles = np.ascontiguousarray(words).view(np.uint16)
        indices = rows(lanes)
        wave.shared.views[2][indices] = tiles.swapaxes(2, 3) if transposed else tiles
        if wave.unfenced:
            rowed = np.arange(wave.lanes)[lanes].reshape(-1, WARP)[:, : 8 * count]
            wave.unfenced.wrote(2 * indices[..., 0].reshape(-1), rowed.reshape(-1))

    return together(wave, at, WARP, stored)


def _move_matrix(wave: Wave, instruction: Instruction, at: int) -> Step:
    if instruction.opcode[1:] != ("sync", "aligned", "m8n8", "trans", "b16"):
        raise UnsupportedError(instruction.name)
    target = wave.registers.write(instruction.word(0), "b32")
    source = registers_of(wave, (instruction.word(1),))

    def moved(mask: Mask) -> None:
        lanes = wave.index(mask)
        tiles = elements(source, lanes, 2).reshape(-1, 8, 8).swapaxes(1, 2)
        target[lanes] = np.ascontiguousarray(tiles).view(np.uint32).reshape(-1)

    return together(wave, at, WARP, moved)


DECODERS: Mapping[str, Decoder] = {
    "mma": _mma,
    "ldmatrix": _load_matrix,
    "stmatrix": _store_matrix,
    "movmatrix": _move_matrix,
}
