"""The evaluator of a machine without the GPU: configs are compiled, ranked by prediction and checked on the CPU."""

import time
from collections.abc import Iterator, Sequence

from tuner.arch import GPU
from tuner.compiler.nvrtc import Compiler
from tuner.compiler.render import render
from tuner.evaluate.check.checker import Checker, Job
from tuner.evaluate.compilation import Compilation
from tuner.evaluate.evaluator import Finalists, RaceOutcome
from tuner.evaluate.predict.cost import MODEL
from tuner.results.attempt import Attempt, Evidence
from tuner.results.verdict import Verdict
from tuner.spec.instance import Instance


class Predictor:
    """See `Evaluator`. Costs of equal models compare whenever they were computed, so nothing is current or outdated."""

    evidence: Evidence = Evidence.PREDICTED
    policy: str = MODEL
    drift = 0.0
    device: str | None = ""

    def __init__(self, gpu: GPU, compiler: Compiler, checker: Checker) -> None:
        self._compilation, self._checker = Compilation(gpu, compiler, MODEL), checker
        self.identity = self._compilation.identity
        self.prior = self._compilation.prior
        self.compiled_costs = self._compilation.compiled_costs

    def resume(self, best: Instance) -> None:
        """Nothing to do."""

    def is_current(self, attempt: Attempt) -> bool:  # noqa: ARG002  # part of the protocol
        return True

    def try_all(self, batch: Sequence[Instance]) -> Iterator[tuple[int, Attempt]]:
        started, sources = time.perf_counter(), list(map(render, batch))
        for i, outcome in self._compilation.compile(sources):
            seconds = time.perf_counter() - started
            yield i, self._compilation.attempt(batch[i], sources[i], outcome, seconds)

    def check(self, batch: Sequence[Instance]) -> Iterator[tuple[int, Verdict]]:
        arch = self._compilation.gpu.arch.name
        yield from self._checker.check_many([Job(instance.fields(), arch=arch) for instance in batch])

    def settle(self, finalists: Finalists, seed: int) -> RaceOutcome | None:  # part of the protocol
        """A cost has no noise: nothing is left to settle."""


class Remembered(Predictor):
    """Knows the attempts of earlier sessions on a device, by their policy. It measures nothing itself."""

    evidence = Evidence.MEASURED

    def __init__(self, policy: str, gpu: GPU, compiler: Compiler, checker: Checker, device: str | None = None) -> None:
        super().__init__(gpu, compiler, checker)
        self.policy, self.device = policy, device
        self.identity = Compilation(gpu, compiler, policy).identity
