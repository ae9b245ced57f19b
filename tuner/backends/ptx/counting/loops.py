"""Loops in PTX: the number of iterations executed, and the number left, if the loop's counters determine it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

import numpy as np

from tuner.backends.ptx.counting.needed import written
from tuner.backends.ptx.state.values import Array
from tuner.backends.ptx.state.wave import Wave
from tuner.backends.ptx.text.module import Entry
from tuner.backends.ptx.text.parse import Instruction

_WINDOW = 4  # iterations whose counters must advance equally
_RUN_OUT = 2  # final iterations that are always executed


@dataclass(frozen=True, slots=True)
class LoopCount:
    """A loop of a kernel as a warp sees it: how often it is entered, and iterations per entry."""

    start: int  # index of the first PTX instruction
    stop: int  # index of the backward branch
    entries: float
    trips: float
    extrapolated: bool


@dataclass(frozen=True)
class Exit:
    """A branch that leaves a loop or goes back. The loop continues while its guard equals `holds`."""

    compared: Instruction | None  # the setp of the guard; None if the guard depends on more than one comparison
    holds: bool


@dataclass
class Loop:
    """A loop, and the iterations observed since it was entered."""

    start: int
    stop: int
    exits: tuple[Exit, ...]
    carried: tuple[str, ...]  # those registers written by the body that affect control flow
    passes: int = 0
    done: bool = False  # no more skipping until the loop is left
    states: list[Mapping[str, Array]] = field(default_factory=list)
    apart: list[list[Array | None]] = field(default_factory=list)
    tallies: list[Array] = field(default_factory=list)

    def left(self) -> None:
        if self.passes:
            self.passes, self.done = 0, False
            self.states, self.apart, self.tallies = [], [], []

    def passed(self, wave: Wave, lanes: Array, tally: Array) -> int:
        """Return how many iterations may be skipped, at the end of an iteration of `lanes` (an index)."""
        self.passes += 1
        if self.done:
            return 0
        self.states.append({name: wave.registers.array(name).copy() for name in self.carried})
        self.apart.append([_apart(wave, exit.compared, lanes) for exit in self.exits])
        self.tallies.append(tally[:, self.start : self.stop + 1].copy())
        if self.passes < _WINDOW:
            return 0
        del self.states[:-_WINDOW], self.apart[:-_WINDOW], self.tallies[:-_WINDOW]
        return max(0, self._left() - _RUN_OUT)

    def skip(self, wave: Wave, lanes: Array, tally: Array, passes: int) -> Array:
        """Skip iterations: counters advance as before, and the tally grows as in the last iterations.

        Returns the increase of the tally, by metric.
        """
        for name in self.carried:
            array = wave.registers.array(name)
            steps = [_less(new[name], old[name])[lanes] for old, new in pairwise(self.states)]
            if all((step == steps[0]).all() for step in steps[1:]):
                array[lanes] += (steps[0].astype(array.dtype)) * array.dtype.type(passes)
        inside = tally[:, self.start : self.stop + 1]
        added: Array = (inside - self.tallies[0]) * (passes / (_WINDOW - 1))
        inside += added
        self.done = True
        total: Array = added.sum(axis=1)
        return total

    def _left(self) -> int:
        """Return the iterations until some lane takes an exit; 0 if no exit determines the number."""
        passes = [_until(exit_, [at[i] for at in self.apart]) for i, exit_ in enumerate(self.exits) if exit_.compared]
        least = min(passes, default=inf)
        return 0 if least == inf else int(least)


def loops(entry: Entry, registers: frozenset[str]) -> tuple[Loop, ...]:
    """Return the loops of an entry; `registers` are those that affect control flow."""
    ends: dict[int, int] = {}
    for at, instruction in enumerate(entry.code):
        if instruction.opcode[0] == "bra" and (to := entry.labels[instruction.word(-1)]) <= at:
            ends[to] = at
    return tuple(_loop(entry, start, stop, registers) for start, stop in sorted(ends.items()))


def _loop(entry: Entry, start: int, stop: int, registers: frozenset[str]) -> Loop:
    body = range(start, stop + 1)
    compared: dict[str, list[Instruction]] = {}
    carried: set[str] = set()
    for at in body:
        for name in written(entry.code[at]):
            compared.setdefault(name, []).append(entry.code[at])
            if name in registers and entry.register_type(name) not in (None, "pred", "f16", "bf16", "f32", "f64"):
                carried.add(name)
    exits = []
    for at in body:
        instruction = entry.code[at]
        if instruction.opcode[0] != "bra" or not instruction.guard:
            continue
        inside = entry.labels[instruction.word(-1)] in body
        if inside and at != stop:
            continue
        setp = compared.get(instruction.guard.lstrip("!"), [])
        plain = len(setp) == 1 and setp[0].opcode[0] == "setp" and len(setp[0].opcode) == 3 and not setp[0].guard
        exits.append(Exit(setp[0] if plain else None, holds=inside != instruction.guard.startswith("!")))
    return Loop(start, stop, tuple(exits), tuple(sorted(carried)))


def _apart(wave: Wave, setp: Instruction | None, lanes: Array) -> Array | None:
    """Return the difference between the two sides of a comparison."""
    if setp is None or setp.type[0] not in "sub":
        return None
    a, b = (np.broadcast_to(wave.registers.read(setp.word(i), setp.type), wave.lanes)[lanes] for i in (1, 2))
    return _less(a, b)


def _less(a: Array, b: Array) -> Array:
    return a.astype(np.int64) - b.astype(np.int64)


def _until(exit: Exit, apart: list[Array | None]) -> float:
    """Return the iterations until the exit is taken by some lane; inf if undetermined."""
    if any(difference is None for difference in apart):
        return inf
    differences = [difference for difference in apart if difference is not None]
    steps = [new - old for old, new in pairwise(differences)]
    if any((step != steps[0]).any() for step in steps[1:]):
        return inf
    assert exit.compared is not None
    name = exit.compared.opcode[1]
    name = name if exit.holds else _OPPOSITE.get(name, "")
    now, step = differences[-1], steps[0]
    if name in ("gt", "ge", "hi", "hs"):
        now, step, name = -now, -step, {"gt": "lt", "ge": "le", "hi": "lt", "hs": "le"}[name]
    with np.errstate(all="ignore"):
        if name in ("lt", "lo", "le", "ls"):
            gone = np.ceil(-now / step) if name in ("lt", "lo") else np.floor(-now / step) + 1
            passes = np.where(step > 0, gone, inf)
        elif name == "ne":
            passes = np.where((step != 0) & (now % np.where(step, step, 1) == 0), -now / np.where(step, step, 1), inf)
            passes = np.where(passes >= 0, passes, inf)
        else:
            return inf
    return float(passes.min())


_OPPOSITE = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}
_OPPOSITE |= {"lo": "hs", "ls": "hi", "hi": "ls", "hs": "lo"}
