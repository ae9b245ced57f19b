"""Ranks configs without a device, by the cycles that each pipe needs for the work that an implementation declares.

There are two estimates of a launch. `formula` needs no compiled code: it divides declared work by the rates of pipes,
and adds latencies of dependent steps. `from_cubin` replaces what the compiler decides (residency, spills, the
instructions around each mma). `combine` takes their geometric mean, which ranked better than either on recorded spaces;
`in_turn` adds up the launches of a config. The result orders configs and names the bottleneck. It is not a time: on
recorded kernels absolute errors ran from 4 to 57 %.
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

MODEL = "predicted/9"

TERMS: Mapping[str, str] = {  # descriptions for users
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
    "spills": "registers spilled to memory",
    "tail": "idle SMs at the end of the grid, and partitions of an SM without a warp",
    "latency": "dependent instructions, one loop step after the other",
    "in flight": "waiting for loads; more stages, or more blocks per SM, keep more bytes in flight",
    "launches": "the start of each launch after the previous one",
}

_INTEGER_LANES = 64  # CUDA C++ Programming Guide, arithmetic throughput
_SPILL_BYTES = 64  # bytes of local memory through L1 per cycle and SM: a guess, half of L1's read rate
_WARPS = 4  # warps per warpgroup
_SHARED_PIPES = {"L2", "DRAM"}  # pipes that all SMs share
SM_BYTES = 64  # per cycle: what one SM receives from L2 (arXiv 1804.06826, a V100), and through it from DRAM
# Per cycle and SM between the SMs of a cluster: 14 in clusters of two and 11 in clusters of four, on an H800 (3.27 and
# 2.65 TB/s, arXiv 2402.13499), with loads and stores of threads.
_CLUSTER_BYTES = 12
_NORM = 1.5  # norm of the pipe cycles, between their sum (1) and maximum (∞): fitted on recorded spaces
# Of throughput and simulated latency: chosen on the rows of "A100 40GB" in stream_occupancy.tsv. Of throughput and
# declared steps it is 2, a guess.
_SIMULATED_NORM = 4.0
_STEP_LATENCY = 700.0  # cycles of a dependent loop step whose serial part is not counted: a guess
# Cycles until a dependent instruction can issue: after an mma.sync m16n8k16 from 24 (as ptxas spaces them for sm_80) to
# 33 (H100: arXiv 2501.12084), after a shuffle, a load from shared memory or a barrier from 23 to 33.
_RESULT_LATENCY = 33.0
# Of a load from L2 and from DRAM, by pointer chasing on A100, A40, L40 and H100: pointer_chase.tsv in
# tests/evaluate/predict/data.
_LOAD_LATENCIES = {
    "sm_80": (211.0, 572.0),
    "sm_86": (250.0, 557.0),
    "sm_89": (277.0, 632.0),
    "sm_90a": (265.0, 658.0),
}
_OTHER_LOAD_LATENCIES = (250.0, 600.0)  # other arches and declared steps: a guess between the values above
_LAUNCH_LATENCY = 2000.0  # cycles from the end of a launch to the first work of the next: a guess, about 1 µs
_GUESSED_REGISTERS = 168  # per thread, before a kernel is compiled: a guess


def uncompiled(plan: Plan, work: Sequence[Work], gpu: GPU) -> Prediction:
    """The cost of a plan before compilation; `work` has one value per launch."""
    launches = zip(plan.launches, work, strict=True)
    return in_turn([formula(one, gpu, guess_residency(launch, gpu)) for launch, one in launches])


def guess_residency(launch: Launch, gpu: GPU) -> float:
    """CTAs that fit on an SM by shared memory, threads and a guess of registers."""
    arch = gpu.arch
    by_smem = arch.smem_per_sm // (launch.smem_bytes + arch.smem_reserved)
    by_threads = arch.threads_per_sm // launch.block_threads
    by_registers = arch.registers_per_sm // (_GUESSED_REGISTERS * launch.block_threads)
    by_columns = arch.tensor_columns // launch.tensor_columns if launch.tensor_columns else arch.ctas_per_sm
    return max(1, min(by_smem, by_threads, by_registers, by_columns, arch.ctas_per_sm))


def formula(work: Work, gpu: GPU, ctas_per_sm: float) -> Prediction:
    """The cost of one launch's declared work, with `ctas_per_sm` CTAs resident."""
    return assemble(work, _pipes(work, gpu), gpu, ctas_per_sm)


def from_cubin(
    work: Work, gpu: GPU, ctas_per_sm: float, spill_bytes: int, steady: Mapping[str, float], outer: Mapping[str, float]
) -> Prediction:
    """The cost with instruction counts and spills of the compiled kernel.

    `steady` counts by class the instructions in one pass of the main loop along its common path, `outer` those outside
    that loop if the kernel declares how often they run (`Work.around`). Trip counts follow from products: declared over
    static count. Kernels without products, and those of a single step, most of which lies outside any loop, keep the
    declared counts. Shuffles outside the loop use shared memory's cycles.
    """
    if work.chain > 1 and (trips := _trips(work, steady, outer)):
        total = {x: steady.get(x, 0.0) * trips + outer.get(x, 0.0) * work.around for x in (*_COUNTED, "lanes")}
        wavefronts = work.smem_wavefronts + (total.pop("lanes") if work.around else 0.0)
        fma, paired, mufu, alu = (total[name] for name in _COUNTED)
        work = replace(work, fma=fma, paired=paired, mufu=mufu, alu=alu, smem_wavefronts=wavefronts)
    pipes = _pipes(work, gpu)
    if spill_bytes:
        steps = work.ctas * work.warps * 32 * max(work.chain / work.longest_cta, 1.0)
        pipes["spills"] = spill_bytes * steps / (_SPILL_BYTES * gpu.device.sm_count)
    return assemble(work, pipes, gpu, ctas_per_sm)


_COUNTED = ("fma", "paired", "mufu", "alu")


def _trips(work: Work, steady: Mapping[str, float], outer: Mapping[str, float]) -> float:
    """Passes of the main loop by all warps; 0 if they cannot be inferred.

    Each of a warpgroup's four warps runs the wgmma that the four execute together. With tcgen05 the warp that issues
    the products is not in this loop: its exponentials give the trips.
    """
    declared, static = work.mma + _WARPS * work.wgmma - outer.get("mma", 0.0) * work.around, steady.get("mma", 0.0)
    if work.tcgen05:
        declared, static = work.mufu, steady.get("mufu", 0.0)
    return declared / static if static else 0.0


def combine(*estimates: Prediction) -> Prediction:
    """The geometric mean of estimates of one launch, with the terms of the last one."""
    return replace(estimates[-1], cost=prod(one.cost for one in estimates) ** (1 / len(estimates)))


def in_turn(launches: Sequence[Prediction]) -> Prediction:
    """One prediction for launches that wait for each other: costs and terms add up.

    The bottleneck is that of the costliest launch.
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
    """Cycles that each pipe alone needs, with the work spread evenly over SMs."""
    device, arch = gpu.device, gpu.arch
    mma = work.mma + work.tf32  # tf32: an instruction does half an m16n8k16 in the same time
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
    return {name: cycles / device.sm_count for name, cycles in sm_cycles.items()} | memory_pipes(work, gpu)


def memory_pipes(work: Work, gpu: GPU) -> dict[str, float]:
    """Cycles that the bytes of all SMs take from L2 and from DRAM."""
    device = gpu.device
    reach = SM_BYTES * min(work.ctas, device.sm_count)
    return {
        "L2": work.l2_bytes / min(device.l2_bytes_per_clock, reach),
        "DRAM": work.dram_bytes / min(device.dram_bytes_per_clock, reach),
    }


def _of_units(work: Work, device: Device) -> float:
    """wgmma and tcgen05 over their rates; a device with a rate of 0 has no such work."""
    units = ((work.wgmma, device.wgmma_flops), (work.tcgen05, device.tcgen05_flops))
    return sum((amount / rate for amount, rate in units if amount), 0.0)


def assemble(
    work: Work, busy: Mapping[str, float], gpu: GPU, ctas_per_sm: float, chain: "ChainCycles | None" = None
) -> Prediction:
    """The cost of a launch from the cycles of each pipe.

    `chain`, where the latency of a block is simulated, replaces that of declared loop steps. Then the slower of L2 and
    DRAM counts, through which the same bytes pass, and little is added to the larger of throughput and latency.
    """
    memory = {"DRAM": max(busy["L2"], busy["DRAM"]), "L2": 0.0} if chain else {}
    double = busy.get("double", 0.0)
    throughput = _beside(_overlapped({**busy, **memory, "double": 0.0}.values()), double)
    resident = min(ctas_per_sm, ceil(work.ctas / gpu.device.sm_count))  # in a small grid, a CTA may be alone on its SM
    waves = work.ctas / (gpu.device.sm_count * resident)
    # In the last wave pipes of some SMs idle, while L2 and DRAM serve the others.
    others = (cycles for name, cycles in busy.items() if name not in _SHARED_PIPES and name != "double")
    own = _beside(_overlapped(others), double)
    idle = PARTITIONS / min(PARTITIONS, work.warps * resident)
    tail = own * (_imbalance(work, waves, resident) * idle - 1)
    waiting = chain or _chain(work, ceil(waves))
    cost = _either(throughput + tail, waiting.cycles) if chain else hypot(throughput + tail, waiting.cycles)
    terms = {**busy, "tail": tail, "latency": waiting.latency, "in flight": waiting.in_flight}
    bottleneck = max(terms, key=lambda name: terms[name])
    return Prediction(cost, _rounded(terms), bottleneck, MODEL)


def _overlapped(cycles: Iterable[float]) -> float:
    """Cycles of work on several pipes at once: between their sum and their maximum."""
    return float(sum(busy**_NORM for busy in cycles) ** (1 / _NORM))


def _beside(cycles: float, double: float) -> float:
    """fp64 arithmetic has a unit with a queue of its own, behind which the work of other warps hides."""
    return _either(cycles, double) if double else cycles


def _either(throughput: float, latency: float) -> float:
    """A little more than the larger of the two."""
    return float((throughput**_SIMULATED_NORM + latency**_SIMULATED_NORM) ** (1 / _SIMULATED_NORM))


def _imbalance(work: Work, waves: float, resident: float) -> float:
    """Duration of the grid relative to an even spread: half of the last wave's idle slots count, or its longest CTA.

    The SM of the longest CTA also runs mean CTAs in its other slots, until the longest one or the grid ends.
    """
    quantised = 1 + 0.5 * (ceil(waves) / waves - 1)
    beside = (resident - 1) * min(work.longest_cta, max(1.0, waves))
    return max(quantised, (work.longest_cta + beside) / (resident * waves))


@dataclass(frozen=True, slots=True)
class ChainCycles:
    """Latency of dependent steps, in cycles, over all waves."""

    latency: float  # cycles of dependent instructions
    in_flight: float  # cycles of loads
    cycles: float  # their combination


def _chain(work: Work, waves: int) -> ChainCycles:
    """Duration of a block's steps with infinitely fast pipes.

    Little's law: an SM receives at most its bytes in flight per latency. With `stages` - 1 steps in flight, a step
    takes at least a latency over that number, whatever its bytes. Nothing hides the first load, nor any load with a
    single stage.
    """
    steps = work.chain / work.longest_cta
    counted = _RESULT_LATENCY * (work.step_mma + work.step_other)
    latency = waves * steps * (counted or _STEP_LATENCY)
    missing = min(1.0, work.dram_bytes / work.l2_bytes) if work.l2_bytes else 0.0
    first = waves * _mean(_OTHER_LOAD_LATENCIES, missing)
    others = first * max(steps - 1, 0) / max(work.stages - 1, 1)
    together = latency + others if work.stages < 2 else hypot(latency, others)
    return ChainCycles(latency, first + others, first + together)


def load_latency(missing: float, gpu: GPU) -> float:
    """Mean latency of loads that L1 does not hold, in cycles; a share `missing` of them misses L2."""
    return _mean(_LOAD_LATENCIES.get(gpu.arch.name, _OTHER_LOAD_LATENCIES), missing)


def _mean(latencies: tuple[float, float], missing: float) -> float:
    from_l2, from_dram = latencies
    return from_l2 + missing * (from_dram - from_l2)


def _rounded(terms: Mapping[str, float]) -> Fields:
    return {name: float(f"{cycles:.6g}") for name, cycles in terms.items()}
