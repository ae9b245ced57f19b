"""What a launch costs of which nobody declared the work: by a block that was executed, and its machine code.

Each region of the machine code is passed as often as the block's warps passed the loop that it was made of. What its
instructions take of the pipes adds up to what an SM has to do; what one warp waits for in a pass, alone, adds up to
what a block takes however fast the pipes are. Blocks that are resident hide the one behind the other.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from tuner.arch import GPU, PARTITIONS
from tuner.backends.ptx.counting import Access, Counts
from tuner.backends.ptx.counting.tally import SECTOR
from tuner.compiler.cubin import Cubin
from tuner.compiler.sass.decode import Instruction, decode
from tuner.compiler.sass.timeline import Timeline, timeline
from tuner.evaluate.predict.cost import DRAM_LATENCY, L2_LATENCY, SM_BYTES, Waiting, assembled
from tuner.evaluate.predict.regions import Region, regions
from tuner.results.attempt import Prediction
from tuner.spec.operator import Work
from tuner.spec.plan import Launch

# Of a load that L1 holds, by pointer chasing: 33 to 38 clocks on A100, A6000 and H100 (arXiv 2402.13499, MICRO 2025).
_L1_LATENCY = 35.0
_LOCAL = frozenset({"LDL", "STL"})
_MULTIPLIERS = 16  # lanes of a partition that multiply integers, a half of those for fp32 where there are 32


@dataclass(frozen=True)
class Counted:
    """One launch: its block's counts, and the regions of its machine code."""

    counts: Counts
    regions: tuple[Region, ...]
    replays: tuple[Timeline, ...]  # of each region, one warp alone
    work: Work
    busy: Mapping[str, float]  # clocks of a pipe's share of an SM, of one block
    alone: float  # clocks that one warp takes for all that it does

    def prediction(self, gpu: GPU, ctas_per_sm: float) -> Prediction:
        """The cost with `ctas_per_sm` blocks resident."""
        work, sms = self.work, gpu.device.sm_count
        reach = SM_BYTES * min(work.ctas, sms)
        pipes = {name: clocks * work.ctas / sms for name, clocks in self.busy.items()} | {
            "L2": work.l2_bytes / min(gpu.device.l2_bytes_per_clock, reach),
            "DRAM": work.dram_bytes / min(gpu.device.dram_bytes_per_clock, reach),
        }
        resident = min(ctas_per_sm, ceil(work.ctas / sms))
        waves = max(1.0, work.ctas / (sms * resident))
        return assembled(work, pipes, gpu, ctas_per_sm, Waiting(waves * self.alone, 0.0, waves * self.alone))


def of_launch(launch: Launch, least: Work, counts: Counts, cubin: Cubin, gpu: GPU) -> Counted:
    """A launch by its counts; `least` is its share of what the operator's cost says: DRAM gives no more than that."""
    code = decode(cubin.code(launch.entry), cubin.options.arch)
    found = regions(code, counts)
    missing = min(1.0, least.dram_bytes / (least.ctas * _l2_bytes(counts) or 1.0))
    replays = tuple(timeline(code, each.path, gpu, 1, 1, _latency(each.accesses, missing)) for each in found)
    work = _work(least, counts, found)
    alone = sum(replay.alone * each.passes for each, replay in zip(found, replays, strict=True)) / counts.warps
    return Counted(counts, found, replays, work, _busy(code, counts, found, replays, gpu), alone)


def _busy(
    code: Sequence[Instruction], counts: Counts, found: Sequence[Region], replays: Sequence[Timeline], gpu: GPU
) -> Mapping[str, float]:
    """Clocks of an SM that one block takes of each pipe."""
    total: defaultdict[str, float] = defaultdict(float)
    for region, replay in zip(found, replays, strict=True):
        for pipe, clocks in replay.pipes.items():
            total[pipe] += clocks * region.passes / PARTITIONS
    fp32, multiply = total.pop("fp32", 0.0), total.pop("multiply", 0.0)
    lanes = gpu.arch.fp32_lanes // PARTITIONS
    total.pop("memory", 0.0)
    busy = {
        "fp32": max(multiply, fp32 + multiply * _MULTIPLIERS / lanes),  # one pipe does both, as far as there is one
        "exp": total["exp"],
        "integer": total["integer"],
        "issue": total["issue"],
        "shared memory": _wavefronts(code, counts, found, gpu),
    }
    return {**busy, **{name: total[name] for name in ("tensor", "double") if total[name]}}


def _wavefronts(code: Sequence[Instruction], counts: Counts, found: Sequence[Region], gpu: GPU) -> float:
    """Turns of L1 and shared memory, and of the units that form addresses."""
    request = 32 / gpu.arch.access_lanes
    made = sum(max(each.wavefronts, request * each.requests) for each in counts.accesses if each.space != "local")
    spilled = sum(
        region.passes * sum(code[index].mnemonic in _LOCAL for index in region.path.indices) for region in found
    )
    return made + request * spilled


def _l2_bytes(counts: Counts) -> float:
    return SECTOR * sum(each.misses for each in counts.accesses)


def _work(least: Work, counts: Counts, found: Sequence[Region]) -> Work:
    return Work(
        ctas=least.ctas,
        warps=counts.warps,
        fma=0.0,
        alu=0.0,
        smem_wavefronts=least.ctas * sum(each.wavefronts for each in counts.accesses),
        l2_bytes=max(least.dram_bytes, least.ctas * _l2_bytes(counts)),
        dram_bytes=least.dram_bytes,
        barriers=least.ctas * counts.executed(lambda each: each.opcode[0] == "bar") / max(counts.warps, 1),
        longest_cta=counts.longest,
        chain=max((each.passes / counts.warps for each in found), default=1.0),
    )


def _latency(accesses: Sequence[Access], missing: float) -> float:
    """The mean of a region's global loads: from L1, from L2, and as far as `missing` there from DRAM."""
    loads = [each for each in accesses if each.space in ("global", "generic") and each.kind == "load"]
    sectors, misses = sum(each.sectors for each in loads), sum(each.misses for each in loads)
    behind = L2_LATENCY + missing * (DRAM_LATENCY - L2_LATENCY)
    return _L1_LATENCY + (misses / sectors if sectors else 1.0) * (behind - _L1_LATENCY)
