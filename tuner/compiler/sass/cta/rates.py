"""Latencies and rates of the units that the warps of an SM share. Every constant names its source.

[C] is a row of hopper_constants.tsv, [P] of pointer_chase.tsv (both in tests/evaluate/predict/data), [D] a table of
tuner/evaluate/predict/devices.md, [V] arXiv 1804.06826, [H] Huerta et al. (MICRO 2025: suspected of an A6000),
[R] derived from the GPU model in `tuner.arch`, [G] a guess. None was fitted to a kernel that it is judged by.
"""

from dataclasses import dataclass

from tuner.arch import GPU

_CHASE_MHZ = 1755.0  # of the H800 on which loads and copies were timed [P]
# Cycles there [P], of L2 the mean of the near and the far half: 369 and 592 by copies, 264 and 488 by loads.
_COPY_FROM_L2, _COPY_FROM_DRAM = 480.0, 762.0
_LOAD_FROM_L2, _LOAD_FROM_DRAM = 376.0, 657.0
_DRAM_EFFICIENCY = 0.91  # of the data sheet's bandwidth where kernels read and write [D]


@dataclass(frozen=True, slots=True)
class Rates:
    """In cycles of an SM and bytes per cycle, at one clock."""

    product_tail: float = 66.0  # from the end of an HGMMA's arithmetic to its result [C]
    product_tail_from_registers: float = 64.5  # [C]
    product_issue: float = 17.0  # of an HGMMA on its scheduler, which issues nothing else meanwhile [C]
    product_queue: int = 6  # HGMMA that the tensor cores hold, A in shared memory [C]
    product_queue_from_registers: int = 5  # [C]
    shared_bytes: float = 128.0  # a cycle of shared memory: CUDA C++ Programming Guide
    shared_latency: float = 33.0  # of an access to shared memory [C]
    try_wait: float = 34.0  # mbarrier.try_wait [C]: 32 to 36
    arrive: float = 29.0  # mbarrier.arrive [C]
    barrier: float = 22.0  # release of bar [C]: 15 to 30
    remote: float = 200.0  # to another SM of a cluster [C]
    copy_gap: float = 32.0  # between two bulk copies of an SM [C]
    l2_latency: float = _COPY_FROM_L2  # of a bulk copy
    dram_latency: float = _COPY_FROM_DRAM
    ingest_bytes: float = 64.0  # that an SM receives a cycle [V]
    l2_share: float = 38.8  # of L2's bytes per cycle, for one SM of all [R]
    dram_share: float = 19.2  # of DRAM's [R]
    fetch_ahead: int = 16  # lines of instructions that a stream buffer requests ahead [H]
    fetch_latency: float = _LOAD_FROM_DRAM  # of a line of instructions that DRAM has: that of a load [G]
    block_start: float = 400.0  # from the end of a block to the start of the next [D]
    launch: float = 2000.0  # of a kernel, before and after its blocks [G]


def rates_of(gpu: GPU, clock_mhz: float) -> Rates:
    """At a clock of the SMs; L2 runs with it, DRAM does not."""
    device = gpu.device
    dram = device.dram_gb_s * 1e3 / clock_mhz / device.sm_count
    return Rates(
        dram_latency=_COPY_FROM_L2 + (_COPY_FROM_DRAM - _COPY_FROM_L2) * clock_mhz / _CHASE_MHZ,
        fetch_latency=_LOAD_FROM_L2 + (_LOAD_FROM_DRAM - _LOAD_FROM_L2) * clock_mhz / _CHASE_MHZ,
        l2_share=device.l2_bytes_per_clock / device.sm_count,
        dram_share=dram * _DRAM_EFFICIENCY,
    )
