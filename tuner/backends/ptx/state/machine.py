"""The execution loop: lanes at the same instruction execute together, and the lowest instruction runs first."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tuner.backends.ptx.state.memory import FaultError
from tuner.backends.ptx.state.values import Array, Mask, Registers, UnsupportedError
from tuner.backends.ptx.state.wave import WARP, Wave
from tuner.backends.ptx.text.module import Entry
from tuner.backends.ptx.text.parse import Instruction

# Executes one instruction for the lanes of a mask. Returns the lanes that continue; None for all of them.
Step = Callable[[Mask], Mask]
Decoder = Callable[[Wave, Instruction, int], Step]
_LIMIT = 20_000_000  # limit of steps per wave, far above what a small problem needs
_LOOK = 1_000  # steps between two checks of the clock


@dataclass(frozen=True)
class Branch:
    """A jump to `target` by the lanes whose `guard` differs from `inverted`; None: by all lanes."""

    target: int
    guard: Array | None
    inverted: bool

    def taken(self, mask: Mask) -> Array:
        assert self.guard is not None
        condition = ~self.guard if self.inverted else self.guard
        return condition if mask is None else condition & mask


class Interpreter:
    """An entry bound to a wave, with one step or branch per instruction."""

    def __init__(
        self, entry: Entry, wave: Wave, decode: Callable[[Wave, Instruction, int], Step], most_seconds: float = math.inf
    ) -> None:
        self.entry, self.wave = entry, wave
        self._most_seconds, self._deadline = most_seconds, time.thread_time() + most_seconds
        self.total, self._executed = 0, 0  # warp instructions of all waves, and of this wave
        self._leaders = frozenset(entry.labels.values())
        self._branches: list[Branch | None] = []
        self._steps: list[Step] = []
        for at, instruction in enumerate(entry.code):
            branch = self._branch(instruction) if instruction.opcode[0] == "bra" else None
            self._branches.append(branch)
            self._steps.append(_never if branch else self._step(decode, instruction, at))

    def _branch(self, instruction: Instruction) -> Branch:
        name, registers = instruction.guard, self.wave.registers
        guard = registers.array(name.lstrip("!")) if name else None
        return Branch(self.entry.labels[instruction.word(-1)], guard, name.startswith("!"))

    def _step(self, decode: Callable[[Wave, Instruction, int], Step], instruction: Instruction, at: int) -> Step:
        try:
            step = decode(self.wave, instruction, at)
        except UnsupportedError as error:
            return _refusing(str(error))  # raised only if the instruction is reached
        return guarded(step, self.wave.registers, instruction.guard) if instruction.guard else step

    def run(self) -> None:
        """Run until every lane has exited. Raises FaultError, which names the line."""
        self._executed, self._look, self._at = 0, _LOOK, 0
        try:
            while chosen := self.wave.next():
                self._run_from(*chosen)
        except FaultError as error:
            instruction = self.entry.code[self.wave.stuck if self.wave.stuck >= 0 else self._at]
            where = f"line {instruction.line} of {self.entry.name}: {instruction.text[:160]}"
            raise FaultError(f"{error} ({where})") from error

    def _run_from(self, at: int, mask: Mask) -> None:
        while at >= 0:
            at = self._straight(at, mask)
            branch = self._branches[at] if at >= 0 else None
            at = self._jump(branch, at, mask) if branch else -1

    def _straight(self, at: int, mask: Mask) -> int:
        """Execute up to a branch and return its index; -1 if the wave must select the next lanes."""
        first, steps, branches, leaders, wave = at, self._steps, self._branches, self._leaders, self.wave
        while branches[at] is None:
            self._at = at
            going = steps[at](mask)
            at += 1
            if going is not None or (at in leaders and not wave.alone):
                wave.pc[wave.index(mask) if going is None else going] = at
                self._count(at - first, mask)
                return -1
        self._count(at - first, mask)
        return at

    def _jump(self, branch: Branch, at: int, mask: Mask) -> int:
        """Return the target if all lanes of `mask` continue together; -1 if the wave must select the next lanes."""
        wave = self.wave
        self._count(1, mask)
        if branch.guard is None:
            target = branch.target
        else:
            taken = branch.taken(mask)
            count = int(np.count_nonzero(taken))
            if count and count != (wave.lanes if mask is None else int(np.count_nonzero(mask))):
                wave.pc[wave.index(mask)] = at + 1
                wave.pc[taken] = branch.target
                return -1
            target = branch.target if count else at + 1
        if wave.alone:
            return target
        wave.pc[wave.index(mask)] = target
        return -1

    def _count(self, instructions: int, mask: Mask) -> None:
        warps = self.wave.lanes // WARP if mask is None else int(mask.reshape(-1, WARP).any(1).sum())
        self.total += instructions * warps
        self._executed += instructions
        if self._executed > self._look:
            self._look += _LOOK
            self._lose_patience()

    def _lose_patience(self) -> None:
        if self._executed > _LIMIT:
            raise FaultError(f"more than {_LIMIT} instructions: an infinite loop, or the problem is too large")
        if time.thread_time() > self._deadline:
            raise FaultError(f"still running after {self._most_seconds:g} s of CPU time: an infinite loop")


def guarded(step: Step, registers: Registers, guard: str) -> Step:
    """Return `step` restricted to the lanes whose predicate `guard` holds."""

    def run(mask: Mask) -> Mask:
        condition = registers.condition(guard)
        lanes = condition.copy() if mask is None else condition & mask  # masks are immutable, registers are not
        if not lanes.any():
            return None
        going = step(None if lanes.all() else lanes)
        if going is None:
            return None
        others = ~lanes if mask is None else mask & ~lanes
        return going | others

    return run


def _never(_: Mask) -> Mask:
    raise AssertionError("a branch has no step")


def _refusing(reason: str) -> Step:
    def refuse(_: Mask) -> Mask:
        raise FaultError(f"unsupported: {reason}")

    return refuse
