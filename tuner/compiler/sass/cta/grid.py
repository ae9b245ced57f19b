"""A launch's duration, from replays of some of its SMs."""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tuner.arch import GPU
from tuner.compiler.sass.cta.launch import KernelLaunch
from tuner.compiler.sass.cta.machine import Machine
from tuner.compiler.sass.cta.program import Program
from tuner.compiler.sass.cta.rates import Rates
from tuner.compiler.sass.cta.state import Trace

_LONG = 500_000  # instructions of an SM beyond which two SMs are replayed instead of three


@dataclass(frozen=True, slots=True)
class Replay:
    """Cycles of a launch, and the traces of the SMs that were replayed for it."""

    cycles: float
    traces: tuple[Trace, ...]
    missing: Mapping[str, float]  # of the bytes that are loaded of a tensor, the share that comes from DRAM

    @property
    def issued(self) -> int:
        """Instructions that were replayed for the result."""
        return sum(trace.issued for trace in self.traces)


def replay(program: Program, launch: KernelLaunch, gpu: GPU, rates: Rates, dram: bool = True) -> Replay:
    """Duration of a launch on all SMs of `gpu`, from the blocks of the first one.

    Where blocks take tickets for their work, one or two more SMs are replayed, and tickets are dealt to all SMs by the
    durations that these show. Without `dram`, all copies hit L2, and its bandwidth alone limits them. Raises UsageError
    for what the replay does not model.
    """
    sms = gpu.device.sm_count // launch.cluster

    def trace(sm: int, missing: Mapping[str, float] | None) -> Trace:
        return Machine(program, launch, rates, block_numbers(launch, sms, sm), missing).run()

    first = trace(0, None)
    missing: Mapping[str, float] = {}
    if dram:
        missing = _from_dram(launch, first, gpu.device.sm_count)
        first = trace(0, missing)
    if not first.tickets:
        return Replay(rates.launch + first.end, (first,), missing)
    others = (sms - 1,) if first.issued > _LONG else (sms // 2, sms - 1)
    traces = (first, *(trace(sm, missing if dram else None) for sm in others))
    return Replay(rates.launch + _dealt(traces, (0, *others), sms), traces, missing)


def block_numbers(launch: KernelLaunch, sms: int, sm: int) -> list[int]:
    """Blocks of one SM, or the first blocks of its clusters, where they are dealt to all SMs in turns."""
    return [launch.cluster * cluster for cluster in range(sm, launch.blocks // launch.cluster, sms)]


def _from_dram(launch: KernelLaunch, trace: Trace, sms: int) -> Mapping[str, float]:
    """A tensor comes from DRAM once, and what all SMs load beyond that from L2."""
    sizes = {box.tensor: box.tensor_bytes for box in launch.boxes.values()}
    return {name: min(1.0, sizes[name] / (nbytes * sms)) for name, nbytes in trace.loaded.items()}


def _dealt(traces: Sequence[Trace], replayed: Sequence[int], sms: int) -> float:
    """When the last of all tickets is done, if each goes to the SM that is free first.

    Tickets of SMs that were not replayed take as long as those of the nearest numbers that were.
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
