"""Warp-level tcgen05 instructions: allocation of tensor memory, and loads and stores of its cells."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from tuner.backends.ptx.instructions import tcgen05_mma
from tuner.backends.ptx.instructions.access import addresses, locator, space_of
from tuner.backends.ptx.instructions.exchange import together
from tuner.backends.ptx.instructions.tmem import POISON, Cells, TensorMemory
from tuner.backends.ptx.state.machine import Decoder, Step
from tuner.backends.ptx.state.memory import FaultError
from tuner.backends.ptx.state.values import Array, Mask, UnsupportedError
from tuner.backends.ptx.state.wave import WARP, Wave
from tuner.backends.ptx.text.parse import Instruction

_HIGH = np.uint32(POISON & 0xFFFF0000)  # the upper half of a cell that holds 16 bits is undefined
_PER_NUM = {"32x32b": 1, "16x32bx2": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4}  # registers with .x1


@cache
def fragment(shape: str, registers: int) -> tuple[Array, Array]:
    """Return [32, registers] lanes and columns of a thread's registers, relative to the start of the access.

    For .16x32bx2 the distance between the halves is not included (PTX ISA, "Data movement shape").
    """
    thread, i = np.arange(WARP)[:, None], np.arange(registers)[None, :]
    lane, column = {
        "32x32b": (thread, i),
        "16x32bx2": (thread % 16, i),
        "16x64b": (thread // 4 + thread % 2 * 8, thread // 2 % 2 + i * 2),
        "16x128b": (thread // 4 + i % 2 * 8, thread % 4 + i // 2 * 4),
        "16x256b": (thread // 4 + i // 2 % 2 * 8, thread % 4 * 2 + i % 2 + i // 4 * 8),
    }[shape]
    lane, column = np.broadcast_arrays(lane, column)
    return lane, column


def _warps(wave: Wave, mask: Mask) -> Array:
    """Return the lanes as [warps, 32]."""
    warps: Array = wave.numbers(mask).reshape(-1, WARP)
    return warps


def _common(values: Array, what: str) -> int:
    if (values != values[0]).any():
        raise FaultError(f"{what} must not differ between the lanes of a warp")
    return int(values[0])


def _allocate(wave: Wave, instruction: Instruction, at: int) -> Step:
    to, locate = addresses(wave, instruction.address(0), space_of(instruction)), locator(wave, space_of(instruction))
    count = np.broadcast_to(wave.registers.read(instruction.word(1), "u32"), wave.lanes)

    def allocated(mask: Mask) -> None:
        for warp in _warps(wave, mask):
            block = int(wave.block_of[warp[0]])
            address = wave.part(TensorMemory).allocate(block, _common(count[warp], "numbers of columns"))
            memory, offsets = locate(to(warp), warp, 4, True)
            memory[4][offsets // 4] = address

    return together(wave, at, WARP, allocated)


def _give_back(wave: Wave, instruction: Instruction, at: int) -> Step:
    address, count = (np.broadcast_to(wave.registers.read(instruction.word(i), "u32"), wave.lanes) for i in (0, 1))

    def given_back(mask: Mask) -> None:
        for warp in _warps(wave, mask):
            columns = _common(count[warp], "numbers of columns")
            wave.part(TensorMemory).give_back(int(wave.block_of[warp[0]]), _common(address[warp], "addresses"), columns)

    return together(wave, at, WARP, given_back)


def _relinquish(wave: Wave, at: int) -> Step:
    def relinquished(mask: Mask) -> None:
        for warp in _warps(wave, mask):
            wave.part(TensorMemory).relinquish(int(wave.block_of[warp[0]]))

    return together(wave, at, WARP, relinquished)


def _cells(wave: Wave, instruction: Instruction, operand: int, registers: int) -> Callable[[Array], Cells]:
    """Return the cells of one warp's registers: [32, registers] each, or [32, registers, 2] for packed 16-bit
    values.
    """
    shape, packed = instruction.opcode[4], instruction.has("pack::16b", "unpack::16b")
    if shape not in _PER_NUM or registers != _PER_NUM[shape] * int(instruction.opcode[5][1:]):
        raise UnsupportedError(f"{instruction.name} of {registers} registers")
    address_of = addresses(wave, instruction.address(operand), "shared")  # an address in tensor memory also has 32 bits
    lane, column = fragment(shape, registers)
    if packed:
        lane, column = lane[..., None], 2 * column[..., None] + np.arange(2)
    if shape == "16x32bx2":
        apart = int(instruction.word(-1 if instruction.opcode[1] == "ld" else 1), 0)
        column = column + (np.arange(WARP) // 16 * apart).reshape(-1, *[1] * (column.ndim - 1))

    def cells(warp: Array) -> Cells:
        address = _common(address_of(warp), "addresses")
        first, number = address >> 16, int(warp[0]) % wave.lanes_of_block // WARP % 4
        if first // WARP != number or int(lane.max()) + first % WARP >= WARP:
            last = first + int(lane.max())
            raise FaultError(f"warp {number} of a warpgroup at lanes {first} to {last} of tensor memory, of which 32 "
                             f"from {WARP * number} on are its own")  # fmt: skip
        cells = int(wave.block_of[warp[0]]), first + lane, (address & 0xFFFF) + column
        wave.part(TensorMemory).check_held(cells)
        return cells

    return cells


def _load(wave: Wave, instruction: Instruction, at: int) -> Step:
    """Write the registers at once; the cells stay in use until tcgen05.wait::ld."""
    targets = [wave.registers.write(name, "b32") for name in instruction.words(0)]
    of_warp = _cells(wave, instruction, 1, len(targets))

    def loaded(mask: Mask) -> None:
        memory = wave.part(TensorMemory)
        for warp in _warps(wave, mask):
            cells = of_warp(warp)
            memory.check_settled(cells, "tcgen05.ld", reads=True)
            memory.loads.begin(int(warp[0]) // WARP, cells)
            words = memory.visible(cells)
            if words.ndim == 3:
                words = words[..., 0] & np.uint32(0xFFFF) | words[..., 1] << np.uint32(16)
            for target, value in zip(targets, words.T, strict=True):
                target[warp] = value

    return together(wave, at, WARP, loaded)


def _store(wave: Wave, instruction: Instruction, at: int) -> Step:
    """Write the cells at once; they must not be used before tcgen05.wait::st."""
    sources = [np.broadcast_to(wave.registers.read(name, "b32"), wave.lanes) for name in instruction.words(-1)]
    of_warp = _cells(wave, instruction, 0, len(sources))

    def stored(mask: Mask) -> None:
        memory = wave.part(TensorMemory)
        for warp in _warps(wave, mask):
            cells, words = of_warp(warp), np.stack([source[warp] for source in sources], axis=1)
            memory.check_settled(cells, "tcgen05.st")
            if cells[2].ndim == 3:
                words = _HIGH | np.stack([words & np.uint32(0xFFFF), words >> np.uint32(16)], axis=2)
            memory.cells[cells] = words
            memory.stores.begin(int(warp[0]) // WARP, cells)

    return together(wave, at, WARP, stored)


def _wait(wave: Wave, instruction: Instruction, at: int) -> Step:
    loads = instruction.opcode[1] == "wait::ld"

    def waited(mask: Mask) -> None:
        memory = wave.part(TensorMemory)
        for warp in _warps(wave, mask):
            (memory.loads if loads else memory.stores).end(int(warp[0]) // WARP)

    return together(wave, at, WARP, waited)


def _decode(wave: Wave, instruction: Instruction, at: int) -> Step:
    """Decode tcgen05.*. Raises UnsupportedError for unsupported forms."""
    name: Any = instruction.opcode[1]
    if instruction.has("cta_group::2"):
        raise UnsupportedError(instruction.name)
    if name == "alloc":
        return _allocate(wave, instruction, at)
    if name == "dealloc":
        return _give_back(wave, instruction, at)
    if name == "relinquish_alloc_permit":
        return _relinquish(wave, at)
    if name in ("ld", "st") and instruction.opcode[2:4] == ("sync", "aligned"):
        return (_load if name == "ld" else _store)(wave, instruction, at)
    if name in ("wait::ld", "wait::st"):
        return _wait(wave, instruction, at)
    if name.startswith("fence::"):
        return lambda _: None  # the interpreter's memory is sequentially consistent
    return tcgen05_mma.decode(wave, instruction)


DECODERS: Mapping[str, Decoder] = {"tcgen05": _decode}
