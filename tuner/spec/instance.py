"""A config on a problem: what is rendered, compiled, run, judged and predicted."""

from dataclasses import dataclass, replace
from typing import Any

from tuner.arch import GPU, Arch
from tuner.base.result import Fields
from tuner.spec.operator import Implementation, Operator, Work
from tuner.spec.plan import Plan
from tuner.spec.problem import to_fields


@dataclass(frozen=True, slots=True)
class Instance:
    """An implementation of an operator, with a config, on a problem. Names no GPU."""

    operator: Operator[Any]
    implementation: Implementation[Any, Any]
    problem: Any
    config: Any

    @classmethod
    def default(
        cls, operator: Operator[Any], implementation: Implementation[Any, Any], problem: Any, arch: Arch
    ) -> "Instance":
        """With the config that always works there."""
        return cls(operator, implementation, problem, implementation.default(problem, arch))

    @property
    def name(self) -> str:
        return f"{self.operator.name}/{self.implementation.name}"

    def at(self, problem: Any) -> "Instance":
        """The same config on another problem."""
        return replace(self, problem=problem)

    def plan(self) -> Plan:
        return self.implementation.plan(self.problem, self.config)

    def work(self, gpu: GPU) -> tuple[Work, ...]:
        return self.implementation.work(self.problem, self.config, gpu)

    def fields(self) -> tuple[str, str, Fields, Fields]:
        """Operator, implementation, problem and config by names and data, as they travel to other processes."""
        return self.operator.name, self.implementation.name, to_fields(self.problem), to_fields(self.config)
