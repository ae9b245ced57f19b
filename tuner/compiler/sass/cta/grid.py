"""A launch's duration, from replays of some of its SMs."""

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tuner.arch import GPU
from tuner.compiler.sass.cta.launch import KernelLaunch
from tuner.compiler.sass.cta.machine import run
from tuner.compiler.sass.cta.program import Program
from tuner.compiler.sass.cta.rates import Rates
from tuner.compiler.sass.cta.sm import SM
from tuner.compiler.sass.cta.state import Missing, Tile, Trace

_SHORT = 150_000  # maximum number of instructions of an SM with which the loads of all SMs may be followed
_FOLLOWED = 800_000  # maximum number of instructions for following them: about 45 s of CPU
_LONG = 500_000  # number of instructions of an SM beyond which two SMs are replayed instead of three


@dataclass(frozen=True, slots=True)
class Replay:
    """The cycles of a launch, and the traces of its replayed SMs."""

    cycles: float
    traces: tuple[Trace, ...]
    missing: Missing  # bytes from DRAM

    @property
    def issued(self) -> int:
        """Return the number of instructions that were replayed for the result."""
        return sum(trace.issued for trace in self.traces)


def replay(
    program: Program,
    launch: KernelLaunch,
    gpu: GPU,
    rates: Rates,
    dram: bool = True,
    missing: Missing | None = None,
) -> Replay:
    """Estimate the duration of a launch on `gpu` by replaying the blocks of its first SM.

    If blocks take tickets for their work, one or two more SMs are replayed, and tickets are distributed over all SMs by
    the resulting durations. Without `dram`, all copies hit L2, and only its bandwidth limits them. `missing` comes from
    another replay of the same launch and need not be computed again. Raises UsageError for anything that the replay
    does not model.
    """
    sms = gpu.device.sm_count // launch.cluster

    def trace(sm: int, missing: Missing | None) -> Trace:
        return run(SM(program, launch, rates, block_numbers(launch, sms, sm), missing))

    if dram and missing is None:
        missing = _from_dram(program, launch, rates, trace(0, None), gpu.device.sm_count)
    first = trace(0, missing if dram else None)
    if not first.tickets:
        return Replay(rates.launch + first.end, (first,), missing or {})
    others = (sms - 1,) if first.issued > _LONG else (sms // 2, sms - 1)
    traces = (first, *(trace(sm, missing if dram else None) for sm in others))
    return Replay(rates.launch + _dealt(traces, (0, *others), sms), traces, missing or {})


def block_numbers(launch: KernelLaunch, sms: int, sm: int) -> list[int]:
    """Return the blocks of one SM, or the first blocks of its clusters, if all SMs receive them in turn."""
    return [launch.cluster * cluster for cluster in range(sm, launch.blocks // launch.cluster, sms)]


def _from_dram(program: Program, launch: KernelLaunch, rates: Rates, trace: Trace, sms: int) -> Missing:
    """Return the fraction of loads from DRAM: a box comes from DRAM once, and later loads of it hit L2.

    In short launches the loads of all SMs are followed, turn by turn: a box misses in the first turn that loads it. In
    long launches, and if loads depend on warps other than those that issue them, misses are spread evenly over all
    loads of a tensor.
    """
    turns = {turn for turn, _, _ in trace.loads}
    clusters, alone = sms // launch.cluster, frozenset(trace.loaders)

    def follow(sm: int) -> Trace:
        return run(SM(program, launch, rates, block_numbers(launch, clusters, sm), alone=alone))

    followed = follow(0) if trace.issued <= _SHORT else Trace()
    if followed.issued * clusters > _FOLLOWED or sorted(followed.loads) != sorted(trace.loads):
        sizes = {box.tensor: box.tensor_bytes for box in launch.boxes.values()}
        shares = {name: min(1.0, sizes[name] / (nbytes * sms)) for name, nbytes in trace.loaded.items()}
        return {(turn, name): share for turn in turns for name, share in shares.items()}
    loaded: defaultdict[tuple[int, str], float] = defaultdict(float)
    first_turns: dict[Tile, int] = {}
    tile_bytes: dict[Tile, int] = {}
    for sm in range(clusters):
        for turn, tile, nbytes in follow(sm).loads:
            loaded[turn, tile[0]] += nbytes
            first_turns[tile], tile_bytes[tile] = min(first_turns.get(tile, turn), turn), nbytes
    missed: defaultdict[tuple[int, str], float] = defaultdict(float)
    for tile, turn in first_turns.items():
        missed[turn, tile[0]] += tile_bytes[tile]
    return {key: min(1.0, missed[key] / nbytes) for key, nbytes in loaded.items()}


def _dealt(traces: Sequence[Trace], replayed: Sequence[int], sms: int) -> float:
    """Return when the last ticket is done if each goes to the first free SM.

    Tickets of SMs that were not replayed take as long as the replayed tickets with the nearest numbers.
    """
    numbers, durations = [], []
    for sm, trace in zip(replayed, traces, strict=True):
        times = [*trace.tickets, trace.end]
        for position, (begin, end) in enumerate(pairwise(times)):
            numbers.append(sm + position * sms)
            durations.append(end - begin)
    order = np.argsort(numbers)
    count = max(numbers) + 1
    every = np.interp(np.arange(count), np.array(numbers)[order], np.array(durations)[order])
    free = [float(np.mean([trace.tickets[0] for trace in traces]))] * sms
    for duration in every:
        heapq.heapreplace(free, free[0] + float(duration))
    return max(free)
