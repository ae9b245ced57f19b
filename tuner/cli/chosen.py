"""The config that a command is about: what the dispatcher would serve, or what was given by hand."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tuner.arch import GPU
from tuner.base.cache import Cache
from tuner.base.result import Failed, spelled
from tuner.cli.options import parse_config
from tuner.cli.output import say
from tuner.compiler import nvrtc
from tuner.compiler.cubin import Cubin
from tuner.compiler.render import render
from tuner.compiler.toolkit import Options
from tuner.dispatcher import choice
from tuner.errors import UsageError
from tuner.evaluate.evaluator import contenders
from tuner.machines.gpu import named
from tuner.spec.instance import Instance
from tuner.spec.operator import Operator
from tuner.store.records import Snapshot


@dataclass(frozen=True)
class Chosen:
    """A config of one problem on one GPU, how it came, and the records among which one for it was looked for."""

    instance: Instance
    gpu: GPU
    why: str
    records: Snapshot

    def compiled(self) -> Cubin | Failed:
        """For its GPU. Raises MachineError without NVRTC."""
        return nvrtc.compile(render(self.instance), Options(self.gpu.arch.name), Cache.of("cubin"))

    def about(self) -> dict[str, Any]:
        """As JSON has it."""
        operator, implementation, problem, config = self.instance.fields()
        return {
            "operator": operator,
            "implementation": implementation,
            "problem": problem,
            "gpu": self.gpu.name,
            "config": config,
            "why": self.why,
        }

    def describe(self) -> None:
        """Say what was chosen."""
        _, implementation, _, config = self.instance.fields()
        say(f"{implementation} {spelled(config)} ({self.why})")

    def refuse(self) -> None:
        """Raises UsageError where the config is not one of its space."""
        implementation, problem = self.instance.implementation, self.instance.problem
        if reasons := implementation.space(problem, self.gpu.arch).refusals(self.instance.config):
            raise UsageError(f"{implementation.name} refuses this config: {'; '.join(reasons)} ({self.why})")


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
    (problem,), target = problems, named(gpu)
    records = snapshot(db)
    served = choice.choose(operator, problem, [target], records)
    instance, why = served.instance, served.why
    if implementation not in (None, instance.implementation.name):
        (wanted,) = contenders(operator, problem, target, implementation)
        instance, why = Instance.default(operator, wanted, problem, target.arch), "its default config"
    if settings:
        config = parse_config(instance.implementation.config, instance.config, settings)
        instance, why = replace(instance, config=config), "given by hand"
    return Chosen(instance, target, why, records)


def snapshot(db: str | None) -> Snapshot:
    """The records of every place where the dispatcher looks, or of one database; says what cannot be read there."""
    found = Snapshot.load([db] if db else None)
    for sentence in found.refused if db else ():
        say(f"passed over: {sentence}")
    return found
