"""Which GPU it is of which a driver tells: a listed one, or one of its own."""

from dataclasses import dataclass, replace

from tuner.arch import GPU, gpu, kin, model, own_name
from tuner.arch_limits import ARCHES, Arch
from tuner.arch_models import Device, l2_rate, scaled
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
    return model(_own(name, told, kin(told.name, arch, told.sm_count)))


def _arch(told: Told) -> Arch:
    for arch in ARCHES.values():
        if arch.compute_capability == told.compute_capability:
            return arch
    oldest = next(iter(ARCHES.values()))
    old = f", and {oldest.name} is the oldest" if told.compute_capability < oldest.compute_capability else ""
    raise MachineError(
        f"{told.name} has compute capability {told.compute_capability}, which is none of {', '.join(ARCHES)}{old}"
    )


def _own(name: str, told: Told, near: Device) -> Device:
    """What is not told is as on its kin. DRAM moves data twice a clock."""
    memory, alike = 2 * told.memory_mhz * told.bus_bits / 8 / 1000, scaled(near, told.sm_count)
    return replace(
        alike,
        name=name,
        clock_mhz=round(told.clock_mhz) or alike.clock_mhz,
        dram_gb_s=round(memory) or alike.dram_gb_s,
        l2_bytes=told.l2_bytes or alike.l2_bytes,
        l2_bytes_per_clock=l2_rate(near, told.bus_bits) or alike.l2_bytes_per_clock,
    )
