"""Tensor memory of sm_100a: 128 lanes of 512 columns a block, in cells of 32 bits: allocated columns, cells in use."""

from typing import Any

import numpy as np

from tuner.backends.ptx.state.memory import FaultError
from tuner.backends.ptx.state.values import Array
from tuner.backends.ptx.state.wave import LEFT, Wave

LANES, COLUMNS = 128, 512
POISON = 0xFFFFFFFF
Cells = tuple[Any, ...]  # an index of (block, lane, column)


class Accesses:
    """Cells that loads read, or stores write, until their warp has waited."""

    def __init__(self, blocks: int) -> None:
        self._warp = np.zeros((blocks, LANES, COLUMNS), np.int32)  # the warp + 1
        self._cells: dict[int, list[Cells]] = {}

    def begin(self, warp: int, cells: Cells) -> None:
        self._warp[cells] = warp + 1
        self._cells.setdefault(warp, []).append(cells)

    def end(self, warp: int) -> None:
        for cells in self._cells.pop(warp, ()):
            self._warp[cells] = np.where(self._warp[cells] == warp + 1, 0, self._warp[cells])

    def touch(self, cells: Cells) -> bool:
        return bool(self._warp[cells].any())


class TensorMemory:
    """Columns are a block's for as long as it has allocated them: PTX ISA, "Tensor Memory"."""

    def __init__(self, wave: Wave) -> None:
        shape = (wave.blocks, LANES, COLUMNS)
        self._wave = wave
        self.cells = np.full(shape, POISON, np.uint32)
        self.writers = np.zeros(shape, np.int16)  # products that have yet to write a cell
        self.loads, self.stores = Accesses(wave.blocks), Accesses(wave.blocks)
        self._taken = np.zeros((wave.blocks, COLUMNS), bool)
        self._counts: list[dict[int, int]] = [{} for _ in range(wave.blocks)]  # columns, by the first one
        self._most = np.full(wave.blocks, COLUMNS)  # the next allocation may have

    def allocate(self, block: int, count: int) -> int:
        """The address: the lowest that is free, or the highest where the last warp goes first."""
        _check_count(count)
        if count > self._most[block]:
            most = int(self._most[block])
            why = f"after one of {most}" if most else "after tcgen05.relinquish_alloc_permit"
            raise FaultError(f"tcgen05.alloc of {count} columns {why}")
        firsts = range(0, COLUMNS, count)
        free = [first for first in firsts if not self._taken[block, first : first + count].any()]
        if not free:
            raise FaultError(f"deadlock: tcgen05.alloc of {count} columns, and the block holds the others")
        first = free[-1 if self._wave.order == "last" else 0]
        self._taken[block, first : first + count] = True
        self._counts[block][first], self._most[block] = count, count
        self.cells[block, :, first : first + count] = POISON
        return first

    def give_back(self, block: int, address: int, count: int) -> None:
        _check_count(count)
        if self._counts[block].get(address) != count:
            raise FaultError(f"tcgen05.dealloc of {count} columns at {address:#x}, which no tcgen05.alloc gave")
        columns = (block, slice(None), slice(address, address + count))
        self.check_settled(columns, "tcgen05.dealloc")
        if self.writers[columns].any():
            raise FaultError("tcgen05.dealloc of columns that a product has yet to write")
        self._taken[columns[0], columns[2]] = False
        del self._counts[block][address]

    def relinquish(self, block: int) -> None:
        self._most[block] = 0

    def leave(self) -> None:
        """Raises FaultError where every lane of a block has left and its columns stay."""
        gone = (self._wave.state == LEFT).reshape(self._wave.blocks, -1).all(1)
        if (self._taken.any(1) & gone).any():
            raise FaultError("a block leaves without tcgen05.dealloc of its columns")

    def check_held(self, cells: Cells) -> None:
        """Raises FaultError for columns that the block has not allocated."""
        block, _, column = cells
        if isinstance(column, slice):
            inside, held = column.stop <= COLUMNS, self._taken[block, column]
        else:
            inside = bool((column < COLUMNS).all())
            held = self._taken[block, np.minimum(column, COLUMNS - 1)]
        if not inside or not held.all():
            raise FaultError("tensor memory in columns that the block has not allocated")

    def check_settled(self, cells: Cells, what: str, reads: bool = False) -> None:
        """Raises FaultError where a load or store of `cells` is not waited for; those that read mind stores only.

        Not checked where the wave is not strict.
        """
        if not self._wave.strict:
            return
        if self.stores.touch(cells):
            raise FaultError(f"{what} of cells that a tcgen05.st writes, without tcgen05.wait::st")
        if not reads and self.loads.touch(cells):
            raise FaultError(f"{what} of cells that a tcgen05.ld reads, without tcgen05.wait::ld")

    def visible(self, cells: Cells) -> Array:
        """What a load finds: nothing where a product has yet to write."""
        words: Array = np.where(self.writers[cells] > 0, np.uint32(POISON), self.cells[cells])
        return words


def _check_count(count: int) -> None:
    if not 32 <= count <= COLUMNS or count & (count - 1):
        raise FaultError(f"{count} columns of tensor memory: 32, 64, 128, 256 or 512 are one allocation")


def leave(wave: Wave) -> None:
    """Lanes have left."""
    if TensorMemory in wave.parts:
        wave.part(TensorMemory).leave()
