"""wmma: products of tiles whose register layout is opaque to the program.

The PTX ISA leaves the layout unspecified. Here a lane holds neighbouring elements of a row, unlike on any GPU, so that
a kernel that relies on a specific layout computes wrong results. If a fragment has more registers than the tile needs,
it holds the tile repeatedly.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.backends.ptx.instructions.access import addresses, locator, space_of
from tuner.backends.ptx.instructions.exchange import together
from tuner.backends.ptx.instructions.matrix import ELEMENTS, SUMS, elements, registers_of, summation
from tuner.backends.ptx.state.machine import Decoder, Step
from tuner.backends.ptx.state.memory import FaultError
from tuner.backends.ptx.state.values import Array, Mask, UnsupportedError
from tuner.backends.ptx.state.wave import WARP, Wave
from tuner.backends.ptx.text.parse import Instruction

_SIZES = {**{name: element.size for name, element in ELEMENTS.items()}, "f32": 4, "s32": 4}
# In bytes: alignment of an address, and of the row stride (CUDA C++ Programming Guide, "WMMA").
_ALIGNED, _APART = 32, 16


@dataclass(frozen=True)
class Tile:
    """The rows and columns of an operand, and the size of an element in bytes."""

    rows: int
    columns: int
    size: int

    def of(self, registers: Array) -> Array:
        """[warps, lanes, elements] → [warps, rows, columns]"""
        flat = registers.reshape(len(registers), -1)[:, : self.rows * self.columns]
        return flat.reshape(-1, self.rows, self.columns)

    def registers(self, tile: Array, count: int) -> Array:
        """Convert [warps, rows, columns] to [warps, lanes, count]: `count` words per lane."""
        flat = np.ascontiguousarray(tile).view(np.uint32).reshape(len(tile), -1)
        repeated = np.tile(flat, (1, max(WARP * count // flat.shape[1], 1)))
        return repeated.reshape(len(tile), WARP, count)


def _tile(operand: str, shape: str, kind: str) -> Tile:
    m, rest = shape[1:].split("n")
    n, k = rest.split("k")
    if kind not in _SIZES:
        raise UnsupportedError(f"wmma of {kind}")
    rows, columns = {"a": (m, k), "b": (k, n), "c": (m, n), "d": (m, n)}[operand]
    return Tile(int(rows), int(columns), _SIZES[kind])


def _decode(wave: Wave, instruction: Instruction, at: int) -> Step:
    action = {"load": _load, "store": _store, "mma": _multiply}.get(instruction.opcode[1])
    if action is None:
        raise UnsupportedError(instruction.name)
    return action(wave, instruction, at)


def _places(wave: Wave, instruction: Instruction, first: int, tile: Tile, write: bool) -> Callable[[Any], Any]:
    """Return (memory, [warps, rows, columns] offsets); lanes must agree on an address and a stride in elements."""
    opcode, space = instruction.opcode, space_of(instruction)
    column_major, locate = opcode[5] == "col", locator(wave, space)
    at = addresses(wave, instruction.address(first), space)
    dense = np.uint32(tile.rows if column_major else tile.columns)
    stride = wave.registers.read(instruction.word(2), "u32") if len(instruction.operands) == 3 else dense

    def located(lanes: Any) -> Any:
        starts = at(lanes).astype(np.uint64).reshape(-1, WARP)
        steps = np.broadcast_to(stride, wave.lanes)[lanes].reshape(-1, WARP).astype(np.uint64) * np.uint64(tile.size)
        if (starts != starts[:, :1]).any() or (steps != steps[:, :1]).any():
            raise FaultError("the lanes of a warp pass different addresses or strides to wmma")
        if (starts % _ALIGNED).any() or (steps % _APART).any():
            raise FaultError(
                f"the address of wmma must be a multiple of {_ALIGNED} bytes, and its row stride of {_APART}"
            )
        row, column = np.arange(tile.rows)[:, None], np.arange(tile.columns)[None, :]
        along, across = (column, row) if column_major else (row, column)
        inside = steps[:, :1, None] * along.astype(np.uint64) + (across * tile.size).astype(np.uint64)
        offsets = starts[:, :1, None] + inside
        owners = np.repeat(np.arange(wave.lanes)[lanes].reshape(-1, WARP)[:, 0], tile.rows * tile.columns)
        memory, indices = locate(offsets.reshape(-1), owners, tile.size, write)
        return memory, (indices // tile.size).reshape(offsets.shape)

    return located


def _load(wave: Wave, instruction: Instruction, at: int) -> Step:
    """Decode wmma.load.{a,b,c}.sync.aligned.layout.shape{.ss}.type r, [p] {, stride}."""
    opcode = instruction.opcode
    tile = _tile(opcode[2], opcode[6], instruction.type)
    targets = [wave.registers.write(name, "b32") for name in instruction.words(0)]
    located = _places(wave, instruction, 1, tile, write=False)

    def loaded(mask: Mask) -> None:
        lanes = wave.index(mask)
        memory, indices = located(lanes)
        words = tile.registers(memory[tile.size][indices], len(targets))
        for i, target in enumerate(targets):
            target[lanes] = words[:, :, i].reshape(-1)

    return together(wave, at, WARP, loaded)


def _store(wave: Wave, instruction: Instruction, at: int) -> Step:
    """Decode wmma.store.d.sync.aligned.layout.shape{.ss}.type [p], r {, stride}."""
    tile = _tile("d", instruction.opcode[6], instruction.type)
    sources = registers_of(wave, instruction.words(1))
    located = _places(wave, instruction, 0, tile, write=True)

    def stored(mask: Mask) -> None:
        lanes = wave.index(mask)
        memory, indices = located(lanes)
        memory[tile.size][indices] = tile.of(elements(sources, lanes, tile.size))

    return together(wave, at, WARP, stored)


def _multiply(wave: Wave, instruction: Instruction, at: int) -> Step:
    """Decode wmma.mma.sync.aligned.alayout.blayout.shape.dtype{.atype.btype}.ctype{.satfinite} d, a, b, c."""
    shape, saturate = instruction.opcode[6], instruction.has("satfinite")
    kinds = tuple(part for part in instruction.opcode[7:] if part != "satfinite")
    d_kind, c_kind = kinds[0], kinds[1] if len(kinds) == 2 else kinds[-1]
    a_kind, b_kind = ("f16", "f16") if len(kinds) == 2 else kinds[1:3]
    if len(kinds) not in (2, 4) or {d_kind, c_kind} - SUMS.keys() or {a_kind, b_kind} - ELEMENTS.keys():
        raise UnsupportedError(instruction.name)
    targets = [wave.registers.write(name, "b32") for name in instruction.words(0)]
    a, b, c = (registers_of(wave, instruction.words(i)) for i in (1, 2, 3))
    left, right = ELEMENTS[a_kind], ELEMENTS[b_kind]
    tiles = _tile("a", shape, a_kind), _tile("b", shape, b_kind), _tile("c", shape, c_kind)
    sum_products = summation(wave, left, right, SUMS[d_kind], saturate)

    def multiplied(mask: Mask) -> None:
        lanes = wave.index(mask)
        addend = tiles[2].of(elements(c, lanes, tiles[2].size)).view(SUMS[c_kind])
        left_tile = left.floats(tiles[0].of(elements(a, lanes, left.size)))
        product = sum_products(left_tile, right.floats(tiles[1].of(elements(b, lanes, right.size))), addend)
        words = _tile("d", shape, d_kind).registers(product, len(targets))
        for i, target in enumerate(targets):
            target[lanes] = words[:, :, i].reshape(-1)

    return together(wave, at, WARP, multiplied)


DECODERS: Mapping[str, Decoder] = {"wmma": _decode}
