"""The config that a command is about: what the dispatcher would serve, or what was given by hand."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tuner import arch, choice, nvrtc
from tuner.arch import GPU
from tuner.cache import Cache
from tuner.cli.options import parse_config
from tuner.cli.output import say
from tuner.cubin import Cubin
from tuner.errors import UsageError
from tuner.evaluate import contenders
from tuner.operator import Implementation, Operator, Plan, to_fields
from tuner.records import Snapshot
from tuner.render import render
from tuner.result import Failed, spelled
from tuner.source import Source, Target
from tuner.toolkit import Options


@dataclass(frozen=True)
class Chosen:
    """A config of one problem on one GPU, and how it came."""

    operator: Operator[Any]
    problem: Any
    gpu: GPU
    implementation: Implementation[Any, Any]
    config: Any
    why: str

    def plan(self) -> Plan:
        return self.implementation.plan(self.problem, self.config)

    def source(self, target: Target = "cuda") -> Source:
        return render(self.operator, self.implementation, self.problem, self.config, target)

    def compiled(self) -> Cubin | Failed:
        """For its GPU. Raises MachineError without NVRTC."""
        return nvrtc.compile(self.source(), Options(self.gpu.arch.name), Cache.of("cubin"))

    def about(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "operator": self.operator.name,
            "implementation": self.implementation.name,
            "problem": to_fields(self.problem),
            "gpu": self.gpu.name,
            "config": to_fields(self.config),
            "why": self.why,
        }

    def describe(self) -> None:
        """Say what was chosen."""
        say(f"{self.implementation.name} {spelled(to_fields(self.config))} ({self.why})")

    def refuse(self) -> None:
        """Raises UsageError where the config is not one of its space."""
        space = self.implementation.space(self.problem, self.gpu.arch)
        if reasons := space.refusals(self.config):
            raise UsageError(f"{self.implementation.name} refuses this config: {'; '.join(reasons)} ({self.why})")


def choose(
    operator: Operator[Any],
    problems: Sequence[Any],
    gpu: str,
    implementation: str | None,
    settings: list[str] | None,
    db: str | None,
) -> Chosen:
    """What the dispatcher would serve, or the default of `implementation`, with `settings` over it."""
    if len(problems) != 1:
        raise UsageError(f"this command looks at one problem, and {len(problems)} were given: give one value an option")
    (problem,), target = problems, arch.gpu(gpu)
    served = choice.choose(operator, problem, [target], snapshot(db))
    if implementation not in (None, served.implementation.name):
        (wanted,) = contenders(operator, problem, target, implementation)
        chosen = Chosen(operator, problem, target, wanted, wanted.default(problem, target.arch), "its default config")
    else:
        chosen = Chosen(operator, problem, target, served.implementation, served.config, served.why)
    if settings:
        config = parse_config(chosen.implementation.config, chosen.config, settings)
        return replace(chosen, config=config, why="given by hand")
    return chosen


def snapshot(db: str | None) -> Snapshot:
    """The records of every place where the dispatcher looks, or of one database; says what cannot be read there."""
    found = Snapshot.load([db] if db else None)
    for sentence in found.refused if db else ():
        say(f"passed over: {sentence}")
    return found
