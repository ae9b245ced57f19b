"""Compile targets and their limits per block and SM (CUDA C++ Programming Guide, "Technical Specifications per Compute
Capability").
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

MMA_FLOPS = 16 * 8 * 16 * 2  # FLOPs of one m16n8k16, the unit for counting matrix products
PARTITIONS = 4  # per SM; each has a scheduler, a quarter of the registers and pipes, and its own warps
SMEM_UNIT = 128  # bytes; granularity of shared memory allocation
_KB = 1024


@dataclass(frozen=True, slots=True)
class Arch:
    """Limits of an architecture per block and SM. Sizes are in bytes."""

    name: str  # as NVRTC spells it, e.g. sm_90a
    sm_count: int  # SMs of the selected model, or of the arch's representative model
    smem_per_block: int  # with opt-in
    smem_per_sm: int
    threads_per_sm: int
    ctas_per_sm: int
    compute_capability: int  # e.g. 90 for sm_90a
    since: tuple[int, int]  # first CUDA version whose NVRTC accepts this name
    l2_rate: float  # L2 bytes per clock and bit of memory bus width (sources in `models.py`)
    fp32_lanes: int = 128  # FMA per clock and SM
    exp_lanes: int = 16  # exponentials per clock and SM
    double_lanes: int = 2  # fp64 FMA per clock and SM ("Arithmetic Instructions"; of sm_87 and sm_110a a guess)
    access_lanes: int = 32  # loads and stores per clock and SM (LD/ST units in the white papers)
    registers_per_sm: int = 65536
    registers_per_thread: int = 255
    threads_per_block: int = 1024
    smem_reserved: int = 1024  # bytes that the driver reserves per CTA
    register_unit: int = 256  # granularity of register allocation per warp

    @property
    def l1_bytes(self) -> int:
        """Combined size of L1 and shared memory; at least 28 KB remain L1 (CUDA C++ Programming Guide, "Shared
        Memory").
        """
        return self.smem_per_sm + 28 * _KB

    def fits_smem(self, nbytes: Any, ctas: Any = 1) -> Any:
        """Return whether an SM can hold `ctas` blocks with `nbytes` of shared memory each, for numbers or arrays."""
        return (nbytes <= self.smem_per_block) & (ctas * (nbytes + self.smem_reserved) <= self.smem_per_sm)

    def fits_threads(self, threads: Any, ctas: Any = 1) -> Any:
        """Return whether an SM can hold `ctas` blocks of `threads` threads each. Accepts numbers or arrays."""
        return (threads <= self.threads_per_block) & (ctas * threads <= self.threads_per_sm)

    def registers_for(self, threads: Any) -> Any:
        """Return the maximum number of registers per thread when an SM holds this many threads. Accepts numbers or
        arrays.

        Each partition has a quarter of the registers and of the warps. ptxas allocates registers in steps of 8.
        """
        import numpy as np  # imported here because listing records needs no NumPy

        warps = -(-np.maximum(threads, 1) // (32 * PARTITIONS))  # per partition
        share = self.registers_per_sm // PARTITIONS // (32 * warps)
        return np.minimum(share // 8 * 8, self.registers_per_thread)

    def smem_budgets(self, ctas: Iterable[int]) -> tuple[int, ...]:
        """Return the bytes of shared memory available per block for each number of resident blocks in `ctas`."""
        shares = (self.smem_per_sm // count - self.smem_reserved for count in ctas)
        return tuple(min(share // SMEM_UNIT * SMEM_UNIT, self.smem_per_block) for share in shares)

    def ctas_by_smem(self, nbytes: int) -> int:
        """Return how many blocks with `nbytes` of shared memory an SM holds, after the driver's rounding; 0 if none can
        launch.
        """
        if nbytes > self.smem_per_block:
            return 0
        return self.smem_per_sm // (-(-(nbytes + self.smem_reserved) // SMEM_UNIT) * SMEM_UNIT)

    @property
    def has_wgmma(self) -> bool:
        return self.compute_capability == 90

    @property
    def has_tcgen05(self) -> bool:
        return self.compute_capability in range(100, 120)

    @property
    def tensor_columns(self) -> int:
        """Columns of an SM's tensor memory, each with 128 lanes of 32 bits; 0 if the arch has none."""
        return 512 if self.has_tcgen05 else 0

    @property
    def family(self) -> int:
        """An identifier that arches with the same instructions and limits share: sm_100f in NVRTC covers sm_100a and
        sm_103a.
        """
        return self.compute_capability // 10 if self.compute_capability >= 100 else self.compute_capability


def _arch(
    name: str, sms: int, smem_kb: int, threads: int, ctas: int, since: tuple[int, int], l2_rate: float, **others: int
) -> Arch:
    capability = int("".join(c for c in name if c.isdigit()))
    smem = smem_kb * _KB
    return Arch(name, sms, smem - _KB, smem, threads, ctas, capability, since, l2_rate, **others)


ARCHES = {
    arch.name: arch
    for arch in (
        _arch("sm_80", 108, 164, 2048, 32, (11, 0), 3850 / 5120, fp32_lanes=64, double_lanes=32),
        _arch("sm_86", 82, 100, 1536, 16, (11, 1), 1400 / 384, access_lanes=16),
        _arch("sm_87", 16, 164, 1536, 16, (11, 4), 1400 / 384, access_lanes=16),
        _arch("sm_89", 128, 100, 1536, 24, (11, 8), 2100 / 384, access_lanes=16),
        _arch("sm_90a", 132, 228, 2048, 32, (12, 0), 1.0, double_lanes=64),
        _arch("sm_100a", 148, 228, 2048, 32, (12, 8), 1.25, double_lanes=64),
        # sm_103a computes exponentials at twice the rate of sm_100a (NVIDIA, "Making Softmax More Efficient with NVIDIA
        # Blackwell Ultra").
        _arch("sm_103a", 148, 228, 2048, 32, (12, 9), 1.25, exp_lanes=32),
        _arch("sm_110a", 20, 228, 1536, 24, (13, 0), 2100 / 384),  # named sm_101a before CUDA 13
        _arch("sm_120a", 170, 100, 1536, 24, (12, 8), 2100 / 384, access_lanes=16),
        _arch("sm_121a", 48, 100, 1536, 24, (12, 9), 2100 / 384, access_lanes=16),
    )
}
