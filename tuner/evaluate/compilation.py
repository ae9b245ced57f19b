"""Compilation of configs for one GPU: their identities and predictions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import nan

from tuner.arch import GPU
from tuner.compiler.cubin import Cubin
from tuner.compiler.nvrtc import Compiler, made_by
from tuner.compiler.render import render
from tuner.compiler.source import Source
from tuner.compiler.toolkit import Options
from tuner.evaluate.predict.compiled import predict_config, resources_of
from tuner.evaluate.predict.cost import uncompiled
from tuner.results.attempt import Attempt, Failed, Identity, Resources, Stage
from tuner.spec.instance import Instance
from tuner.spec.problem import canonical, to_fields


@dataclass(frozen=True)
class Compilation:
    """The common part of all evaluators: compilation by NVRTC, and predictions from declared work and machine code.

    `policy` is part of the identity of the evaluator's results.
    """

    gpu: GPU
    compiler: Compiler
    policy: str

    @property
    def options(self) -> Options:
        return Options(arch=self.gpu.arch.name)

    def identity(self, instance: Instance, source: Source | None = None) -> Identity:
        source = source or render(instance)
        return Identity(
            operator=instance.operator.name,
            implementation=instance.implementation.name,
            problem=canonical(instance.problem),
            gpu=self.gpu.name,
            source=source.digest,
            options=str(self.options),
            toolkit=made_by(source),
            policy=self.policy,
            plan=instance.plan().digest,
        )

    def prior(self, instance: Instance) -> float:
        """Return the cost by declared work; NaN without declared work, because the operator's cost is the same for all
        configs.
        """
        if not instance.implementation.declares_work:
            return nan
        return uncompiled(instance.plan(), instance.work(self.gpu), self.gpu).cost

    def compiled_costs(self, sample: Sequence[Instance]) -> list[float]:
        costs = [nan] * len(sample)
        for position, outcome in self.compile(list(map(render, sample))):
            if isinstance(outcome, Cubin):
                costs[position] = predict_config(sample[position], self.gpu, outcome).cost
        return costs

    def compile(self, sources: Sequence[Source]) -> Iterator[tuple[int, Cubin | Failed]]:
        """Yield (position, cubin or failure) in order of completion."""
        return self.compiler.compile_many((source, self.options) for source in sources)

    def attempt(self, instance: Instance, source: Source, outcome: Cubin | Failed, seconds: float = 0.0) -> Attempt:
        """Return the attempt at a config with its prediction from the compiler's result."""
        identity, config = self.identity(instance, source), to_fields(instance.config)
        if isinstance(outcome, Failed):
            return Attempt(identity, config, failure=outcome, seconds=seconds)
        resources = resources_of(outcome, instance.plan(), self.gpu)
        if resources.ctas_per_sm == 0:
            return Attempt(identity, config, failure=_cannot_launch(resources), resources=resources, seconds=seconds)
        prediction = predict_config(instance, self.gpu, outcome)
        return Attempt(identity, config, resources=resources, prediction=prediction, seconds=seconds)


def _cannot_launch(resources: Resources) -> Failed:
    return Failed(Stage.LIMIT, f"cannot launch: not one CTA fits an SM ({resources.limiter})")
