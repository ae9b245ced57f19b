"""Rank configs without a device: cycles a pipe would need, from the work that an implementation declares.

Two looks at one launch. `formula` needs nothing compiled: declared work over the rates of pipes, and the latencies of
what waits for each other. `from_cubin` replaces what the compiler decides (residency, spills, the instructions around
each mma). `combine` takes their geometric mean, which ranked better than either on recorded spaces; `in_turn` adds up
the launches of a config. The result orders configs and names what binds. It is not a time: on recorded kernels absolute
errors ran from 4 to 57 %.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, hypot, prod

from tuner.arch import GPU, MMA_FLOPS, PARTITIONS, Device
from tuner.base.fields import Fields
from tuner.results.attempt import Prediction
from tuner.spec.operator import Work
from tuner.spec.plan import Launch, Plan

MODEL = "predicted/8"

TERMS: Mapping[str, str] = {  # in a user's words
    "tensor": "matrix products",
    "fp32": "fp32 arithmetic",
    "double": "fp64 arithmetic",
    "exp": "exponentials, logarithms and reciprocals",
    "integer": "integers, addresses and conversions",
    "issue": "issuing instructions of any kind",
    "shared memory": "reading and writing shared memory",
    "L2": "bytes between L2 and the SMs",
    "DRAM": "bytes between DRAM and L2",
    "cluster": "bytes between the SMs of a cluster",
    "spills": "registers that went to memory",
    "tail": "SMs that idle beside others, and parts of an SM without a warp",
    "latency": "results that the next instruction waits for, one loop step after the other",
    "in flight": "loads that are waited for; more stages, or more blocks an SM, keep more bytes on their way at once",
    "launches": "the start of each launch after the one before",
}

_INTEGER_LANES = 64
_SPILL_BYTES = 64  # local memory through L1, a clock and SM
_WARPS = 4  # a warpgroup
_SHARED = {"L2", "DRAM"}  # pipes that are not an SM's own
SM_BYTES = 64  # a clock: what one SM takes from L2, and through it from DRAM
# A clock and SM, between the SMs of a cluster: 14 in clusters of two and 11 in clusters of four, on an H800 (3.27 and
# 2.65 TB/s, arXiv 2402.13499), through loads and stores of threads.
_CLUSTER_BYTES = 12
_NORM = 1.5  # pipes overlap, but not perfectly: between their sum (1) and their maximum (∞)
_STEP_LATENCY = 700.0  # cycles of a dependent loop step of which nobody counted what is serial
# Until an instruction can use another one's result: an mma.sync m16n8k16 of 24 (as ptxas spaces them for sm_80) to
# 33 (H100: arXiv 2501.12084), a shuffle, a load from shared memory or a barrier of 23 to 33.
_RESULT_LATENCY = 33.0
# Of a load, by pointer chasing (github.com/te42kyfo/gpu-benches): 211, 266 and 277 cycles from L2, and 572, 658 and
# 632 from DRAM, on A100, H100 PCIe and L40.
L2_LATENCY = 250.0
DRAM_LATENCY = 600.0
_LAUNCH_LATENCY = 2000.0  # cycles from the end of a launch to the first work of the next, about a microsecond
_GUESSED_REGISTERS = 168  # before the compiler has spoken


def uncompiled(plan: Plan, work: Sequence[Work], gpu: GPU) -> Prediction:
    """The cost of a plan of which nothing is compiled yet; `work` has one value a launch."""
    each = zip(plan.launches, work, strict=True)
    return in_turn([formula(of_launch, gpu, guess_residency(launch, gpu)) for launch, of_launch in each])


def guess_residency(launch: Launch, gpu: GPU) -> float:
    """CTAs an SM would hold by shared memory, threads and a guess at registers."""
    arch = gpu.arch
    by_smem = arch.smem_per_sm // (launch.smem_bytes + arch.smem_reserved)
    by_threads = arch.threads_per_sm // launch.block_threads
    by_registers = arch.registers_per_sm // (_GUESSED_REGISTERS * launch.block_threads)
    by_columns = arch.tensor_columns // launch.tensor_columns if launch.tensor_columns else arch.ctas_per_sm
    return max(1, min(by_smem, by_threads, by_registers, by_columns, arch.ctas_per_sm))


def formula(work: Work, gpu: GPU, ctas_per_sm: float) -> Prediction:
    """The cost of one launch's declared work, with `ctas_per_sm` CTAs resident."""
    return _assemble(work, _pipes(work, gpu), gpu, ctas_per_sm, spill_cycles=0.0)


def from_cubin(
    work: Work,
    gpu: GPU,
    ctas_per_sm: float,
    spill_bytes: int,
    mix: Mapping[str, float],
    around: Mapping[str, float] | None = None,
) -> Prediction:
    """The cost with what the compiler made of it.

    `mix` counts by class the instructions of a pass of the kernel's main loop along its common way: what only few
    passes run, a mask or a maximum that grew, is not in it. How often each runs is anchored on the products: declared
    over static count. Kernels without any, and those of a single step, most of which lies outside any loop, keep the
    declared counts. `around` counts what lies around that loop, for a kernel that says how often it is passed: of that
    one all code is counted, exchanges between lanes too, which shared memory makes.
    """
    outside = around or {}
    if work.chain > 1 and (trips := _trips(work, mix, outside)):

        def found(name: str) -> float:
            return mix.get(name, 0.0) * trips + outside.get(name, 0.0) * work.around

        wavefronts = work.smem_wavefronts + (found("lanes") if work.around else 0.0)
        fma, paired, mufu, alu = map(found, ("fma", "paired", "mufu", "alu"))
        work = replace(work, fma=fma, paired=paired, mufu=mufu, alu=alu, smem_wavefronts=wavefronts)
    steps = work.ctas * work.warps * 32 * max(work.chain / work.longest_cta, 1.0)
    spill_cycles = spill_bytes * steps / (_SPILL_BYTES * gpu.device.sm_count)
    return _assemble(work, _pipes(work, gpu), gpu, ctas_per_sm, spill_cycles)


def _trips(work: Work, mix: Mapping[str, float], around: Mapping[str, float]) -> float:
    """Passes of a main loop by all warps; 0 where nothing tells.

    Each of a warpgroup's four warps runs the wgmma that the four execute together. Of tcgen05 another warp issues the
    products than those whose loop is looked at: there exponentials tell.
    """
    declared, static = work.mma + _WARPS * work.wgmma - around.get("mma", 0.0) * work.around, mix.get("mma", 0.0)
    if work.tcgen05:
        declared, static = work.mufu, mix.get("mufu", 0.0)
    return declared / static if static else 0.0


def combine(*looks: Prediction) -> Prediction:
    """One prediction from several looks at the same launch; the last look's terms are shown."""
    cost = prod(look.cost for look in looks) ** (1 / len(looks))
    return replace(looks[-1], cost=cost)


def in_turn(launches: Sequence[Prediction]) -> Prediction:
    """One prediction for launches of which each waits for the one before: costs and terms add up.

    What binds is what binds the costliest launch.
    """
    if len(launches) == 1:
        return launches[0]
    costliest = max(launches, key=lambda launch: launch.cost)
    between = _LAUNCH_LATENCY * (len(launches) - 1)
    terms = Counter({"launches": between})
    for launch in launches:
        terms.update(launch.terms)
    cost = sum(launch.cost for launch in launches) + between
    return Prediction(cost, _rounded(terms), costliest.bottleneck, MODEL)


def _pipes(work: Work, gpu: GPU) -> dict[str, float]:
    """Cycles that each pipe alone would need, the work spread evenly."""
    device, arch = gpu.device, gpu.arch
    mma = work.mma + work.tf32  # half of an m16n8k16 in tf32 is an instruction, and takes as long as all of one
    instructions = mma + work.fma - work.paired / 2 + work.mufu + work.alu + work.smem_wavefronts / 4
    sm_cycles = {
        "tensor": MMA_FLOPS * (mma / device.mma_flops + _of_units(work, device)),
        "fp32": work.fma * 32 / arch.fp32_lanes,
        "exp": work.mufu * 32 / arch.exp_lanes,
        "integer": work.alu * 32 / _INTEGER_LANES,
        "issue": instructions / PARTITIONS,
        "shared memory": work.smem_wavefronts,
    }
    if work.cluster_bytes:
        sm_cycles["cluster"] = work.cluster_bytes / _CLUSTER_BYTES
    reach = SM_BYTES * min(work.ctas, device.sm_count)
    return {name: cycles / device.sm_count for name, cycles in sm_cycles.items()} | {
        "L2": work.l2_bytes / min(device.l2_bytes_per_clock, reach),
        "DRAM": work.dram_bytes / min(device.dram_bytes_per_clock, reach),
    }


def _of_units(work: Work, device: Device) -> float:
    """Products that shared or tensor memory feeds, over their rates."""
    return _over(work.wgmma, device.wgmma_flops) + _over(work.tcgen05, device.tcgen05_flops)


def _over(work: float, rate: int) -> float:
    return work / rate if work else 0.0  # a rate of 0 belongs to devices that are never asked for such work


def _assemble(work: Work, pipes: Mapping[str, float], gpu: GPU, ctas_per_sm: float, spill_cycles: float) -> Prediction:
    busy = dict(pipes) | ({"spills": spill_cycles} if spill_cycles else {})
    return assembled(work, busy, gpu, ctas_per_sm)


def assembled(
    work: Work, busy: Mapping[str, float], gpu: GPU, ctas_per_sm: float, chain: "Waiting | None" = None
) -> Prediction:
    """The cost of a launch whose pipes are `busy` for so many cycles.

    `chain` is what its blocks wait for, where that is known better than steps tell.
    """
    throughput = _overlapped(busy.values())
    resident = min(ctas_per_sm, ceil(work.ctas / gpu.device.sm_count))  # a small grid shares its SMs with nobody
    waves = work.ctas / (gpu.device.sm_count * resident)
    # An uneven grid leaves pipes of SMs idle; L2 and DRAM serve the others.
    own = _overlapped(busy[name] for name in busy.keys() - _SHARED)
    idle = PARTITIONS / min(PARTITIONS, work.warps * resident)
    tail = own * (_imbalance(work, waves, resident) * idle - 1)
    chain = chain or _chain(work, ceil(waves))
    cost = hypot(throughput + tail, chain.cycles)
    terms = {**busy, "tail": tail, "latency": chain.latency, "in flight": chain.in_flight}
    bottleneck = max(terms, key=lambda name: terms[name])
    return Prediction(cost, _rounded(terms), bottleneck, MODEL)


def _overlapped(cycles: Iterable[float]) -> float:
    return float(sum(each**_NORM for each in cycles) ** (1 / _NORM))


def _imbalance(work: Work, waves: float, resident: float) -> float:
    """How much longer the grid takes than an even spread: half of the last wave's idle slots, or its longest CTA.

    That one's SM also runs what lies beside it, until then or until there is no more: mean CTAs, in every other slot.
    """
    quantised = 1 + 0.5 * (ceil(waves) / waves - 1)
    beside = (resident - 1) * min(work.longest_cta, max(1.0, waves))
    return max(quantised, (work.longest_cta + beside) / (resident * waves))


@dataclass(frozen=True, slots=True)
class Waiting:
    """Cycles of steps that wait for each other, in all waves."""

    latency: float  # of results that the next instruction needs
    in_flight: float  # of loads
    cycles: float  # of both


def _chain(work: Work, waves: int) -> Waiting:
    """What a block takes for its steps however fast the pipes are.

    Little's law: an SM gets at most its bytes in flight over their latency. With those of `stages` - 1 steps ahead, a
    step takes at least a latency over that many, whatever its bytes. Only the first load has nothing to hide behind;
    with a single stage, each.
    """
    steps = work.chain / work.longest_cta
    counted = _RESULT_LATENCY * (work.step_mma + work.step_other)
    latency = waves * steps * (counted or _STEP_LATENCY)
    first = waves * _load_latency(work)
    others = first * max(steps - 1, 0) / max(work.stages - 1, 1)
    together = latency + others if work.stages < 2 else hypot(latency, others)
    return Waiting(latency, first + others, first + together)


def _load_latency(work: Work) -> float:
    """The mean of loads from L2 and, as far as it has to fetch them, from DRAM."""
    missing = min(1.0, work.dram_bytes / work.l2_bytes) if work.l2_bytes else 0.0
    return L2_LATENCY + missing * (DRAM_LATENCY - L2_LATENCY)


def _rounded(terms: Mapping[str, float]) -> Fields:
    return {name: float(f"{cycles:.6g}") for name, cycles in terms.items()}
