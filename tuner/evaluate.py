"""One config → Attempt. An Evaluator is the seam between a search and what it searches on: here, prediction."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tuner import operators
from tuner.arch import GPU
from tuner.check import Checker, Job
from tuner.cubin import Cubin
from tuner.errors import UsageError
from tuner.instance import Instance
from tuner.lint import lint_all
from tuner.nvrtc import Compiler, made_by
from tuner.operator import Implementation, Launch, Operator, Plan, Work, canonical, to_fields
from tuner.predict import MODEL, combine, formula, from_cubin, in_turn, uncompiled
from tuner.render import render
from tuner.result import Attempt, Evidence, Failed, Identity, Prediction, Resources, Stage, Verdict
from tuner.sass import Loop, holds, work_mix
from tuner.source import Source
from tuner.timeline_paths import mix_around, pass_mix
from tuner.toolkit import Options
from tuner.undeclared import work_of_code
from tuner.usage import occupancy

AnyImplementation = Implementation[Any, Any]


@dataclass(frozen=True)
class Candidate:
    """One config of one implementation."""

    implementation: AnyImplementation
    config: Any

    @property
    def key(self) -> tuple[str, Any]:
        """Equal for equal configs."""
        return self.implementation.name, self.config


class Evaluator(Protocol):
    """What a search needs to know about configs. Failures are values; exceptions mean the machine or an operator."""

    evidence: Evidence
    policy: str

    def identity(self, candidate: Candidate) -> Identity: ...

    def prior(self, candidate: Candidate) -> float:
        """A cost before anything is compiled; lower is better."""

    def resume(self, best: Candidate) -> None:
        """What earlier sessions found best, before anything is tried."""

    def attempts(self, batch: Sequence[Candidate]) -> Iterator[tuple[int, Attempt]]:
        """(position in `batch`, Attempt) as they finish."""

    def verdicts(self, batch: Sequence[Candidate]) -> Iterator[tuple[int, Verdict]]:
        """(position in `batch`, Verdict) as they finish."""


class Predictor:
    """Evaluates on a machine with no GPU: NVRTC compiles, the cubin and the declared work rank, the emulator checks."""

    evidence = Evidence.PREDICTED
    policy = MODEL

    def __init__(self, operator: Operator[Any], problem: Any, gpu: GPU, compiler: Compiler, checker: Checker) -> None:
        self._operator, self._problem, self._gpu = operator, problem, gpu
        self._compiler, self._checker = compiler, checker
        self._options = Options(arch=gpu.arch.name)

    def identity(self, candidate: Candidate) -> Identity:
        return self._identity(candidate, self.source(candidate))

    def _identity(self, candidate: Candidate, source: Source) -> Identity:
        return Identity(
            operator=self._operator.name,
            implementation=candidate.implementation.name,
            problem=canonical(self._problem),
            gpu=self._gpu.name,
            source=source.digest,
            options=str(self._options),
            toolkit=made_by(source),
            policy=self.policy,
            plan=self._instance(candidate).plan().digest,
        )

    def source(self, candidate: Candidate) -> Source:
        return render(self._instance(candidate))

    def _instance(self, candidate: Candidate) -> Instance:
        return Instance(self._operator, candidate.implementation, self._problem, candidate.config)

    def prior(self, candidate: Candidate) -> float:
        instance = self._instance(candidate)
        return uncompiled(instance.plan(), instance.work(self._gpu), self._gpu).cost

    def resume(self, best: Candidate) -> None:
        """Costs of equal models compare, whenever they were found."""

    def attempts(self, batch: Sequence[Candidate]) -> Iterator[tuple[int, Attempt]]:
        started = time.perf_counter()
        sources = [self.source(candidate) for candidate in batch]
        for position, outcome in self._compiler.compile_many((source, self._options) for source in sources):
            identity = self._identity(batch[position], sources[position])
            yield position, self._attempt(batch[position], identity, outcome, time.perf_counter() - started)

    def verdicts(self, batch: Sequence[Candidate]) -> Iterator[tuple[int, Verdict]]:
        arch = self._gpu.arch.name
        yield from self._checker.check_many([Job(*self._instance(each).fields(), arch=arch) for each in batch])

    def _attempt(self, candidate: Candidate, identity: Identity, outcome: Cubin | Failed, seconds: float) -> Attempt:
        config = to_fields(candidate.config)
        if isinstance(outcome, Failed):
            return Attempt(identity, config, failure=outcome, seconds=seconds)
        instance = self._instance(candidate)
        resources = resources_of(outcome, instance.plan(), self._gpu)
        if resources.ctas_per_sm == 0:
            return Attempt(identity, config, failure=_cannot_launch(resources), resources=resources, seconds=seconds)
        prediction = in_turn([each for _, each in predict_launches(instance, self._gpu, outcome)])
        return Attempt(identity, config, resources=resources, prediction=prediction, seconds=seconds)


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
                threads=launch.threads,
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


def contenders(operator: Operator[Any], problem: Any, gpu: GPU, only: str | None) -> tuple[AnyImplementation, ...]:
    """The implementations to race, or `only` that one. Raises UsageError where none serves the problem."""
    wanted = (operators.implementation(operator.name, only),) if only else operators.implementations(operator.name)
    refusals = {each.name: each.refusal(problem, gpu.arch) for each in wanted}
    found = tuple(each for each in wanted if refusals[each.name] is None)
    if not found:
        reasons = "; ".join(f"{name}: {why}" for name, why in refusals.items())
        raise UsageError(f"no implementation of {operator.name} serves this problem on {gpu.name}: {reasons}")
    return found


def _cannot_launch(resources: Resources) -> Failed:
    return Failed(Stage.LIMIT, f"cannot launch: not one CTA fits an SM ({resources.limiter})")
