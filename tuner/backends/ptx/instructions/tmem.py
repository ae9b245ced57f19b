"""Tensor memory of sm_100a: 128 lanes x 512 columns of 32-bit cells per block, with allocations and pending
accesses.
"""

from typing import Any

import numpy as np

from tuner.backends.ptx.state.memory import FaultError
from tuner.backends.ptx.state.values import Array
from tuner.backends.ptx.state.wave import LEFT, Wave

LANES, COLUMNS = 128, 512
POISON = 0xFFFFFFFF
Cells = tuple[Any, ...]  # an index of (block, lane, column)


class Accesses:
    """Cells with loads or stores that their warp has not waited for."""

    def __init__(self, blocks: int) -> None:
        self._warp = np.zeros((blocks, LANES, COLUMNS), np.int32)  # number of the warp + 1
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
    """The tensor memory of all blocks. A block owns columns while they are allocated (PTX ISA, "Tensor Memory")."""

    def __init__(self, wave: Wave) -> None:
        shape = (wave.blocks, LANES, COLUMNS)
        self._wave = wave
        self.cells = np.full(shape, POISON, np.uint32)
        self.writers = np.zeros(shape, np.int16)  # number of pending products that will write the cell
        self.loads, self.stores = Accesses(wave.blocks), Accesses(wave.blocks)
        self._taken = np.zeros((wave.blocks, COLUMNS), bool)
        # Allocations as first column → number of columns.
        self._counts: list[dict[int, int]] = [{} for _ in range(wave.blocks)]
        self._most = np.full(wave.blocks, COLUMNS)  # columns that the next allocation may have

    def allocate(self, block: int, count: int) -> int:
        """Allocate columns and return the address: the lowest free one, or the highest if the last warp runs first."""
        _check_count(count)
        if count > self._most[block]:
            most = int(self._most[block])
            why = f"after one of {most}" if most else "after tcgen05.relinquish_alloc_permit"
            raise FaultError(f"tcgen05.alloc of {count} columns {why}")
        firsts = range(0, COLUMNS, count)
        free = [first for first in firsts if not self._taken[block, first : first + count].any()]
        if not free:
            raise FaultError(f"deadlock: tcgen05.alloc of {count} columns while the block holds the others")
        first = free[-1 if self._wave.order == "last" else 0]
        self._taken[block, first : first + count] = True
        self._counts[block][first], self._most[block] = count, count
        self.cells[block, :, first : first + count] = POISON
        return first

    def give_back(self, block: int, address: int, count: int) -> None:
        _check_count(count)
        if self._counts[block].get(address) != count:
            raise FaultError(f"tcgen05.dealloc of {count} columns at {address:#x}, which no tcgen05.alloc returned")
        columns = (block, slice(None), slice(address, address + count))
        self.check_settled(columns, "tcgen05.dealloc")
        if self.writers[columns].any():
            raise FaultError("tcgen05.dealloc of columns with a pending product")
        self._taken[columns[0], columns[2]] = False
        del self._counts[block][address]

    def relinquish(self, block: int) -> None:
        self._most[block] = 0

    def leave(self) -> None:
        """Raise FaultError if a block whose lanes have all exited still holds columns."""
        gone = (self._wave.state == LEFT).reshape(self._wave.blocks, -1).all(1)
        if (self._taken.any(1) & gone).any():
            raise FaultError("a block exits without tcgen05.dealloc of its columns")

    def check_held(self, cells: Cells) -> None:
        """Raise FaultError for columns that the block has not allocated."""
        block, _, column = cells
        if isinstance(column, slice):
            inside, held = column.stop <= COLUMNS, self._taken[block, column]
        else:
            inside = bool((column < COLUMNS).all())
            held = self._taken[block, np.minimum(column, COLUMNS - 1)]
        if not inside or not held.all():
            raise FaultError("access to tensor memory columns that the block has not allocated")

    def check_settled(self, cells: Cells, what: str, reads: bool = False) -> None:
        """Raise FaultError if `cells` have pending stores or, unless `reads`, pending loads.

        Does nothing if the wave is not strict.
        """
        if not self._wave.strict:
            return
        if self.stores.touch(cells):
            raise FaultError(f"{what} of cells that a tcgen05.st writes, without tcgen05.wait::st")
        if not reads and self.loads.touch(cells):
            raise FaultError(f"{what} of cells that a tcgen05.ld reads, without tcgen05.wait::ld")

    def visible(self, cells: Cells) -> Array:
        """Return what a load reads: poison for cells with a pending product."""
        words: Array = np.where(self.writers[cells] > 0, np.uint32(POISON), self.cells[cells])
        return words


def _check_count(count: int) -> None:
    if not 32 <= count <= COLUMNS or count & (count - 1):
        raise FaultError(f"{count} columns of tensor memory: an allocation must be 32, 64, 128, 256 or 512")


def leave(wave: Wave) -> None:
    """Check the allocations of blocks whose lanes have exited."""
    if TensorMemory in wave.parts:
        wave.part(TensorMemory).leave()
