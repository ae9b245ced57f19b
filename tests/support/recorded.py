"""An Evaluator with a known cost of every config, behind the interface that replays use."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from zlib import crc32

from tuner import operators
from tuner.arch import GPU, gpu
from tuner.evaluate.evaluator import Finalists, RaceOutcome
from tuner.results.attempt import Attempt, Evidence, Failed, Identity, Prediction, Resources, Stage
from tuner.results.verdict import OutputError, Verdict
from tuner.spec.instance import Instance
from tuner.spec.problem import canonical, to_fields

OPERATOR = operators.load("flash_attention")
PROBLEM = OPERATOR.problem(head_dim=64)
SM_80 = gpu("sm_80")
RIGHT = Verdict((OutputError("o", 0.0, 0.0, 1e-3, 1e-3),), (), ("recorded",))
WRONG = Verdict((OutputError("o", 1.0, 1.0, 1e-3, 1e-3),), (), ("recorded",))


class Recorded:
    """Returns given costs instead of compiling. `tried` and `judged` are the configs in the order of the requests."""

    evidence = Evidence.PREDICTED
    policy = "recorded/1"
    drift = 0.0
    device: str | None = ""

    def __init__(
        self,
        cost: Callable[[Any], float | None] = lambda c: c.BM + c.BN,
        right: Callable[[Any], bool] = lambda _: True,
        version: str = "1",
        problem: Any = PROBLEM,
        target: GPU = SM_80,
    ) -> None:
        self.cost, self.right, self.version = cost, right, version
        self.problem, self.target = problem, target
        self.tried: list[str] = []
        self.judged: list[str] = []

    def identity(self, instance: Instance) -> Identity:
        name, text, problem = instance.implementation.name, canonical(instance.config), canonical(self.problem)
        return Identity(OPERATOR.name, name, problem, self.target.name, self.version + text, "", "none", self.policy)

    def prior(self, instance: Instance) -> float:
        return float(crc32(canonical(instance.config).encode()) % 997)

    def compiled_costs(self, sample: Sequence[Instance]) -> list[float]:
        return [self.prior(entry) for entry in sample]

    def try_all(self, batch: Sequence[Instance]) -> Iterator[tuple[int, Attempt]]:
        for position, instance in enumerate(batch):
            self.tried.append(canonical(instance.config))
            yield position, self.attempt(instance)

    def is_current(self, attempt: Attempt) -> bool:  # noqa: ARG002  # part of the protocol
        return True

    def settle(self, finalists: Finalists, seed: int) -> RaceOutcome | None:  # part of the protocol
        """Return no race: recorded costs have no noise."""

    def resume(self, best: Instance) -> None:
        """Return True: recorded costs do not change between sessions."""

    def check(self, batch: Sequence[Instance]) -> Iterator[tuple[int, Verdict]]:
        for position, instance in enumerate(batch):
            self.judged.append(canonical(instance.config))
            yield position, RIGHT if self.right(instance.config) else WRONG

    def attempt(self, instance: Instance) -> Attempt:
        identity, config = self.identity(instance), to_fields(instance.config)
        cost = self.cost(instance.config)
        if cost is None:
            return Attempt(identity, config, failure=Failed(Stage.COMPILE, "recorded failure"))
        resources = Resources(128, 0, 1024, 128, 2, "registers", canonical(instance.config))
        return Attempt(identity, config, None, resources, Prediction(cost, {}, "tensor", self.policy))
