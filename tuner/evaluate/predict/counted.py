"""Predicts a launch without declared work from the counts of an executed block and from its machine code.

Each region of the machine code is passed as often as the block's warps pass the PTX loop that it was compiled from. The
pipe cycles of its instructions add up to the work of an SM; the cycles that one warp alone takes for a pass add up to
the latency of a block, which resident blocks hide for each other.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from tuner.arch import GPU, PARTITIONS
from tuner.backends.ptx.counting import Counts
from tuner.backends.ptx.counting.memory_traffic import SECTOR
from tuner.compiler.sass.decode import Instruction
from tuner.compiler.sass.instruction_timing import timing_of
from tuner.compiler.sass.simulate import LOADS, PathCycles, simulate_path
from tuner.evaluate.predict.code_regions import Region, regions
from tuner.evaluate.predict.cost import ChainCycles, assemble, load_latency, memory_pipes
from tuner.results.attempt import Prediction
from tuner.spec.operator import Work

# Of an L1 hit, by pointer chasing: 32 to 36 cycles on ten devices (pointer_chase.tsv).
_L1_LATENCY = 35.0
# Chosen, with _LATENCY_NORM, on the rows of "A100 40GB" in stream_occupancy.tsv and on no other row:
_BLOCK_START = 400.0  # cycles between the end of a block and the first instruction of the next one in its slot
_MIXED_DRAM = 0.91  # rate of DRAM if a launch reads and writes, relative to reading or writing only
_MIXED_SHARE = 0.1  # fraction of the sectors below which loads or stores are ignored [a guess]
_LOCAL = frozenset({"LDL", "STL"})
_MULTIPLIERS = 16  # lanes of a partition that multiply integers: half of the fp32 lanes where there are 32


@dataclass(frozen=True)
class CountedLaunch:
    """One launch: its block's counts, and the regions of its machine code."""

    counts: Counts
    regions: tuple[Region, ...]
    simulated: tuple[PathCycles, ...]  # cycles of each region with a single resident warp
    work: Work
    busy: Mapping[str, float]  # cycles for which one block occupies each pipe of an SM
    alone: float  # cycles of a single resident warp for the whole block

    def prediction(self, gpu: GPU, ctas_per_sm: float) -> Prediction:
        """The cost with `ctas_per_sm` blocks resident."""
        work, sms = self.work, gpu.device.sm_count
        memory = memory_pipes(work, gpu)
        memory["DRAM"] /= _dram_rate(self.counts)
        pipes = {name: cycles * work.ctas / sms for name, cycles in self.busy.items()} | memory
        resident = min(ctas_per_sm, ceil(work.ctas / sms))
        waves = max(1.0, work.ctas / (sms * resident))
        latency = waves * (self.alone + _BLOCK_START)
        return assemble(work, pipes, gpu, ctas_per_sm, ChainCycles(latency, 0.0, latency))


def counted_launch(least: Work, counts: Counts, code: Sequence[Instruction], gpu: GPU) -> CountedLaunch:
    """`least` is the launch's share of the operator's cost; it bounds the bytes from DRAM."""
    parts = regions(code, counts)
    l2_bytes = SECTOR * sum(access.misses for access in counts.accesses)
    missing = min(1.0, least.dram_bytes / (least.ctas * l2_bytes or 1.0))
    behind_l1 = load_latency(missing, gpu)
    simulated = tuple(simulate_path(code, x.path, gpu, 1, 1, _load_latencies(x, code, gpu, behind_l1)) for x in parts)
    alone = sum(path.alone * part.passes for part, path in zip(parts, simulated, strict=True)) / counts.warps
    work = Work(
        ctas=least.ctas,
        warps=counts.warps,
        fma=0.0,
        alu=0.0,
        smem_wavefronts=least.ctas * sum(access.wavefronts for access in counts.accesses),
        l2_bytes=max(least.dram_bytes, least.ctas * l2_bytes),
        dram_bytes=least.dram_bytes,
        barriers=least.ctas
        * counts.executed(lambda instruction: instruction.opcode[0] == "bar")
        / max(counts.warps, 1),
        longest_cta=counts.longest,
        chain=max((part.passes / counts.warps for part in parts), default=1.0),
    )
    return CountedLaunch(counts, parts, simulated, work, _busy(code, counts, parts, simulated, gpu), alone)


def _dram_rate(counts: Counts) -> float:
    """Rate of DRAM relative to its peak, by the mix of loads and stores."""
    misses = dict.fromkeys(("load", "store", "atomic"), 0.0)
    for access in counts.accesses:
        misses[access.kind] += access.misses
    mixed = min(misses["load"], misses["store"]) > _MIXED_SHARE * sum(misses.values())
    return _MIXED_DRAM if mixed else 1.0


def _busy(
    code: Sequence[Instruction], counts: Counts, parts: Sequence[Region], simulated: Sequence[PathCycles], gpu: GPU
) -> Mapping[str, float]:
    """Cycles for which one block occupies each pipe of an SM."""
    total: defaultdict[str, float] = defaultdict(float)
    for part, path in zip(parts, simulated, strict=True):
        for pipe, cycles in path.pipes.items():
            share = part.double_share if pipe == "double" else part.share
            total[pipe] += cycles * part.passes * share / PARTITIONS
    fp32, multiply = total["fp32"], total["multiply"]
    lanes = gpu.arch.fp32_lanes // PARTITIONS
    busy = {
        "fp32": max(multiply, fp32 + multiply * _MULTIPLIERS / lanes),  # IMAD runs on a part of the fp32 lanes
        "exp": total["exp"],
        "integer": total["integer"],
        "issue": total["issue"],
        "shared memory": _wavefronts(code, counts, parts, gpu),
    }
    return {**busy, **{name: total[name] for name in ("tensor", "double") if total[name]}}


def _wavefronts(code: Sequence[Instruction], counts: Counts, parts: Sequence[Region], gpu: GPU) -> float:
    """Cycles of L1 and shared memory, and of the address units.

    Local accesses of the PTX are arrays, which ptxas may keep in registers; those that it adds are spills.
    """
    request = 32 / gpu.arch.access_lanes
    executed = sum(part.passes * sum(code[i].mnemonic in _LOCAL for i in part.path.indices) for part in parts)
    accesses = [x for x in counts.accesses if x.space != "local" or executed]
    spilled = max(0.0, executed - sum(x.requests for x in accesses if x.space == "local"))
    return sum(max(x.wavefronts, request * x.requests) for x in accesses) + request * spilled


def _load_latencies(part: Region, code: Sequence[Instruction], gpu: GPU, behind_l1: float) -> tuple[float, ...]:
    """Latencies of a region's global loads, in their order: L1 hits and, for the share that misses, `behind_l1`.

    If ptxas's loads do not correspond to those of the PTX, all have the mean.
    """
    loads = [access for access in part.accesses if access.space in ("global", "generic") and access.kind == "load"]
    shares = [access.misses / access.sectors if access.sectors else 1.0 for access in loads]
    issued = sum(timing_of(code[index], gpu).cause in LOADS for index in part.path.indices)
    if not loads or issued % len(loads):
        sectors = sum(access.sectors for access in loads)
        shares = [sum(access.misses for access in loads) / sectors if sectors else 1.0]
    return tuple(_L1_LATENCY + share * (behind_l1 - _L1_LATENCY) for share in shares)
