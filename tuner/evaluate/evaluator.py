"""One instance → Attempt. An Evaluator is the seam between a search and what it searches on: here, prediction."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from tuner import operators
from tuner.arch import GPU
from tuner.errors import UsageError
from tuner.results.attempt import Attempt, Evidence, Identity
from tuner.results.verdict import Verdict
from tuner.spec.instance import Instance
from tuner.spec.operator import Implementation, Operator

AnyImplementation = Implementation[Any, Any]


class Evaluator(Protocol):
    """What a search needs to know about configs. Failures are values; exceptions mean the machine or an operator."""

    evidence: Evidence
    policy: str

    def identity(self, instance: Instance) -> Identity: ...

    def prior(self, instance: Instance) -> float:
        """A cost before anything is compiled; lower is better, NaN where nothing tells it."""

    def sampled(self, some: Sequence[Instance]) -> list[float]:
        """Costs of some configs as they compile, for where `prior` tells nothing; NaN: it does not compile."""

    def resume(self, best: Instance) -> None:
        """What earlier sessions found best, before anything is tried."""

    def attempts(self, batch: Sequence[Instance]) -> Iterator[tuple[int, Attempt]]:
        """(position in `batch`, Attempt) as they finish."""

    def verdicts(self, batch: Sequence[Instance]) -> Iterator[tuple[int, Verdict]]:
        """(position in `batch`, Verdict) as they finish."""


def serving_implementations(
    operator: Operator[Any], problem: Any, gpu: GPU, only: str | None
) -> tuple[AnyImplementation, ...]:
    """The implementations that a search tries, or `only` that one. Raises UsageError where none serves the problem."""
    wanted = (operators.implementation(operator.name, only),) if only else operators.implementations(operator.name)
    refusals = {each.name: each.refusal(problem, gpu.arch) for each in wanted}
    found = tuple(each for each in wanted if refusals[each.name] is None)
    if not found:
        reasons = "; ".join(f"{name}: {why}" for name, why in refusals.items())
        raise UsageError(f"no implementation of {operator.name} serves this problem on {gpu.name}: {reasons}")
    return found
