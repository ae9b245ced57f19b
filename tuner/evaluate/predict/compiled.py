"""What a compiled config is predicted to cost, and what it uses."""

from collections.abc import Mapping

from tuner.arch import GPU
from tuner.base.result import Prediction, Resources
from tuner.compiler.cubin import Cubin
from tuner.compiler.lint import lint_all
from tuner.compiler.sass.decode import Loop, holds, work_mix
from tuner.compiler.sass.paths import mix_around, pass_mix
from tuner.compiler.usage import occupancy
from tuner.evaluate.predict.cost import combine, formula, from_cubin
from tuner.evaluate.predict.undeclared import work_of_code
from tuner.spec.instance import Instance
from tuner.spec.operator import Work
from tuner.spec.plan import Launch, Plan


def predict_launches(instance: Instance, gpu: GPU, cubin: Cubin) -> tuple[tuple[str, Prediction], ...]:
    """(kernel, cost) of each launch of a compiled config."""
    plan, works = instance.plan(), instance.work(gpu)
    if not (declared := instance.implementation.declared):
        works = work_of_code(instance.operator, instance.problem, plan, works, cubin)
    each = zip(plan.launches, works, strict=True)
    return tuple((launch.entry, predict_launch(cubin, launch, work, gpu, declared=declared)) for launch, work in each)


def predict_launch(cubin: Cubin, launch: Launch, work: Work, gpu: GPU, *, declared: bool = True) -> Prediction:
    """The cost of one launch of a compiled config: by what it declares, and by what the compiler made of it.

    Work that is not declared is by the machine code already.
    """
    usage = cubin.entries[launch.entry]
    ctas = occupancy(usage, launch, gpu.arch).ctas
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
