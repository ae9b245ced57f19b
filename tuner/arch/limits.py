"""Compile targets and what they let a block and an SM use: CUDA C++ Programming Guide, "Technical Specifications per
Compute Capability"."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

MMA_FLOPS = 16 * 8 * 16 * 2  # of one m16n8k16, in which matrix products are counted
PARTITIONS = 4  # of an SM: each has a scheduler, a quarter of the registers and pipes of its own, and its own warps
SMEM_UNIT = 128  # bytes; shared memory is given to blocks in multiples of this
_KB = 1024


@dataclass(frozen=True, slots=True)
class Arch:
    """What an architecture lets a block and an SM use. Sizes in bytes."""

    name: str  # as NVRTC spells it: sm_90a
    sm_count: int  # of the model that is meant; where only the arch is named, of the one that predictions assume
    smem_per_block: int  # after opting in
    smem_per_sm: int
    threads_per_sm: int
    ctas_per_sm: int
    compute_capability: int  # 90 for sm_90a
    since: tuple[int, int]  # the first CUDA whose NVRTC knows it under this name
    l2_rate: float  # bytes of L2 a clock, for each bit of the memory's bus (sources in `models.py`)
    fp32_lanes: int = 128  # FMA a clock and SM
    exp_lanes: int = 16  # exponentials a clock and SM
    access_lanes: int = 32  # loads and stores a clock and SM: its LD/ST units, as white papers draw them
    registers_per_sm: int = 65536
    registers_per_thread: int = 255
    threads_per_block: int = 1024
    smem_reserved: int = 1024  # what the driver keeps of each CTA's shared memory
    register_unit: int = 256  # registers are given to a warp in multiples of this

    @property
    def l1_bytes(self) -> int:
        """L1 and shared memory together: 28 KB are always L1's (CUDA C++ Programming Guide, "Shared Memory")."""
        return self.smem_per_sm + 28 * _KB

    def fits_smem(self, nbytes: Any, ctas: Any = 1) -> Any:
        """Whether an SM holds `ctas` blocks of so much shared memory; numbers or arrays."""
        return (nbytes <= self.smem_per_block) & (ctas * (nbytes + self.smem_reserved) <= self.smem_per_sm)

    def fits_threads(self, threads: Any, ctas: Any = 1) -> Any:
        """Whether an SM holds `ctas` blocks of so many threads; numbers or arrays."""
        return (threads <= self.threads_per_block) & (ctas * threads <= self.threads_per_sm)

    def registers_for(self, threads: Any) -> Any:
        """Registers a thread may have where an SM holds so many threads; numbers or arrays.

        Each partition has a quarter of the registers and of the warps. ptxas allocates registers in steps of 8.
        """
        import numpy as np  # not at the top: a list of records needs no NumPy

        warps = -(-np.maximum(threads, 1) // (32 * PARTITIONS))  # of a partition
        share = self.registers_per_sm // PARTITIONS // (32 * warps)
        return np.minimum(share // 8 * 8, self.registers_per_thread)

    def smem_budgets(self, ctas: Iterable[int]) -> tuple[int, ...]:
        """Bytes of shared memory a block that an SM leaves to each of so many blocks."""
        shares = (self.smem_per_sm // count - self.smem_reserved for count in ctas)
        return tuple(min(share // SMEM_UNIT * SMEM_UNIT, self.smem_per_block) for share in shares)

    def ctas_by_smem(self, nbytes: int) -> int:
        """How many blocks of so much shared memory an SM holds, as the driver rounds it; 0 if it launches none."""
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
        """Columns of an SM's tensor memory, each of 128 lanes of 32 bits; 0 where there is none."""
        return 512 if self.has_tcgen05 else 0

    @property
    def family(self) -> int:
        """Equal for arches with the same instructions and limits: what NVRTC calls sm_100f is sm_100a and sm_103a."""
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
        _arch("sm_80", 108, 164, 2048, 32, (11, 0), 3850 / 5120, fp32_lanes=64),
        _arch("sm_86", 82, 100, 1536, 16, (11, 1), 1400 / 384, access_lanes=16),
        _arch("sm_87", 16, 164, 1536, 16, (11, 4), 1400 / 384, access_lanes=16),
        _arch("sm_89", 128, 100, 1536, 24, (11, 8), 2100 / 384, access_lanes=16),
        _arch("sm_90a", 132, 228, 2048, 32, (12, 0), 1.0),
        _arch("sm_100a", 148, 228, 2048, 32, (12, 8), 1.25),
        # Twice the exponentials of sm_100a (NVIDIA, "Making Softmax More Efficient with NVIDIA Blackwell Ultra").
        _arch("sm_103a", 148, 228, 2048, 32, (12, 9), 1.25, exp_lanes=32),
        _arch("sm_110a", 20, 228, 1536, 24, (13, 0), 2100 / 384),  # sm_101a before CUDA 13
        _arch("sm_120a", 170, 100, 1536, 24, (12, 8), 2100 / 384, access_lanes=16),
        _arch("sm_121a", 48, 100, 1536, 24, (12, 9), 2100 / 384, access_lanes=16),
    )
}
