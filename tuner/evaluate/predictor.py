"""The Evaluator of a machine with no GPU."""

import time
from collections.abc import Iterator, Sequence
from math import nan

from tuner.arch import GPU
from tuner.compiler.cubin import Cubin
from tuner.compiler.nvrtc import Compiler, made_by
from tuner.compiler.render import render
from tuner.compiler.source import Source
from tuner.compiler.toolkit import Options
from tuner.evaluate.check.checker import Checker, Job
from tuner.evaluate.predict.compiled import predict_launches, resources_of
from tuner.evaluate.predict.cost import MODEL, in_turn, uncompiled
from tuner.results.attempt import Attempt, Evidence, Failed, Identity, Resources, Stage
from tuner.results.verdict import Verdict
from tuner.spec.instance import Instance
from tuner.spec.problem import canonical, to_fields


class Predictor:
    """Evaluates on a machine with no GPU: NVRTC compiles, the cubin and the declared work rank, the emulator checks."""

    evidence = Evidence.PREDICTED
    policy = MODEL

    def __init__(self, gpu: GPU, compiler: Compiler, checker: Checker) -> None:
        self._gpu, self._compiler, self._checker = gpu, compiler, checker
        self._options = Options(arch=gpu.arch.name)

    def identity(self, instance: Instance) -> Identity:
        return self._identity(instance, render(instance))

    def _identity(self, instance: Instance, source: Source) -> Identity:
        return Identity(
            operator=instance.operator.name,
            implementation=instance.implementation.name,
            problem=canonical(instance.problem),
            gpu=self._gpu.name,
            source=source.digest,
            options=str(self._options),
            toolkit=made_by(source),
            policy=self.policy,
            plan=instance.plan().digest,
        )

    def prior(self, instance: Instance) -> float:
        """NaN where no work is declared: what the cost says is the same for all configs, and its launches mislead."""
        if not instance.implementation.declares_work:
            return nan
        return uncompiled(instance.plan(), instance.work(self._gpu), self._gpu).cost

    def sampled(self, some: Sequence[Instance]) -> list[float]:
        costs = [nan] * len(some)
        for position, outcome in self._compiler.compile_many((render(each), self._options) for each in some):
            if isinstance(outcome, Cubin):
                launches = predict_launches(some[position], self._gpu, outcome)
                costs[position] = in_turn([each for _, each in launches]).cost
        return costs

    def resume(self, best: Instance) -> None:
        """Costs of equal models compare, whenever they were found."""

    def attempts(self, batch: Sequence[Instance]) -> Iterator[tuple[int, Attempt]]:
        started = time.perf_counter()
        sources = [render(instance) for instance in batch]
        for position, outcome in self._compiler.compile_many((source, self._options) for source in sources):
            identity = self._identity(batch[position], sources[position])
            yield position, self._attempt(batch[position], identity, outcome, time.perf_counter() - started)

    def verdicts(self, batch: Sequence[Instance]) -> Iterator[tuple[int, Verdict]]:
        arch = self._gpu.arch.name
        yield from self._checker.check_many([Job(each.fields(), arch=arch) for each in batch])

    def _attempt(self, instance: Instance, identity: Identity, outcome: Cubin | Failed, seconds: float) -> Attempt:
        config = to_fields(instance.config)
        if isinstance(outcome, Failed):
            return Attempt(identity, config, failure=outcome, seconds=seconds)
        resources = resources_of(outcome, instance.plan(), self._gpu)
        if resources.ctas_per_sm == 0:
            return Attempt(identity, config, failure=_cannot_launch(resources), resources=resources, seconds=seconds)
        prediction = in_turn([each for _, each in predict_launches(instance, self._gpu, outcome)])
        return Attempt(identity, config, resources=resources, prediction=prediction, seconds=seconds)


def _cannot_launch(resources: Resources) -> Failed:
    return Failed(Stage.LIMIT, f"cannot launch: not one CTA fits an SM ({resources.limiter})")
