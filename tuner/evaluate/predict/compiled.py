"""Predicts the cost of a compiled config, and reads the resources that it uses."""

from dataclasses import dataclass, replace
from math import inf

from tuner.arch import GPU
from tuner.compiler.cubin import Cubin
from tuner.compiler.lint import lint_all
from tuner.compiler.sass.paths import outer_mix, steady_mix
from tuner.compiler.usage import occupancy
from tuner.evaluate.predict.block_counts import NotCounted, block_counts
from tuner.evaluate.predict.cost import MODEL, combine, formula, from_cubin, in_turn
from tuner.evaluate.predict.counted import CountedLaunch, counted_launch
from tuner.evaluate.predict.kernel_classes import class_of
from tuner.evaluate.predict.static_work import static_work
from tuner.results.attempt import Lint, Prediction, Resources
from tuner.spec.instance import Instance
from tuner.spec.operator import Work
from tuner.spec.plan import Launch, Plan

_NO_FIT = Prediction(inf, {}, "", MODEL)  # prediction of a launch that no SM can hold


def predict_launches(instance: Instance, gpu: GPU, cubin: Cubin) -> tuple[tuple[str, Prediction], ...]:
    """(kernel, prediction) of each launch of a compiled config."""
    if not instance.implementation.declares_work:
        return tuple((launch.launch.entry, launch.prediction) for launch in predict_undeclared(instance, gpu, cubin))
    launches = zip(instance.plan().launches, instance.work(gpu), strict=True)
    return tuple((launch.entry, predict_launch(cubin, launch, work, gpu)) for launch, work in launches)


def predict_config(instance: Instance, gpu: GPU, cubin: Cubin) -> Prediction:
    """The prediction of a compiled config: all its launches in turn, with the class of kernels that they are."""
    if instance.implementation.declares_work:
        return in_turn([prediction for _, prediction in predict_launches(instance, gpu, cubin)])
    launches = predict_undeclared(instance, gpu, cubin)
    total = in_turn([launch.prediction for launch in launches])
    return replace(total, kernels=class_of([launch.counted for launch in launches]))


@dataclass(frozen=True)
class UndeclaredLaunch:
    """A launch without declared work: counted by executing blocks, else estimated from its machine code."""

    launch: Launch
    prediction: Prediction
    counted: CountedLaunch | None
    reason: str = ""  # why it is not counted


def predict_undeclared(instance: Instance, gpu: GPU, cubin: Cubin) -> tuple[UndeclaredLaunch, ...]:
    """Each launch of a compiled config whose work is not declared; the cost is inf if no SM can hold a block."""
    least, counts = instance.work(gpu), block_counts(instance, cubin, gpu)
    works = static_work(instance, least, cubin) if any(isinstance(x, NotCounted) for x in counts) else least
    launches = []
    for launch, minimum, work, count in zip(instance.plan().launches, least, works, counts, strict=True):
        ctas = occupancy(cubin.entries[launch.entry], launch, gpu.arch).ctas
        if not ctas:
            launches.append(UndeclaredLaunch(launch, _NO_FIT, None, "no SM holds a block of it"))
        elif isinstance(count, NotCounted):
            prediction = predict_launch(cubin, launch, work, gpu, declared=False)
            launches.append(UndeclaredLaunch(launch, prediction, None, count.reason))
        else:
            counted = counted_launch(minimum, count, cubin.instructions(launch.entry), gpu)
            launches.append(UndeclaredLaunch(launch, counted.prediction(gpu, ctas), counted))
    return tuple(launches)


def predict_launch(cubin: Cubin, launch: Launch, work: Work, gpu: GPU, *, declared: bool = True) -> Prediction:
    """The cost of one launch of a compiled config, from its work and its machine code; inf if no SM can hold a block.

    Work that is not declared comes from the machine code already.
    """
    usage = cubin.entries[launch.entry]
    ctas = occupancy(usage, launch, gpu.arch).ctas
    if not ctas:
        return _NO_FIT
    code = cubin.instructions(launch.entry)
    steady, outer = steady_mix(code) if declared else {}, outer_mix(code) if work.around else {}
    return combine(formula(work, gpu, ctas), from_cubin(work, gpu, ctas, usage.spills, steady, outer))


def resources_of(cubin: Cubin, plan: Plan, gpu: GPU) -> Resources:
    """Resources of the kernel that leaves the fewest CTAs on an SM, and the lint of all kernels."""
    lint = lint_all(cubin)
    resources = (_resources(cubin, launch, gpu, lint) for launch in plan.launches)
    return min(resources, key=lambda resource: (resource.ctas_per_sm, -resource.spill_bytes))


def _resources(cubin: Cubin, launch: Launch, gpu: GPU, lint: Lint) -> Resources:
    usage = cubin.entries[launch.entry]
    fit = occupancy(usage, launch, gpu.arch)
    return Resources(
        registers=usage.registers,
        spill_bytes=usage.spills,
        smem_bytes=launch.smem_bytes + usage.static_shared,
        threads=launch.block_threads,
        ctas_per_sm=fit.ctas,
        limiter=fit.limiter,
        sass_digest=cubin.sass_digest,
        lint=lint,
    )
