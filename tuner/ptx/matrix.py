"""Tensor cores of a warp: fragments of mma.sync, and ldmatrix, stmatrix and movmatrix (PTX ISA, "Matrix Fragments")."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tuner.ptx.access import addresses
from tuner.ptx.convert import bf16_floats
from tuner.ptx.exchange import together
from tuner.ptx.machine import Decoder, Step
from tuner.ptx.parse import Instruction
from tuner.ptx.values import Array, Mask, UnsupportedError
from tuner.ptx.wave import WARP, Wave

_GROUP, _IN_GROUP = np.arange(WARP)[:, None] // 4, np.arange(WARP)[:, None] % 4  # the ISA's groupID, threadID_in_group


@dataclass(frozen=True)
class Fragment:
    """Where the elements of a warp's registers lie: [lanes, elements] rows and columns of a tile."""

    rows: Array
    columns: Array
    shape: tuple[int, int]

    def tile(self, elements: Array) -> Array:
        """[warps, lanes, elements] → [warps, *shape]"""
        found = np.empty((len(elements), *self.shape), elements.dtype)
        found[:, self.rows, self.columns] = elements
        return found

    def elements(self, tile: Array) -> Array:
        found: Array = tile[:, self.rows, self.columns]
        return found


@cache
def a_fragment(k: int, wide: bool) -> Fragment:
    """A, 16 x k; `wide` elements fill a register each, others share one by two."""
    if wide:
        i = np.arange(k // 2)[None, :]
        return Fragment(_GROUP + 8 * (i % 2), _IN_GROUP + 4 * (i // 2), (16, k))
    i = np.arange(k // 2)[None, :]
    return Fragment(_GROUP + 8 * (i // 2 % 2), 2 * _IN_GROUP + i % 2 + 8 * (i // 4), (16, k))


@cache
def b_fragment(k: int, wide: bool) -> Fragment:
    """B, k x 8."""
    i = np.arange(k // 4)[None, :]
    row = _IN_GROUP + 4 * i if wide else 2 * _IN_GROUP + i % 2 + 8 * (i // 2)
    return Fragment(row, np.broadcast_to(_GROUP, row.shape), (k, 8))


@cache
def c_fragment() -> Fragment:
    """C and D, 16 x 8."""
    i = np.arange(4)[None, :]
    return Fragment(_GROUP + 8 * (i // 2), 2 * _IN_GROUP + i % 2, (16, 8))


def _tf32(bits: Array) -> Array:
    return (bits & np.uint32(0xFFFFE000)).view(np.float32)  # the lower 13 bits are ignored


FLOATS: Mapping[str, Callable[[Array], Array]] = {
    "bf16": bf16_floats,
    "f16": lambda bits: bits.view(np.float16).astype(np.float32),
    "tf32": _tf32,
}


def _registers(wave: Wave, names: tuple[str, ...]) -> list[Array]:
    return [np.broadcast_to(wave.registers.read(each, "b32"), wave.lanes) for each in names]


def halves(registers: list[Array], lanes: Any) -> Array:
    """[warps, lanes, 2 · registers]: the 16-bit elements of registers."""
    words = np.stack([each[lanes] for each in registers], axis=1)
    return words.reshape(-1, WARP, len(registers)).view(np.uint16)


def _mma(wave: Wave, instruction: Instruction, at: int) -> Step:
    opcode = instruction.opcode
    shape, kinds = opcode[3], opcode[6:10]
    wide = kinds[1] == "tf32"
    known = ("m16n8k16", "m16n8k8") if not wide else ("m16n8k8", "m16n8k4")
    typed = len(opcode) == 10 and kinds[0] == kinds[3] == "f32" and kinds[1] == kinds[2] and kinds[1] in FLOATS
    if not typed or shape not in known or opcode[4:6] != ("row", "col"):
        raise UnsupportedError(".".join(opcode))
    k = int(shape.rpartition("k")[2])
    targets = [wave.registers.write(each, "f32") for each in instruction.words(0)]
    a, b, c = (_registers(wave, instruction.words(i)) for i in (1, 2, 3))
    a_at, b_at, c_at, floats = a_fragment(k, wide), b_fragment(k, wide), c_fragment(), FLOATS[kinds[1]]

    def operand(registers: list[Array], lanes: Any, where: Fragment) -> Array:
        bits = halves(registers, lanes)
        return where.tile(floats(bits.view(np.uint32) if wide else bits))

    def multiplied(mask: Mask) -> None:
        lanes = wave.index(mask)
        addend = c_at.tile(halves(c, lanes).view(np.float32))
        product = operand(a, lanes, a_at) @ operand(b, lanes, b_at) + addend
        for target, value in zip(targets, np.moveaxis(c_at.elements(product), 2, 0), strict=True):
            target[lanes] = value.reshape(-1)

    return together(wave, at, WARP, multiplied)


def _matrices(instruction: Instruction) -> int:
    found = next((each for each in instruction.opcode if each in ("x1", "x2", "x4")), "")
    if not found or "m8n8" not in instruction.opcode or instruction.type != "b16":
        raise UnsupportedError(".".join(instruction.opcode))
    return int(found[1])


def _rows(wave: Wave, instruction: Instruction, operand: int, count: int) -> Callable[[Any], Array]:
    """[warps, count, 8, 8]: the places of 16-bit elements, of whose rows lane 8 i + row gives the address."""
    at = addresses(wave, instruction.address(operand), "shared")

    def rows(lanes: Any) -> Array:
        given = at(lanes).reshape(-1, WARP)[:, : 8 * count]
        owners = np.arange(wave.lanes)[lanes].reshape(-1, WARP)[:, : 8 * count]
        starts = wave.shared.locate(given, owners, 16) // 2
        return starts.reshape(-1, count, 8)[..., None] + np.arange(8)

    return rows


def _load_matrix(wave: Wave, instruction: Instruction, at: int) -> Step:
    count, transposed = _matrices(instruction), instruction.has("trans")
    targets = [wave.registers.write(each, "b32") for each in instruction.words(0)]
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
    sources = _registers(wave, instruction.words(1))
    rows = _rows(wave, instruction, 0, count)

    def stored(mask: Mask) -> None:
        lanes = wave.index(mask)
        words = np.stack([each[lanes].reshape(-1, 8, 4) for each in sources], axis=1)
        tiles = np.ascontiguousarray(words).view(np.uint16)
        places = rows(lanes)
        wave.shared.views[2][places] = tiles.swapaxes(2, 3) if transposed else tiles
        if wave.unfenced:
            rowed = np.arange(wave.lanes)[lanes].reshape(-1, WARP)[:, : 8 * count]
            wave.unfenced.wrote(2 * places[..., 0].reshape(-1), rowed.reshape(-1))

    return together(wave, at, WARP, stored)


def _move_matrix(wave: Wave, instruction: Instruction, at: int) -> Step:
    if instruction.opcode[1:] != ("sync", "aligned", "m8n8", "trans", "b16"):
        raise UnsupportedError(".".join(instruction.opcode))
    target = wave.registers.write(instruction.word(0), "b32")
    source = _registers(wave, (instruction.word(1),))

    def moved(mask: Mask) -> None:
        lanes = wave.index(mask)
        tiles = halves(source, lanes).reshape(-1, 8, 8).swapaxes(1, 2)
        target[lanes] = np.ascontiguousarray(tiles).view(np.uint32).reshape(-1)

    return together(wave, at, WARP, moved)


DECODERS: Mapping[str, Decoder] = {
    "mma": _mma,
    "ldmatrix": _load_matrix,
    "stmatrix": _store_matrix,
    "movmatrix": _move_matrix,
}
