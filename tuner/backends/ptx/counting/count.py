"""Executes only the instructions that decide control flow and addresses, and counts all others."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tuner.backends.ptx.counting.loops import Loop, LoopCount, loops
from tuner.backends.ptx.counting.memory_traffic import Access, L1Cache, Metric, counted, kind_of, width_of
from tuner.backends.ptx.counting.needed import ACCESSES, Needed, needed
from tuner.backends.ptx.counting.sparse_memory import Sketch
from tuner.backends.ptx.decode import decoder
from tuner.backends.ptx.instructions.access import space_of
from tuner.backends.ptx.launch import Shape, Side, Value, begin, place_blocks
from tuner.backends.ptx.state.machine import Branch, Interpreter, Step
from tuner.backends.ptx.state.memory import FaultError
from tuner.backends.ptx.state.values import Array, Mask
from tuner.backends.ptx.state.wave import LEFT, WARP, Wave
from tuner.backends.ptx.text.module import Entry
from tuner.backends.ptx.text.parse import Instruction

_SHARED = frozenset({"ldmatrix", "stmatrix"})
_MATTERS = 1 / 16  # blocks at the end of a grid that make up a smaller share are not executed
_LOOK = 200  # segments between two checks of the clock


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of counting; when they are reached, the result is the counts so far."""

    seconds: float = 1.0  # CPU time


@dataclass(frozen=True)
class Counts:
    """The work of a block, averaged over the executed blocks.

    `tally` has one row per Metric and one column per PTX instruction.
    """

    entry: Entry
    warps: int
    tally: Array
    loops: tuple[LoopCount, ...]
    longest: float  # instructions of the block with the most work, relative to the mean
    unsure: str  # why other blocks may differ; empty if there is no reason

    @cached_property
    def accesses(self) -> tuple[Access, ...]:
        """The memory accesses that were executed, in program order."""
        accesses = []
        for at, instruction in enumerate(self.entry.code):
            column = self.tally[:, at]
            if column[Metric.REQUESTS]:
                matrix = instruction.opcode[0] in _SHARED
                space = "shared" if matrix else "global" if instruction.opcode[0] == "cp" else space_of(instruction)
                values = (float(column[row]) for row in list(Metric)[3:])
                requests, distinct, sectors, misses, wavefronts = values
                lanes = float(column[Metric.LANES])
                about = instruction.line, instruction.text, space, kind_of(instruction), width_of(instruction)
                accesses.append(Access(*about, requests, lanes, distinct, sectors, misses, wavefronts))
        return tuple(accesses)

    def executed(self, wanted: Callable[[Instruction], bool]) -> float:
        """Return the number of warp instructions that satisfy `wanted`."""
        warps = self.tally[Metric.WARPS]
        return float(sum(warps[at] for at, instruction in enumerate(self.entry.code) if wanted(instruction)))

    @property
    def active(self) -> float:
        """The mean fraction of active lanes in executed instructions; 1 without divergence."""
        total = self.tally[Metric.WARPS].sum()
        return float(self.tally[Metric.LANES].sum() / total / WARP) if total else 1.0


def count(
    entry: Entry, shape: Shape, memory: Sketch, values: Sequence[Value], l1_bytes: int, budget: Budget | None = None
) -> Counts:
    """Count the work of a grid from the block in its middle and, where they matter, those at its ends.

    Raises FaultError for unsupported instructions and for kernels that deadlock.
    """
    side = Side.one(entry, shape)
    blocks = _blocks(shape)
    wave = begin(entry, shape, side, memory, values)
    decides = needed(entry)
    if decides.data:
        memory.fill()
    tallies = []
    with np.errstate(all="ignore"):
        program = _Counting(entry, wave, decides, l1_bytes, budget or Budget())
        for block in blocks:
            place_blocks(wave.registers.special, shape, side, block.first + np.arange(side.blocks))
            wave.start(np.arange(wave.lanes) % side.lanes < side.threads)
            tallies.append(program.count() / shape.cluster)
    mean = np.tensordot([block.share for block in blocks], np.array(tallies), axes=1)
    work = [float(tally[Metric.WARPS].sum()) for tally in tallies]
    most = max(work) / max(float(mean[Metric.WARPS].sum()), 1.0)
    loops = tuple(program.counted(loop, mean) for loop in program.loops)
    return Counts(entry, -(-side.threads // WARP), mean, loops, max(1.0, most), program.unsure)


@dataclass(frozen=True, slots=True)
class _Block:
    """An executed block that represents a share of the grid."""

    first: int  # block index of the block, or of the first block of its cluster
    share: float


def _blocks(shape: Shape) -> tuple[_Block, ...]:
    """Return the block in the middle and, along axes with few blocks, the last one, whose tile may be partial."""
    x, y, z = (_along(n, shape.cluster if axis == 0 else 1) for axis, n in enumerate(shape.grid))
    width, height, _ = shape.grid
    return tuple(
        _Block(at + width * (row + height * layer), share * of_row * of_layer)
        for at, share in x
        for row, of_row in y
        for layer, of_layer in z
    )


def _along(blocks: int, step: int) -> tuple[tuple[int, float], ...]:
    """Return (index, share) of the executed blocks along an axis."""
    last = (blocks - 1) // step * step
    inner = (blocks - 1) // 2 // step * step
    share = step / blocks
    return ((inner, 1 - share), (last, share)) if last > inner and share >= _MATTERS else ((inner, 1.0),)


class _SpentError(Exception):
    """The budget is exhausted."""


class _Counting(Interpreter):
    """An interpreter that counts every instruction and computes only what decides control flow and addresses."""

    def __init__(self, entry: Entry, wave: Wave, decides: Needed, l1_bytes: int, budget: Budget) -> None:
        self.tally = np.zeros((len(Metric), len(entry.code)))
        self._decides, self._cache, self._first = decides, L1Cache(l1_bytes), 0
        self._plain = decoder(entry)
        self.loops = loops(entry, decides.registers)
        self._loop_of = {loop.stop: loop for loop in self.loops}
        self._skipped: set[int] = set()
        self._until, self._segments = time.thread_time() + budget.seconds, 0
        self.unsure = ""
        super().__init__(entry, wave, self._decode, math.inf)

    def count(self) -> Array:
        """Run, and return the counts up to the end or up to the limit of the budget."""
        self.tally[...] = 0
        self._cache.clear()
        for loop in self.loops:
            loop.left()
        try:
            self.run()
        except _SpentError:
            self.unsure = "counting stopped early: a loop with an unknown number of iterations, or a very long kernel"
        return self.tally.copy()

    def counted(self, loop: Loop, tally: Array) -> LoopCount:
        passes, taken = float(tally[Metric.WARPS, loop.start]), float(tally[Metric.TAKEN, loop.stop])
        entries = max(passes - taken, 0.0)
        trips = passes / entries if entries else passes
        return LoopCount(loop.start, loop.stop, entries * WARP / self.wave.lanes, trips, loop.start in self._skipped)

    def _decode(self, wave: Wave, instruction: Instruction, at: int) -> Step:
        name = instruction.opcode[0]
        real = self._plain(wave, instruction, at) if at in self._decides.executed else None
        copies = instruction.opcode[:3] in (("cp", "async", "ca"), ("cp", "async", "cg"))
        if copies or name in _SHARED or (name in ACCESSES and space_of(instruction) not in ("param", "const")):
            return counted(wave, instruction, at, self.tally, self._cache, real)
        return real or _nothing

    def _run_from(self, at: int, mask: Mask) -> None:
        while at >= 0:
            self._segments += 1
            if self._segments % _LOOK == 0 and time.thread_time() > self._until:
                raise _SpentError
            self._leave_loops(at)
            self._first = at
            at = self._straight(at, mask)
            if at >= 0 and (branch := self._branches[at]):
                at = self._branch_at(branch, at, mask)
            else:
                at = -1

    def _branch_at(self, branch: Branch, at: int, mask: Mask) -> int:
        if (loop := self._loop_of.get(at)) and self._whole(loop, mask):
            index = self.wave.index(mask)
            if passes := loop.passed(self.wave, index, self.tally):
                added = loop.skip(self.wave, index, self.tally, passes)
                self._cache.age(float(added[Metric.MISSES]))
                self._skipped.add(loop.start)
        if branch.target <= at:
            taken = mask if branch.guard is None else branch.taken(mask)
            self.tally[Metric.TAKEN, at] += self._warps(taken)
        self._first = at
        return self._jump(branch, at, mask)

    def _whole(self, loop: Loop, mask: Mask) -> bool:
        """Return whether `mask` contains all lanes that are inside the loop."""
        if mask is None:
            return True
        wave = self.wave
        others = ~mask & (wave.state != LEFT)
        return not (others & (wave.pc >= loop.start) & (wave.pc <= loop.stop + 1)).any()

    def _leave_loops(self, at: int) -> None:
        for loop in self.loops:
            if not loop.start <= at <= loop.stop:
                loop.left()

    def _count(self, instructions: int, mask: Mask) -> None:
        if instructions:
            lanes = self.wave.lanes if mask is None else int(np.count_nonzero(mask))
            span = slice(self._first, self._first + instructions)
            self.tally[Metric.WARPS, span] += self._warps(mask)
            self.tally[Metric.LANES, span] += lanes

    def _warps(self, mask: Mask) -> int:
        return self.wave.lanes // WARP if mask is None else int(mask.reshape(-1, WARP).any(1).sum())


def _nothing(_: Mask) -> Mask:
    return None


__all__ = ["Budget", "Counts", "FaultError", "count"]
