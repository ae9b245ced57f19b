"""Compile targets and their limits; GPU models and their rates.

Limits: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". Rates are data-sheet figures
(tensor rates: dense 16-bit inputs, fp32 accumulation); they feed predictions, which rank and are never printed as time.
Those of L2 are what others measured (github.com/te42kyfo/gpu-benches): 5430 GB/s on A100, 9750 on H200, 2430 on A40 and
5230 on L40; of chips that nobody measured there, by memory controllers of the same design, or dies of it.
"""

from dataclasses import dataclass

from tuner.errors import UsageError

MMA_FLOPS = 16 * 8 * 16 * 2  # of one m16n8k16, in which matrix products are counted
PARTITIONS = 4  # of an SM: each has a scheduler, a quarter of the registers and pipes of its own, and its own warps
_KB = 1024


@dataclass(frozen=True, slots=True)
class Arch:
    """What an architecture lets a block and an SM use. Sizes in bytes."""

    name: str  # as NVRTC spells it: sm_90a
    smem_per_block: int  # after opting in
    smem_per_sm: int
    threads_per_sm: int
    ctas_per_sm: int
    fp32_lanes: int  # FMA a clock and SM
    compute_capability: int  # 90 for sm_90a
    registers_per_sm: int = 65536
    registers_per_thread: int = 255
    threads_per_block: int = 1024
    smem_reserved: int = 1024  # what the driver keeps of each CTA's shared memory
    register_unit: int = 256  # registers are given to a warp in multiples of this

    @property
    def has_wgmma(self) -> bool:
        return self.name == "sm_90a"

    @property
    def has_tcgen05(self) -> bool:
        return self.name == "sm_100a"

    @property
    def tensor_columns(self) -> int:
        """Columns of an SM's tensor memory, each of 128 lanes of 32 bits; 0 where there is none."""
        return 512 if self.has_tcgen05 else 0


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU model."""

    name: str  # as in `--gpu H200`, and as records carry it
    arch: Arch
    sm_count: int
    clock_mhz: int  # boost
    dram_gb_s: int
    l2_bytes: int
    mma_flops: int  # a clock and SM through mma.sync
    wgmma_flops: int = 0  # a clock and SM through wgmma; 0 where there is none
    aliases: tuple[str, ...] = ()  # parts of the name the driver reports
    l2_bytes_per_clock: int = 5120  # whole chip
    tcgen05_flops: int = 0  # a clock and SM through tcgen05; 0 where there is none

    @property
    def dram_bytes_per_clock(self) -> float:
        return self.dram_gb_s * 1000 / self.clock_mhz


@dataclass(frozen=True, slots=True)
class GPU:
    """What a search tunes for: an architecture, and the model that predictions assume.

    `name` is the device's where one was named and the arch's otherwise: records of `sm_90a` and of `H200`
    are kept apart.
    """

    name: str
    arch: Arch
    device: Device


def _arch(name: str, block_kb: int, sm_kb: int, threads: int, ctas: int, lanes: int) -> Arch:
    capability = int("".join(c for c in name if c.isdigit()))
    return Arch(name, block_kb * _KB, sm_kb * _KB, threads, ctas, lanes, capability)


ARCHES = {
    arch.name: arch
    for arch in (
        _arch("sm_80", 163, 164, 2048, 32, 64),
        _arch("sm_86", 99, 100, 1536, 16, 128),
        _arch("sm_89", 99, 100, 1536, 24, 128),
        _arch("sm_90a", 227, 228, 2048, 32, 128),
        _arch("sm_100a", 227, 228, 2048, 32, 128),
        _arch("sm_120a", 99, 100, 1536, 24, 128),
    )
}

_MB = _KB * _KB
# Words that make another model of the name before them; MIG: a slice of it.
_OTHER_MODELS = {"ti", "super", "d", "laptop", "max", "q", "mig"}

# The first device of an arch is what predictions assume when only the arch is named.
DEVICES = {
    device.name: device
    for device in (
        Device("A100", ARCHES["sm_80"], 108, 1410, 2039, 40 * _MB, 2048, l2_bytes_per_clock=3850),
        Device("A30", ARCHES["sm_80"], 56, 1440, 933, 24 * _MB, 2048, l2_bytes_per_clock=2310),
        Device("RTX 3090", ARCHES["sm_86"], 82, 1695, 936, 6 * _MB, 512, l2_bytes_per_clock=1400),
        Device("A10", ARCHES["sm_86"], 72, 1695, 600, 6 * _MB, 1024, l2_bytes_per_clock=1400),
        Device("RTX A6000", ARCHES["sm_86"], 84, 1800, 768, 6 * _MB, 1024, l2_bytes_per_clock=1400),
        Device("RTX 4090", ARCHES["sm_89"], 128, 2520, 1008, 72 * _MB, 512, l2_bytes_per_clock=2100),
        Device("RTX 4070", ARCHES["sm_89"], 46, 2475, 504, 36 * _MB, 512, l2_bytes_per_clock=1050),
        Device("L4", ARCHES["sm_89"], 58, 2040, 300, 48 * _MB, 1024, l2_bytes_per_clock=1050),
        Device("L40S", ARCHES["sm_89"], 142, 2520, 864, 96 * _MB, 1024, l2_bytes_per_clock=2100),
        # mma.sync reaches about 62 % of wgmma's rate on Hopper.
        Device("H100", ARCHES["sm_90a"], 132, 1755, 3352, 50 * _MB, 2540, 4096, ("H100 80GB HBM3", "H100 SXM")),
        Device("H200", ARCHES["sm_90a"], 132, 1755, 4800, 60 * _MB, 2540, 4096),
        # 2.25 PFLOP/s dense of a B200's data sheet are 8192 a clock and SM, and mma.sync reaches a quarter.
        Device(
            "B200", ARCHES["sm_100a"], 148, 1850, 8000, 126 * _MB, 2048, l2_bytes_per_clock=10240, tcgen05_flops=8192
        ),
        Device("RTX 5090", ARCHES["sm_120a"], 170, 2407, 1792, 96 * _MB, 512, l2_bytes_per_clock=2800),
        Device("RTX 5080", ARCHES["sm_120a"], 84, 2617, 960, 64 * _MB, 512, l2_bytes_per_clock=1400),
        Device("RTX 5070 Ti", ARCHES["sm_120a"], 70, 2452, 896, 48 * _MB, 512, l2_bytes_per_clock=1400),
        Device("RTX PRO 6000", ARCHES["sm_120a"], 188, 2600, 1792, 128 * _MB, 1024, l2_bytes_per_clock=2800),
    )
}


def gpu(name: str) -> GPU:
    """The GPU of an arch (`sm_90a`) or a model's name (`H200`, `"RTX 5090"`, or what the driver reports).

    Raises UsageError, with what is known, for anything else.
    """
    wanted = _plain(name)
    for arch in ARCHES.values():
        if wanted == _plain(arch.name):
            return GPU(arch.name, arch, _representative(arch))
    for device in DEVICES.values():
        if wanted in (_plain(device.name), *map(_plain, device.aliases)):
            return GPU(device.name, device.arch, device)
    if device_found := _reported(name):
        return GPU(device_found.name, device_found.arch, device_found)
    raise UsageError(_unknown(name, wanted))


def _representative(arch: Arch) -> Device:
    return next(device for device in DEVICES.values() if device.arch is arch)


def _reported(reported: str) -> Device | None:
    """The model whose words stand in a driver's string such as `NVIDIA GeForce RTX 5090`; the longest name wins."""
    words = set(reported.lower().replace("-", " ").split())
    if "nvidia" not in words:
        return None
    named = {device.name: set(device.name.lower().split()) for device in DEVICES.values()}
    inside = [name for name in named if named[name] <= words and not (words - named[name]) & _OTHER_MODELS]
    return DEVICES[max(inside, key=len)] if inside else None


def _unknown(name: str, wanted: str) -> str:
    near = [arch for arch in ARCHES if wanted and (_plain(arch).startswith(wanted) or wanted.startswith(_plain(arch)))]
    hint = f": try {' or '.join(near)}" if near else ""
    hint = ": give one" if "," in name else hint
    return f"unknown GPU {name!r}{hint} (known: {', '.join(ARCHES)}; {', '.join(DEVICES)})"


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())
