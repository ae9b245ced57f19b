"""Where machine code waits: its control bits replayed on one of an SM's four schedulers.

ptxas states in each instruction how long the warp stalls after it, which of six counters it raises, and which it waits
for (Huerta et al., MICRO 2025, section 4). A replay follows them: an instruction a clock, of the warp that issued last
where it can, with the latencies and rates of `tuner.compiler.sass.steps`. What other roles of a block have to do first
(mbarriers, flags) is done at once. It predicts where clocks go, and is not a time.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tuner.arch import GPU
from tuner.compiler.sass.decode import Instruction, decode
from tuner.compiler.sass.paths import Path, paths
from tuner.compiler.sass.steps import BARRIER, QUEUE, Step, step_of

K = TypeVar("K")

_PASSES, _WARM = 5, 1  # of a loop, and those that are not counted
_STARTS = (0.0, 1 / 3, 2 / 3)  # of a pass, by which a block is behind the one before
_GROUPS = 8  # of wgmma in flight, at most
_LOADS = frozenset({"global loads", "generic loads", "copies"})
_SHORTEST = 24  # instructions of a loop that is shown


@dataclass(frozen=True, slots=True)
class Wait:
    """Clocks in which one warp, alone, issued nothing before an instruction, and what it waited for."""

    at: int  # index in the kernel's code
    clocks: float
    cause: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """One pass of a path. Clocks are of a scheduler."""

    path: Path
    alone: float  # of one warp that has the scheduler to itself
    together: float  # a warp's share, with those that are resident; `alone` where a path is passed once
    pipes: Mapping[str, float]  # what a warp's pass takes of each, the busiest first; "issue" is one of them
    waits: tuple[Wait, ...]  # of one warp, the longest first

    @property
    def causes(self) -> Mapping[str, float]:
        """Clocks by what one warp waits for, the most first."""
        total: defaultdict[str, float] = defaultdict(float)
        for wait in self.waits:
            total[wait.cause] += wait.clocks
        return _largest_first(total)


def timelines(code: bytes, gpu: GPU, warps: int, blocks: int) -> tuple[Timeline, ...]:
    """The whole kernel passed once, then each of its loops, of a kernel's machine code.

    `warps`: those of one scheduler, of `blocks` blocks of an SM.
    """
    instructions = decode(code, gpu.arch.name)
    found = paths(instructions)
    return tuple(
        timeline(instructions, path, gpu, warps, blocks)
        for path in found
        if not path.repeats or len(path.indices) >= _SHORTEST
    )


def timeline(
    code: Sequence[Instruction], path: Path, gpu: GPU, warps: int, blocks: int, load: float | None = None
) -> Timeline:
    """The replay of one path through `code`; `load` is the latency of global loads, where it is known better."""
    steps = tuple(step_of(code[index], gpu) for index in path.indices)
    if load is not None:
        steps = tuple(replace(step, latency=load) if step.cause in _LOADS else step for step in steps)
    alone, waits = _clocks(steps, path.repeats, _warps(1, 1))
    together = alone
    if path.repeats and warps > 1:
        replays = (_clocks(steps, True, _warps(warps, blocks, start * alone))[0] for start in _STARTS)
        together = sum(replays) / len(_STARTS) / warps
    found = (Wait(path.indices[at], clocks, cause) for (at, cause), clocks in _largest_first(waits).items())
    return Timeline(path, alone, together, _pipes(steps), tuple(found))


def _largest_first(clocks: Mapping[K, float]) -> dict[K, float]:
    return dict(sorted(clocks.items(), key=lambda each: -each[1]))


def _pipes(steps: Sequence[Step]) -> Mapping[str, float]:
    busy = defaultdict(float, issue=float(len(steps)))
    for step in steps:
        if step.pipe:
            busy[step.pipe] += step.interval
    return _largest_first(busy)


Waits = Mapping[tuple[int, str], float]  # clocks by step and cause


def _clocks(steps: Sequence[Step], repeats: bool, warps: Sequence["_Warp"]) -> tuple[float, Waits]:
    """Clocks until each warp has made a pass, and those of them in which nothing was issued."""
    passes, warm = (_PASSES, _WARM) if repeats else (1, 0)
    scheduler = _Scheduler(steps, warps)
    scheduler.run(warm * len(warps))
    begin = scheduler.clock
    scheduler.waits.clear()
    scheduler.run(passes * len(warps))
    waits = {key: clocks / (passes - warm) for key, clocks in scheduler.waits.items()}
    return (scheduler.clock - begin) / (passes - warm), waits


@dataclass(slots=True)
class _Warp:
    block: int
    ready: float  # the clock from which its stall count lets it issue
    at: int = 0
    counters: list[list[tuple[float, str]]] = field(default_factory=lambda: [[] for _ in range(8)])
    copied: float = 0.0  # when the copies that it issued have arrived
    groups: list[float] = field(default_factory=list)  # when each group of wgmma is done
    arrived: bool = False  # at a barrier
    cause: str = "fixed latencies"


def _warps(count: int, blocks: int, behind: float = 0.0) -> list[_Warp]:
    """Each block starts so many clocks behind the one before."""
    return [_Warp(i % blocks, ready=behind * (i % blocks)) for i in range(count)]


class _Scheduler:
    """Warps that repeat the same steps."""

    def __init__(self, steps: Sequence[Step], warps: Sequence[_Warp]) -> None:
        self.clock = 0.0  # of the next issue
        self.waits: defaultdict[tuple[int, str], float] = defaultdict(float)
        self._steps = steps
        self._warps = warps
        self._last = warps[0]
        self._free: dict[str, float] = {}  # when a pipe takes the next instruction
        self._left: deque[float] = deque(maxlen=QUEUE)  # when the newest accesses leave the queue
        self._passed = 0

    def run(self, passes: int) -> None:
        """Until the warps together have made so many since the start."""
        while self._passed < passes:
            self._issue()

    def _issue(self) -> None:
        found = [(*self._earliest(warp), warp) for warp in self._warps if not warp.arrived]
        first = min(time for time, _, _ in found)
        ready = [each for each in found if each[0] == first]
        time, cause, warp = next((each for each in ready if each[2] is self._last), ready[-1])
        if time > self.clock:
            self.waits[warp.at, cause] += time - self.clock
        self.clock, self._last = time + 1, warp
        self._execute(warp, self._steps[warp.at], time)
        warp.at = (warp.at + 1) % len(self._steps)
        self._passed += warp.at == 0

    def _earliest(self, warp: _Warp) -> tuple[float, str]:
        """When the warp's next instruction can issue, and what it waits for until then."""
        time, cause = (warp.ready, warp.cause) if warp.ready > self.clock else (self.clock, "")
        for until, why in self._obstacles(warp, self._steps[warp.at]):
            if until > time:
                time, cause = until, why
        return time, cause

    def _obstacles(self, warp: _Warp, step: Step) -> Iterator[tuple[float, str]]:
        for counter in step.waits:
            yield from warp.counters[counter]
        if step.at_most:
            counter, allowed = step.at_most
            pending = sorted(warp.counters[counter], reverse=True)
            yield from pending[allowed : allowed + 1]
        if step.groups is not None and len(warp.groups) > step.groups:
            yield warp.groups[-step.groups - 1], "wgmma"
        if step.pipe and not step.queued:
            yield self._free.get(step.pipe, 0.0), f"{step.pipe} pipe"
        if step.pipe == "memory" and len(self._left) == QUEUE:
            yield self._left[0], "memory queue"

    def _execute(self, warp: _Warp, step: Step, time: float) -> None:
        start = max(time, self._free.get(step.pipe, 0.0)) if step.queued else time
        if step.pipe:
            self._free[step.pipe] = start + step.interval
        if step.pipe == "memory":
            self._left.append(start)
        done = start + step.latency
        if step.copies:
            warp.copied = max(warp.copied, done)
        if step.commits:
            done = max(done, warp.copied)
        if step.ends_group:
            warp.groups = [*warp.groups[1 - _GROUPS :], done + step.interval]
        self._raise(warp, step.result, time, done, step.cause)
        self._raise(warp, step.read, time, start + step.read_latency, f"operands of {step.cause}")
        warp.ready, warp.cause = time + step.stall, "fixed latencies"
        if step.barrier:
            self._arrive(warp, time)

    def _raise(self, warp: _Warp, counter: int | None, time: float, until: float, cause: str) -> None:
        if counter is not None:
            pending = [each for each in warp.counters[counter] if each[0] > time]
            warp.counters[counter] = [*pending, (until, cause)]

    def _arrive(self, warp: _Warp, time: float) -> None:
        """At a barrier the warps of a block go on together."""
        warp.arrived = True
        block = [each for each in self._warps if each.block == warp.block]
        if all(each.arrived for each in block):
            for each in block:
                each.arrived = False
                each.ready, each.cause = max(each.ready, time + BARRIER), "barriers"
