"""Which GPU it is of which a driver tells: a listed one, or one of its own."""

from dataclasses import dataclass, replace

from tuner.arch import GPU, gpu, model, own_name
from tuner.arch_limits import ARCHES, Arch
from tuner.arch_models import Device, l2_rate
from tuner.errors import MachineError, UsageError


@dataclass(frozen=True, slots=True)
class Told:
    """What a driver tells of a GPU; 0 where it tells nothing."""

    name: str
    compute_capability: int  # 90
    sm_count: int
    clock_mhz: float = 0
    memory_mhz: float = 0
    bus_bits: int = 0
    l2_bytes: int = 0


def identify(told: Told) -> GPU:
    """A listed model with as many SMs, else a GPU by its own name, with its own rates as far as they are told.

    Raises MachineError for an arch that is not served.
    """
    try:
        found = gpu(told.name)
        if (found.arch.compute_capability, found.device.sm_count) == (told.compute_capability, told.sm_count):
            return found
    except UsageError:
        pass
    arch = _arch(told)
    name = own_name(told.name, arch, told.sm_count)
    return model(_own(name, told, gpu(name).device))


def _arch(told: Told) -> Arch:
    for arch in ARCHES.values():
        if arch.compute_capability == told.compute_capability:
            return arch
    oldest = next(iter(ARCHES.values()))
    old = f", and {oldest.name} is the oldest" if told.compute_capability < oldest.compute_capability else ""
    raise MachineError(
        f"{told.name} has compute capability {told.compute_capability}, which is none of {', '.join(ARCHES)}{old}"
    )


def _own(name: str, told: Told, kin: Device) -> Device:
    """What is not told is as on its kin, and of memories in proportion to the SMs. DRAM moves data twice a clock."""
    memory = 2 * told.memory_mhz * told.bus_bits / 8 / 1000
    share = min(1.0, told.sm_count / kin.sm_count)
    return replace(
        kin,
        name=name,
        sm_count=told.sm_count,
        clock_mhz=round(told.clock_mhz) or kin.clock_mhz,
        dram_gb_s=round(memory) or round(share * kin.dram_gb_s),
        l2_bytes=told.l2_bytes or round(share * kin.l2_bytes),
        l2_bytes_per_clock=l2_rate(kin, told.bus_bits) or round(share * kin.l2_bytes_per_clock),
        aliases=(),
    )
