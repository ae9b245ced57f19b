"""A launch's duration from replays of some of its SMs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tuner.arch import GPU
from tuner.compiler.sass.cta.launch import KernelLaunch
from tuner.compiler.sass.cta.machine import Machine, Trace
from tuner.compiler.sass.cta.program import Program
from tuner.compiler.sass.cta.rates import Rates


@dataclass(frozen=True, slots=True)
class Replay:
    """Cycles of a launch, and what the SMs did that were replayed: the first one and, where blocks take tickets, the
    last one, too.
    """

    cycles: float
    traces: tuple[Trace, ...]
    unique: Mapping[str, float] = field(default_factory=dict)  # of the bytes loaded of each tensor, those from DRAM


def replay(program: Program, launch: KernelLaunch, gpu: GPU, rates: Rates, dram: bool = True) -> Replay:
    """All blocks of the first SM, and of the last one where blocks take tickets.

    The bytes of a tensor that come from DRAM are those of the tensor, once: loads beyond them hit L2.
    """
    sms = gpu.device.sm_count // launch.cluster
    first = Machine(program, launch, rates, _numbers(launch, sms, 0)).run()
    traces, unique = [first], {}
    if dram:
        every = gpu.device.sm_count * 1.0
        sizes = {box.tensor: box.tensor_bytes for box in launch.boxes.values()}
        unique = {name: min(1.0, sizes[name] / (nbytes * every)) for name, nbytes in first.loaded.items()}
        traces = [Machine(program, launch, rates, _numbers(launch, sms, 0), unique).run()]
    if first.tickets:
        traces.append(Machine(program, launch, rates, _numbers(launch, sms, sms - 1), unique if dram else None).run())
    return Replay(rates.launch + sum(trace.end for trace in traces) / len(traces), tuple(traces), unique)


def _numbers(launch: KernelLaunch, sms: int, sm: int) -> list[int]:
    """Blocks of one SM: every one that it gets if blocks are dealt in turns, the first of each cluster."""
    clusters = launch.blocks // launch.cluster
    return [launch.cluster * cluster for cluster in range(sm, clusters, sms)]
