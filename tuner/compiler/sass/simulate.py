"""Simulates warps on one of an SM's four schedulers, to show where they stall.

ptxas writes into each instruction how many cycles the warp stalls after it, which of six counters it raises, and which
counters it waits for (Huerta et al., MICRO 2025, section 4). The simulation follows these control bits: it issues one
instruction per cycle, from the warp that issued last if possible, with the latencies and rates of
`tuner.compiler.sass.instruction_timing`. Waits for other roles of a block (mbarriers, flags) take no time. The result
predicts where cycles go; it is not a time.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import TypeVar

from tuner.arch import GPU
from tuner.compiler.sass.decode import Instruction
from tuner.compiler.sass.instruction_timing import BARRIER_LATENCY, QUEUE_ENTRIES, Timing, timing_of
from tuner.compiler.sass.paths import Path, paths

K = TypeVar("K")

_PASSES, _WARM_UP = 5, 1  # simulated passes of a loop; those that are not counted
_OFFSETS = (0.0, 1 / 3, 2 / 3)  # delay of each block after the previous one, as a fraction of a pass: a guess
_MAX_GROUPS = 8  # maximum number of wgmma groups in flight
LOADS = frozenset({"global loads", "generic loads", "copies"})
_SHORTEST_LOOP = 24  # instructions; shorter loops are not shown


@dataclass(frozen=True, slots=True)
class Stall:
    """Cycles in which a single resident warp issues nothing before an instruction, and their cause."""

    index: int  # in the kernel's code
    cycles: float
    cause: str


@dataclass(frozen=True, slots=True)
class PathCycles:
    """Cycles of a scheduler for one pass of a path."""

    path: Path
    alone: float  # with a single resident warp
    together: float  # per warp, with all resident warps; equal to `alone` for a path that does not repeat
    pipes: Mapping[str, float]  # cycles a pass occupies each pipe and "issue", the busiest first
    stalls: tuple[Stall, ...]  # stalls of the single warp, longest first

    @property
    def causes(self) -> Mapping[str, float]:
        """Stall cycles of the single warp by cause, the largest first."""
        total: defaultdict[str, float] = defaultdict(float)
        for stall in self.stalls:
            total[stall.cause] += stall.cycles
        return _largest_first(total)


def simulate_kernel(code: Sequence[Instruction], gpu: GPU, warps: int, blocks: int) -> tuple[PathCycles, ...]:
    """The kernel passed once, then each of its loops, with `warps` of `blocks` blocks resident on one scheduler."""
    shown = (path for path in paths(code) if not path.repeats or len(path.indices) >= _SHORTEST_LOOP)
    return tuple(simulate_path(code, path, gpu, warps, blocks) for path in shown)


def simulate_path(
    code: Sequence[Instruction], path: Path, gpu: GPU, warps: int, blocks: int, load_latencies: Sequence[float] = ()
) -> PathCycles:
    """One path through `code`; its global loads have `load_latencies` in turn, in cycles, else that of an L2 hit."""
    timings = tuple(timing_of(code[index], gpu) for index in path.indices)
    if load_latencies:
        latencies = cycle(load_latencies)
        timings = tuple(replace(x, latency=next(latencies)) if x.cause in LOADS else x for x in timings)
    alone, stalls = _cycles(timings, path.repeats, _warps(1, 1))
    together = alone
    if path.repeats and warps > 1:
        runs = (_cycles(timings, True, _warps(warps, blocks, offset * alone))[0] for offset in _OFFSETS)
        together = sum(runs) / len(_OFFSETS) / warps
    ordered = _largest_first(stalls).items()
    stall_list = tuple(Stall(path.indices[position], cycles, cause) for (position, cause), cycles in ordered)
    return PathCycles(path, alone, together, _pipes(timings), stall_list)


def _largest_first(cycles: Mapping[K, float]) -> dict[K, float]:
    return dict(sorted(cycles.items(), key=lambda item: -item[1]))


def _pipes(timings: Sequence[Timing]) -> Mapping[str, float]:
    busy = defaultdict(float, issue=float(len(timings)))
    for timing in timings:
        if timing.pipe:
            busy[timing.pipe] += timing.interval
    return _largest_first(busy)


Stalls = Mapping[tuple[int, str], float]  # cycles by position on the path and cause


def _cycles(timings: Sequence[Timing], repeats: bool, warps: Sequence["_Warp"]) -> tuple[float, Stalls]:
    """Cycles per pass of all warps, and those of them in which no warp issued."""
    passes, warm_up = (_PASSES, _WARM_UP) if repeats else (1, 0)
    scheduler = _Scheduler(timings, warps)
    scheduler.run(warm_up * len(warps))
    begin = scheduler.cycle
    scheduler.stalls.clear()
    scheduler.run(passes * len(warps))
    stalls = {key: cycles / (passes - warm_up) for key, cycles in scheduler.stalls.items()}
    return (scheduler.cycle - begin) / (passes - warm_up), stalls


@dataclass(slots=True)
class _Warp:
    block: int
    ready: float  # the cycle from which its stall count lets it issue
    position: int = 0
    counters: list[list[tuple[float, str]]] = field(default_factory=lambda: [[] for _ in range(8)])
    copied: float = 0.0  # when the copies that it issued have arrived
    groups: list[float] = field(default_factory=list)  # completion of each group of wgmma
    arrived: bool = False  # at a barrier
    cause: str = "fixed latencies"


def _warps(count: int, blocks: int, offset: float = 0.0) -> list[_Warp]:
    """Warps of `blocks` blocks, each block `offset` cycles behind the one before."""
    return [_Warp(i % blocks, ready=offset * (i % blocks)) for i in range(count)]


class _Scheduler:
    """Warps that repeat one path."""

    def __init__(self, timings: Sequence[Timing], warps: Sequence[_Warp]) -> None:
        self.cycle = 0.0  # cycle of the next issue
        self.stalls: defaultdict[tuple[int, str], float] = defaultdict(float)
        self._timings = timings
        self._warps = warps
        self._last = warps[0]
        self._free: dict[str, float] = {}  # when each pipe accepts the next instruction
        self._left: deque[float] = deque(maxlen=QUEUE_ENTRIES)  # when the newest accesses leave the queue
        self._passed = 0

    def run(self, passes: int) -> None:
        """Until the warps together have made this many passes since the start."""
        while self._passed < passes:
            self._issue()

    def _issue(self) -> None:
        candidates = [(*self._earliest(warp), warp) for warp in self._warps if not warp.arrived]
        first = min(time for time, _, _ in candidates)
        ready = [candidate for candidate in candidates if candidate[0] == first]
        time, cause, warp = next((candidate for candidate in ready if candidate[2] is self._last), ready[-1])
        if time > self.cycle:
            self.stalls[warp.position, cause] += time - self.cycle
        self.cycle, self._last = time + 1, warp
        self._execute(warp, self._timings[warp.position], time)
        warp.position = (warp.position + 1) % len(self._timings)
        self._passed += warp.position == 0

    def _earliest(self, warp: _Warp) -> tuple[float, str]:
        """When the warp can issue its next instruction, and the cause of the wait."""
        time, cause = (warp.ready, warp.cause) if warp.ready > self.cycle else (self.cycle, "")
        for until, why in self._obstacles(warp, self._timings[warp.position]):
            if until > time:
                time, cause = until, why
        return time, cause

    def _obstacles(self, warp: _Warp, timing: Timing) -> Iterator[tuple[float, str]]:
        for counter in timing.waits:
            yield from warp.counters[counter]
        if timing.at_most:
            counter, allowed = timing.at_most
            pending = sorted(warp.counters[counter], reverse=True)
            yield from pending[allowed : allowed + 1]
        if timing.groups is not None and len(warp.groups) > timing.groups:
            yield warp.groups[-timing.groups - 1], "wgmma"
        if timing.pipe and not timing.queued:
            yield self._free.get(timing.pipe, 0.0), f"{timing.pipe} pipe"
        if timing.pipe == "memory" and len(self._left) == QUEUE_ENTRIES:
            yield self._left[0], "memory queue"

    def _execute(self, warp: _Warp, timing: Timing, time: float) -> None:
        start = max(time, self._free.get(timing.pipe, 0.0)) if timing.queued else time
        if timing.pipe:
            self._free[timing.pipe] = start + timing.interval
        if timing.pipe == "memory":
            self._left.append(start)
        done = start + timing.latency
        if timing.copies:
            warp.copied = max(warp.copied, done)
        if timing.commits:
            done = max(done, warp.copied)
        if timing.ends_group:
            warp.groups = [*warp.groups[1 - _MAX_GROUPS :], done + timing.interval]
        self._raise(warp, timing.result, time, done, timing.cause)
        self._raise(warp, timing.read, time, start + timing.read_latency, f"operands of {timing.cause}")
        warp.ready, warp.cause = time + timing.stall, "fixed latencies"
        if timing.barrier:
            self._arrive(warp, time)

    def _raise(self, warp: _Warp, counter: int | None, time: float, until: float, cause: str) -> None:
        if counter is not None:
            pending = [entry for entry in warp.counters[counter] if entry[0] > time]
            warp.counters[counter] = [*pending, (until, cause)]

    def _arrive(self, warp: _Warp, time: float) -> None:
        """The warps of a block leave a barrier together."""
        warp.arrived = True
        block = [other for other in self._warps if other.block == warp.block]
        if all(other.arrived for other in block):
            for other in block:
                other.arrived = False
                other.ready, other.cause = max(other.ready, time + BARRIER_LATENCY), "barriers"
