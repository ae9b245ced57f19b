"""Declared work of a plan's launches, relative to the least that any implementation must do."""

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.arch import GPU, MMA_FLOPS, Device
from tuner.spec.instance import Instance
from tuner.spec.operator import Cost, Work


@dataclass(frozen=True, slots=True)
class DeclaredLaunch:
    """One launch, or the total of a plan. Ratios are over the operator's Cost."""

    kernel: str
    dram_bytes: float
    bytes_ratio: float
    l2_bytes: float
    mma: float  # in units of m16n8k16, through mma.sync, wgmma and tcgen05
    mma_ratio: float
    steps: float  # dependent loop steps of the longest CTA; of a plan, the sum over launches
    step_mma: float = 0.0  # serial instructions of a step, if the implementation declares them
    step_other: float = 0.0


@dataclass(frozen=True, slots=True)
class Rates:
    """The operator's Cost per second, also as a share of the device's peak at its boost clock."""

    flops: float
    of_tensor_peak: float  # with operands of 16 bits
    bytes: float
    of_bandwidth: float


def rates(least: Cost, device: Device, seconds: float) -> Rates:
    """Rates of a measured time."""
    per_cycle = max(device.mma_flops, device.wgmma_flops, device.tcgen05_flops)
    peak = device.sm_count * device.clock_mhz * 1e6 * per_cycle
    flops, moved = least.flops / seconds, least.bytes / seconds
    return Rates(flops, flops / peak, moved, moved / (device.dram_gb_s * 1e9))


def declared(instance: Instance, gpu: GPU) -> tuple[DeclaredLaunch, ...]:
    """Each launch of a config, in order."""
    least = instance.operator.cost(instance.problem)
    launches = zip(instance.plan().launches, instance.work(gpu), strict=True)
    return tuple(_declared(launch.entry, work, least) for launch, work in launches)


def total(launches: Sequence[DeclaredLaunch]) -> DeclaredLaunch:
    """The sums over a plan."""
    names = ("dram_bytes", "bytes_ratio", "l2_bytes", "mma", "mma_ratio", "steps")
    return DeclaredLaunch("together", **{name: sum(getattr(launch, name) for launch in launches) for name in names})


def _declared(kernel: str, work: Work, least: Cost) -> DeclaredLaunch:
    return DeclaredLaunch(
        kernel=kernel,
        dram_bytes=work.dram_bytes,
        bytes_ratio=work.dram_bytes / least.bytes,
        l2_bytes=work.l2_bytes,
        mma=work.products,
        mma_ratio=work.products * MMA_FLOPS / least.flops if least.flops else 0.0,  # a softmax has no products
        steps=work.chain,
        step_mma=work.step_mma,
        step_other=work.step_other,
    )
