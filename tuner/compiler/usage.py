"""Resources of a kernel, from ptxas's log, and the number of its CTAs that fit on an SM."""

import re
from dataclasses import dataclass

from tuner.arch import PARTITIONS, Arch
from tuner.spec.plan import Launch

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources of a kernel. Stack and spills are bytes per thread, shared memory is bytes per CTA.

    Spills and stack include the functions that the kernel calls.
    """

    registers: int  # per thread
    spill_stores: int = 0
    spill_loads: int = 0
    stack: int = 0
    static_shared: int = 0  # excluding the driver's reservation
    barriers: int = 0
    constant: int = 0  # bytes of constant memory of this kernel, including its parameters
    max_threads: int = 0  # maximum threads per CTA by `__launch_bounds__`; 0 if unspecified
    cluster: int = 1  # CTAs per cluster, by `__cluster_dims__`

    @property
    def spills(self) -> int:
        """Spilled bytes per thread, stores and loads."""
        return self.spill_stores + self.spill_loads


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The number of CTAs that an SM can hold, and the resource that limits it."""

    ctas: int
    limiter: str  # "registers", "shared memory", "threads", "tensor memory" or "CTA slots"


def parse_log(log: str) -> dict[str, Usage]:
    """Parse usage by kernel from a log of `--ptxas-options=-v` of CUDA 12 or 13."""
    _, *parts = _ENTRY.split(log)
    return {name: _parse_block(block) for name, block in zip(parts[::2], parts[1::2], strict=True)}


def _parse_block(block: str) -> Usage:
    # The kernel first, then the functions it calls.
    functions = [tuple(map(int, match)) for match in _SPILLS.findall(block)]
    frames, stores, loads = zip(*functions, strict=True) if functions else ((0,), (0,), (0,))
    return Usage(
        registers=_number(r"Used (\d+) registers", block),
        spill_stores=sum(stores),
        spill_loads=sum(loads),
        stack=max(_number(r"(\d+) bytes cumulative stack size", block), *frames),
        static_shared=_number(r"(\d+) bytes smem", block),
        barriers=_number(r"used (\d+) barriers", block),
    )


def _number(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    return int(match[1]) if match else 0


def occupancy(usage: Usage, launch: Launch, arch: Arch) -> Occupancy:
    """Return how many CTAs of a launch an SM of `arch` can hold.

    0 CTAs means that the launch is impossible. Follows the occupancy calculator of the CUDA toolkit, which
    leaves out that a cluster must fit the SMs of one GPC; a CTA that finds no tensor memory waits on its SM for it.
    """
    if launch.cluster != usage.cluster:
        return Occupancy(0, f"__cluster_dims__ says {usage.cluster} CTAs, the launch {launch.cluster}")
    fits = {
        "shared memory": arch.ctas_by_smem(usage.static_shared + launch.smem_bytes),
        "registers": _by_registers(usage, launch.block_threads, arch),
        "threads": _by_threads(usage, launch.block_threads, arch),
        "CTA slots": arch.ctas_per_sm,
    }
    if launch.tensor_columns:
        fits["tensor memory"] = arch.tensor_columns // launch.tensor_columns
    limiter = min(fits, key=lambda name: fits[name])
    return Occupancy(fits[limiter], limiter)


def _by_registers(usage: Usage, threads: int, arch: Arch) -> int:
    per_warp = _round_up(max(usage.registers, 1) * 32, arch.register_unit)
    warps = arch.registers_per_sm // PARTITIONS // per_warp * PARTITIONS
    return warps // _warps(threads)


def _by_threads(usage: Usage, threads: int, arch: Arch) -> int:
    bound = usage.max_threads or arch.threads_per_block
    return arch.threads_per_sm // (_warps(threads) * 32) if 0 < threads <= min(bound, arch.threads_per_block) else 0


def _warps(threads: int) -> int:
    return max(1, -(-threads // 32))


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
