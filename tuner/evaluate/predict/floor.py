"""What the launches of a plan do, as they declare it, against the least that any implementation must do."""

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.arch import GPU, MMA_FLOPS, Device
from tuner.spec.instance import Instance
from tuner.spec.operator import Cost, Work


@dataclass(frozen=True, slots=True)
class Declared:
    """One launch, or all of a plan together. Ratios are over the operator's Cost."""

    kernel: str
    dram_bytes: float
    bytes_ratio: float
    l2_bytes: float
    mma: float  # in units of m16n8k16, through mma.sync, wgmma and tcgen05
    mma_ratio: float
    steps: float  # dependent loop steps of the longest CTA; of launches, one after the other
    step_mma: float = 0.0  # what of a step is serial, where the implementation says
    step_other: float = 0.0


@dataclass(frozen=True, slots=True)
class Rates:
    """What a time comes to: the operator's Cost a second, and as a share of what the device does at its boost clock."""

    flops: float
    of_tensor_peak: float  # with operands of 16 bits
    bytes: float
    of_bandwidth: float


def rates(least: Cost, device: Device, seconds: float) -> Rates:
    """Of a time that was measured."""
    a_clock = max(device.mma_flops, device.wgmma_flops, device.tcgen05_flops)
    peak = device.sm_count * device.clock_mhz * 1e6 * a_clock
    flops, moved = least.flops / seconds, least.bytes / seconds
    return Rates(flops, flops / peak, moved, moved / (device.dram_gb_s * 1e9))


def declared(instance: Instance, gpu: GPU) -> tuple[Declared, ...]:
    """Each launch of a config, in order."""
    least = instance.operator.cost(instance.problem)
    each = zip(instance.plan().launches, instance.work(gpu), strict=True)
    return tuple(_declared(launch.entry, work, least) for launch, work in each)


def together(launches: Sequence[Declared]) -> Declared:
    """The whole plan: the sums."""
    names = ("dram_bytes", "bytes_ratio", "l2_bytes", "mma", "mma_ratio", "steps")
    return Declared("together", **{name: sum(getattr(each, name) for each in launches) for name in names})


def _declared(kernel: str, work: Work, least: Cost) -> Declared:
    mma = work.products
    return Declared(
        kernel=kernel,
        dram_bytes=work.dram_bytes,
        bytes_ratio=work.dram_bytes / least.bytes,
        l2_bytes=work.l2_bytes,
        mma=mma,
        mma_ratio=mma * MMA_FLOPS / least.flops if least.flops else 0.0,  # a softmax of rows multiplies no matrices
        steps=work.chain,
        step_mma=work.step_mma,
        step_other=work.step_other,
    )
