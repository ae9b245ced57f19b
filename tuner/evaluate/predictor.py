"""The Evaluator of a machine with no GPU."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

from tuner.arch import GPU
from tuner.base.result import Attempt, Evidence, Failed, Identity, Resources, Stage, Verdict
from tuner.compiler.cubin import Cubin
from tuner.compiler.nvrtc import Compiler, made_by
from tuner.compiler.render import render
from tuner.compiler.source import Source
from tuner.compiler.toolkit import Options
from tuner.evaluate.check.checker import Checker, Job
from tuner.evaluate.evaluator import Candidate
from tuner.evaluate.predict.compiled import predict_launches, resources_of
from tuner.evaluate.predict.cost import MODEL, in_turn, uncompiled
from tuner.spec.instance import Instance
from tuner.spec.operator import Operator
from tuner.spec.problem import canonical, to_fields


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


def _cannot_launch(resources: Resources) -> Failed:
    return Failed(Stage.LIMIT, f"cannot launch: not one CTA fits an SM ({resources.limiter})")
