"""The config that a command uses: the one that the dispatcher would serve, or one given on the command line."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tuner.backends.gpu import named
from tuner.base.cache import Cache
from tuner.base.fields import formatted
from tuner.cli.options import parse_config
from tuner.cli.output import say
from tuner.compiler import nvrtc
from tuner.compiler.cubin import Cubin
from tuner.compiler.render import render
from tuner.compiler.toolkit import Options
from tuner.dispatcher import config_choice
from tuner.dispatcher.config_choice import Choice
from tuner.errors import UsageError
from tuner.results.attempt import Failed
from tuner.search.request import serving_implementations
from tuner.spec.instance import Instance
from tuner.spec.operator import Operator
from tuner.store.records import Snapshot


def choose(
    operator: Operator[Any],
    problems: Sequence[Any],
    gpu: str,
    implementation: str | None,
    settings: list[str] | None,
    db: str | None,
) -> Choice:
    """Return the config that the dispatcher would serve, or the default of `implementation`, modified by `settings`."""
    return over(serving(operator, problems, gpu, snapshot(db)), implementation, settings)


def serving(operator: Operator[Any], problems: Sequence[Any], gpu: str, records: Snapshot) -> Choice:
    """Return what the dispatcher would serve for the single problem."""
    if len(problems) != 1:
        raise UsageError(f"this command looks at one problem, and {len(problems)} were given: give one value an option")
    return config_choice.choose(operator, problems[0], [named(gpu)], records)


def over(served: Choice, implementation: str | None, settings: list[str] | None) -> Choice:
    """Return a choice with the implementation and settings from the command line."""
    instance, target = served.instance, served.gpu
    if implementation not in (None, instance.implementation.name):
        (other,) = serving_implementations(instance.operator, instance.problem, target, implementation)
        instance = Instance.default(instance.operator, other, instance.problem, target.arch)
        served = Choice(instance, target, None, "its default config")
    if settings:
        config = parse_config(instance.implementation.config, instance.config, settings)
        served = Choice(instance.with_config(config), target, None, "given by hand")
    return served


def compiled(chosen: Choice) -> Cubin | Failed:
    """Compile for the choice's GPU. Raises MachineError without NVRTC."""
    return nvrtc.compile(render(chosen.instance), Options(chosen.gpu.arch.name), Cache.of("cubin"))


def about(chosen: Choice) -> dict[str, Any]:
    """Return the choice as JSON-compatible data."""
    return {**asdict(chosen.instance.fields()), "gpu": chosen.gpu.name, "why": chosen.why}


def describe(chosen: Choice) -> None:
    """Print the choice."""
    runs = chosen.instance.fields()
    say(f"{runs.implementation} {formatted(runs.config)} ({chosen.why})")


def refuse(chosen: Choice) -> None:
    """Raise UsageError if the config is not in its space."""
    implementation, problem = chosen.instance.implementation, chosen.instance.problem
    if reasons := implementation.space(problem, chosen.gpu.arch).refusals(chosen.instance.config):
        raise UsageError(f"{implementation.name} refuses this config: {'; '.join(reasons)} ({chosen.why})")


def snapshot(db: str | None) -> Snapshot:
    """Return the records of all the dispatcher's sources, or of one database; print what cannot be read."""
    records = Snapshot.load([db] if db else None)
    for sentence in records.refused if db else ():
        say(f"passed over: {sentence}")
    return records
