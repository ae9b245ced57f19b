"""What a compiled config is predicted to cost, and what it uses."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from tuner.arch import GPU
from tuner.compiler.cubin import Cubin
from tuner.compiler.lint import lint_all
from tuner.compiler.sass.decode import Loop, holds, work_mix
from tuner.compiler.sass.paths import mix_around, pass_mix
from tuner.compiler.usage import occupancy
from tuner.evaluate.predict.blocks import Uncounted, counts_of
from tuner.evaluate.predict.cost import MODEL, combine, formula, from_cubin
from tuner.evaluate.predict.counted import Counted, of_launch
from tuner.evaluate.predict.undeclared import work_of_code
from tuner.results.attempt import Prediction, Resources
from tuner.spec.instance import Instance
from tuner.spec.operator import Work
from tuner.spec.plan import Launch, Plan


def predict_launches(instance: Instance, gpu: GPU, cubin: Cubin) -> tuple[tuple[str, Prediction], ...]:
    """(kernel, cost) of each launch of a compiled config."""
    if not instance.implementation.declares_work:
        return tuple((launch.launch.entry, launch.prediction) for launch in undeclared(instance, gpu, cubin))
    each = zip(instance.plan().launches, instance.work(gpu), strict=True)
    return tuple((launch.entry, predict_launch(cubin, launch, work, gpu)) for launch, work in each)


@dataclass(frozen=True)
class Undeclared:
    """A launch whose work nobody declared: counted, or told by its machine code where no block could be executed."""

    launch: Launch
    prediction: Prediction
    counted: Counted | None
    reason: str = ""  # why it is not counted


def undeclared(instance: Instance, gpu: GPU, cubin: Cubin) -> tuple[Undeclared, ...]:
    """Each launch of a compiled config whose work is not declared; what no SM can hold costs infinitely much."""
    plan, least = instance.plan(), instance.work(gpu)
    told = work_of_code(instance.operator, instance.problem, plan, least, cubin)
    counts = counts_of(instance, cubin, gpu)
    found = []
    for launch, of_cost, of_code, each in zip(plan.launches, least, told, counts, strict=True):
        ctas = occupancy(cubin.entries[launch.entry], launch, gpu.arch).ctas
        if not ctas:
            found.append(Undeclared(launch, Prediction(inf, {}, "", MODEL), None, "no SM holds a block of it"))
        elif isinstance(each, Uncounted):
            by_code = predict_launch(cubin, launch, of_code, gpu, declared=False)
            found.append(Undeclared(launch, by_code, None, each.reason))
        else:
            counted = of_launch(launch, of_cost, each, cubin, gpu)
            found.append(Undeclared(launch, counted.prediction(gpu, ctas), counted))
    return tuple(found)


def predict_launch(cubin: Cubin, launch: Launch, work: Work, gpu: GPU, *, declared: bool = True) -> Prediction:
    """The cost of one launch of a compiled config: by what it declares, and by what the compiler made of it.

    Work that is not declared is by the machine code already. What no SM can hold costs infinitely much.
    """
    usage = cubin.entries[launch.entry]
    ctas = occupancy(usage, launch, gpu.arch).ctas
    if not ctas:
        return Prediction(inf, {}, "", MODEL)
    mix = steady_mix(cubin, launch.entry) if declared else {}
    around = outer_mix(cubin, launch.entry) if work.around else None
    compiled = from_cubin(work, gpu, ctas, usage.spills, mix, around)
    return combine(formula(work, gpu, ctas), compiled)


def resources_of(cubin: Cubin, plan: Plan, gpu: GPU) -> Resources:
    """What a compiled config uses; of several kernels, the one that leaves the fewest CTAs on an SM, and all flaws."""
    found, faults = [], lint_all(cubin)
    for launch in plan.launches:
        usage = cubin.entries[launch.entry]
        fit = occupancy(usage, launch, gpu.arch)
        found.append(
            Resources(
                registers=usage.registers,
                spill_bytes=usage.spills,
                smem_bytes=launch.smem_bytes + usage.static_shared,
                threads=launch.block_threads,
                ctas_per_sm=fit.ctas,
                limiter=fit.limiter,
                sass_digest=cubin.sass_digest,
                lint=faults,
            )
        )
    return min(found, key=lambda each: (each.ctas_per_sm, -each.spill_bytes))


def steady_mix(cubin: Cubin, entry: str) -> Mapping[str, float]:
    """Instructions by class of a pass of a kernel's main loop along its common way; of the whole kernel without one.

    The main loop does the most mma. One thread issues all products of tcgen05, in a loop of its own: there it is the
    one with the most exponentials.
    """
    if (loop := _main_loop(cubin, entry)) is None:
        return work_mix(cubin.instruction_mix(entry))
    return pass_mix(cubin.code(entry), loop, cubin.options.arch) or work_mix(loop.mix)


def outer_mix(cubin: Cubin, entry: str) -> Mapping[str, float]:
    """The same of what lies around the main loop; nothing without one."""
    loop = _main_loop(cubin, entry)
    return mix_around(cubin.code(entry), loop, cubin.options.arch) if loop else {}


def _main_loop(cubin: Cubin, entry: str) -> Loop | None:
    loops = [(work_mix(loop.mix), loop) for loop in cubin.innermost_loops(entry)]
    leading = "mufu" if holds(cubin.code(entry), "UTCHMMA") else "mma"
    mix, loop = max(loops, key=lambda each: each[0].get(leading, 0.0), default=({}, None))
    return loop if mix.get(leading) else None
