"""GPU models and their rates, from data sheets; clocks and L2 sizes that these omit are the values the driver reports.

Tensor rates are for dense 16-bit inputs with fp32 accumulation. All rates feed predictions, which rank configs and are
never printed as time. L2 rates are published measurements (github.com/te42kyfo/gpu-benches): 5430 GB/s on A100, 9750 on
H200, 2430 on A40 and 5230 on L40. A chip without a measurement uses the rate of a chip with the same memory controllers
or dies.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tuner.arch.limits import ARCHES, Arch

_MB = 1024 * 1024
_GEFORCE, _PROFESSIONAL, _SERVER = 512, 1024, 2048  # FLOPs per clock and SM with mma.sync


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU model."""

    name: str  # as in `--gpu H200` and in records
    arch: Arch
    sm_count: int
    clock_mhz: int  # boost clock
    dram_gb_s: int
    l2_bytes: int
    mma_flops: int  # FLOPs per clock and SM with mma.sync
    wgmma_flops: int = 0  # FLOPs per clock and SM with wgmma; 0 if unsupported
    aliases: tuple[str, ...] = ()  # other names, or parts of the name that the driver reports
    l2_bytes_per_clock: int = 5120  # whole chip
    tcgen05_flops: int = 0  # FLOPs per clock and SM with tcgen05; 0 if unsupported

    @property
    def dram_bytes_per_clock(self) -> float:
        return self.dram_gb_s * 1000 / self.clock_mhz


def scaled(device: Device, sm_count: int) -> Device:
    """Scale a model's rates to another number of SMs. Memory rates scale down in proportion but never up."""
    if sm_count == device.sm_count:
        return device
    share = min(1.0, sm_count / device.sm_count)
    return replace(
        device,
        name=f"{device.name} with {sm_count} SMs",
        sm_count=sm_count,
        dram_gb_s=round(share * device.dram_gb_s),
        l2_bytes=round(share * device.l2_bytes),
        l2_bytes_per_clock=round(share * device.l2_bytes_per_clock),
        aliases=(),
    )


def l2_rate(device: Device, bus_bits: int) -> int:
    """Return the L2 bytes per clock of the same design with another memory bus width; at most the device's own rate."""
    return min(device.l2_bytes_per_clock, round(device.arch.l2_rate * bus_bits))


_Row = tuple[str, int, int, int, int, int]  # name, SMs, MHz, GB/s, MB of L2, memory bus width in bits


def _models(arch: str, mma_flops: int, rows: Iterable[_Row], wgmma: int = 0, tcgen05: int = 0) -> list[Device]:
    return [
        Device(
            name,
            ARCHES[arch],
            sms,
            clock,
            dram,
            l2 * _MB,
            mma_flops,
            wgmma,
            _ALIASES.get(name, ()),
            round(ARCHES[arch].l2_rate * bits),
            tcgen05,
        )
        for name, sms, clock, dram, l2, bits in rows
    ]


_ALIASES = {
    "A100": ("A800", "A100 80GB", "A800 80GB"),
    "H100": ("H100 80GB HBM3", "H100 SXM", "H800"),
    "H100 PCIe": ("H800 PCIe",),
    "H200": ("H200 NVL",),
    "AGX Orin": ("Orin", "Jetson AGX Orin"),
    "GB10": ("DGX Spark",),
    "Thor": ("Jetson Thor", "Jetson AGX Thor"),
    "RTX 5090": ("RTX 5090 D",),
}

# Predictions assume the first device of an arch when only the arch is named.
DEVICES = {
    device.name: device
    for device in (
        *_models(
            "sm_80",
            _SERVER,
            (
                ("A100", 108, 1410, 2039, 40, 5120),
                ("A100 40GB", 108, 1410, 1555, 40, 5120),
                ("A30", 56, 1440, 933, 24, 3072),
            ),
        ),
        *_models(
            "sm_86",
            _GEFORCE,
            (
                ("RTX 3090", 82, 1695, 936, 6, 384),
                ("RTX 3090 Ti", 84, 1860, 1008, 6, 384),
                ("RTX 3080 Ti", 80, 1665, 912, 6, 384),
                ("RTX 3080", 68, 1710, 760, 5, 320),
                ("RTX 3070 Ti", 48, 1770, 608, 4, 256),
                ("RTX 3070", 46, 1725, 448, 4, 256),
                ("RTX 3060 Ti", 38, 1665, 448, 4, 256),
                ("RTX 3060", 28, 1777, 360, 3, 192),
                ("RTX 3050", 20, 1777, 224, 2, 128),
                ("A10G", 80, 1710, 600, 6, 384),
            ),
        ),
        *_models(
            "sm_86",
            _PROFESSIONAL,
            (
                ("A10", 72, 1695, 600, 6, 384),
                ("A40", 84, 1740, 696, 6, 384),
                ("A2", 10, 1770, 200, 2, 128),
                ("RTX A6000", 84, 1800, 768, 6, 384),
                ("RTX A5000", 64, 1695, 768, 6, 384),
                ("RTX A4000", 48, 1560, 448, 4, 256),
            ),
        ),
        *_models("sm_87", _SERVER, (("AGX Orin", 16, 1300, 205, 4, 256),)),
        *_models(
            "sm_89",
            _GEFORCE,
            (
                ("RTX 4090", 128, 2520, 1008, 72, 384),
                ("RTX 4090 D", 114, 2520, 1008, 72, 384),
                ("RTX 4080 SUPER", 80, 2550, 736, 64, 256),
                ("RTX 4080", 76, 2505, 717, 64, 256),
                ("RTX 4070 Ti SUPER", 66, 2610, 672, 48, 256),
                ("RTX 4070 Ti", 60, 2610, 504, 48, 192),
                ("RTX 4070 SUPER", 56, 2475, 504, 48, 192),
                ("RTX 4070", 46, 2475, 504, 36, 192),
                ("RTX 4060 Ti", 34, 2535, 288, 32, 128),
                ("RTX 4060", 24, 2460, 272, 24, 128),
                ("L40", 142, 2490, 864, 96, 384),
                ("L20", 92, 2520, 864, 96, 384),
            ),
        ),
        *_models(
            "sm_89",
            _PROFESSIONAL,
            (
                ("L4", 58, 2040, 300, 48, 192),
                ("L40S", 142, 2520, 864, 96, 384),
                ("RTX 6000 Ada", 142, 2505, 960, 96, 384),
                ("RTX 5000 Ada", 100, 2550, 576, 72, 256),
                ("RTX 4500 Ada", 60, 2580, 432, 48, 192),
            ),
        ),
        # On Hopper, mma.sync reaches about 62 % of the wgmma rate. The L2 of every Hopper model with a 6144-bit HBM bus
        # is the same. The SXM clock is the one at which its SMs reach the data sheet's 989 TFLOP/s: the GPU boosts to
        # 1980 MHz under light tensor load and drops to 1400 to 1750 MHz at the power limit.
        *_models(
            "sm_90a",
            2540,
            (
                ("H100", 132, 1830, 3352, 50, 5120),
                ("H100 PCIe", 114, 1755, 2039, 50, 5120),
                ("H100 NVL", 132, 1785, 3938, 50, 5120),
                ("H200", 132, 1830, 4800, 60, 5120),
                ("GH200", 132, 1980, 4000, 60, 5120),
                ("GH200 144G", 132, 1980, 4900, 60, 5120),
            ),
            wgmma=4096,
        ),
        # The data sheet's 148 TFLOP/s are a quarter of an H100's rate per clock and SM.
        *_models("sm_90a", 1024, (("H20", 78, 1980, 4000, 60, 5120),), wgmma=1024),
        # The B200 data sheet's 2.25 PFLOP/s (dense) are 8192 FLOPs per clock and SM. mma.sync reaches a quarter of
        # that.
        *_models(
            "sm_100a",
            _SERVER,
            (("B200", 148, 1850, 8000, 126, 8192), ("GB200", 152, 1965, 8000, 126, 8192)),
            tcgen05=8192,
        ),
        *_models(
            "sm_103a",
            _SERVER,
            (("B300", 148, 1920, 8000, 126, 8192), ("GB300", 152, 1920, 8000, 126, 8192)),
            tcgen05=8192,
        ),
        *_models("sm_110a", _SERVER, (("Thor", 20, 1575, 273, 32, 256),), tcgen05=8192),
        *_models(
            "sm_120a",
            _GEFORCE,
            (
                ("RTX 5090", 170, 2407, 1792, 96, 512),
                ("RTX 5080", 84, 2617, 960, 64, 256),
                ("RTX 5070 Ti", 70, 2452, 896, 48, 256),
                ("RTX 5070", 48, 2512, 672, 48, 192),
                ("RTX 5060 Ti", 36, 2572, 448, 32, 128),
                ("RTX 5060", 30, 2497, 448, 32, 128),
            ),
        ),
        *_models("sm_120a", _PROFESSIONAL, (("RTX PRO 6000", 188, 2600, 1792, 128, 512),)),
        *_models("sm_121a", _PROFESSIONAL, (("GB10", 48, 2418, 273, 24, 256),)),
    )
}
