"""A config on a problem: the unit that is rendered, compiled, run, checked and predicted."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tuner.arch import GPU, Arch
from tuner.base.fields import Fields
from tuner.spec.operator import Implementation, Operator, Work
from tuner.spec.plan import Plan
from tuner.spec.problem import to_fields


@dataclass(frozen=True, slots=True)
class InstanceFields:
    """An instance as names and plain data, to send to other processes; `operators.instance` converts it back."""

    operator: str
    implementation: str
    problem: Fields
    config: Fields

    @property
    def name(self) -> str:
        return f"{self.operator}/{self.implementation}"


@dataclass(frozen=True)
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
        """Return the instance with the default config, which is valid for every problem that is not refused."""
        return cls(operator, implementation, problem, implementation.default(problem, arch))

    @property
    def name(self) -> str:
        return f"{self.operator.name}/{self.implementation.name}"

    @property
    def key(self) -> tuple[str, Any]:
        """A key that is equal for equal configs, regardless of the problem."""
        return self.implementation.name, self.config

    def at(self, problem: Any) -> "Instance":
        """Return the same config on another problem."""
        return replace(self, problem=problem)

    def with_config(self, config: Any) -> "Instance":
        """Return another config on the same problem."""
        return replace(self, config=config)

    @cached_property
    def _plan(self) -> Plan:
        return self.implementation.plan(self.problem, self.config)

    def plan(self) -> Plan:
        """Return the plan, which is computed once."""
        return self._plan

    def work(self, gpu: GPU) -> tuple[Work, ...]:
        return self.implementation.work(self.problem, self.config, gpu)

    def fields(self) -> InstanceFields:
        return InstanceFields(
            self.operator.name, self.implementation.name, to_fields(self.problem), to_fields(self.config)
        )
