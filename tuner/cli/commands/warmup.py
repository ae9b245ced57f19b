"""`tuner warmup`: compile ahead of time for calls on a GPU, e.g. while an image is built."""

import warnings
from collections.abc import Sequence
from typing import Any

from tuner.arch import GPU
from tuner.backends.gpu import is_here, named
from tuner.base.cache import cache_dir
from tuner.base.fields import formatted
from tuner.cli.output import GpuOption, JsonOption, emit_json, say, table
from tuner.dispatcher import config_choice
from tuner.dispatcher.calls import Dispatcher
from tuner.errors import MachineError
from tuner.search.prove import prover
from tuner.spec import command_line
from tuner.spec.operator import Operator
from tuner.store.records import Snapshot


def warmup_command(
    operator: Operator[Any], problems: Sequence[Any], *, gpu: GpuOption, as_json: JsonOption = False
) -> None:
    """Compile what the dispatcher would run, and keep it in the cache, where calls need no compiler for it.

    On the machine of that GPU every default config is judged there first, unless it was before.
    """
    target = named(gpu)
    if is_here(target):
        _prove(operator, problems, target)
    records = Snapshot.load()
    _compile(operator, problems, target, records)
    chosen = [config_choice.choose(operator, problem, [target], records) for problem in problems]
    if as_json:
        calls = []
        for choice_of_problem in chosen:
            runs = choice_of_problem.instance.fields()
            calls.append(
                {
                    "problem": runs.problem,
                    "implementation": runs.implementation,
                    "config": runs.config,
                    "why": choice_of_problem.why,
                }
            )
        emit_json({"operator": operator.name, "gpu": target.name, "cache": str(cache_dir()), "calls": calls})
        return
    rows = [
        (
            formatted(command_line.minimal_fields(served.instance.problem)) or "the defaults",
            served.instance.implementation.name,
            served.why,
        )
        for served in chosen
    ]
    table(f"{operator.name} on {target.name}, compiled into {cache_dir()}", ("problem", "runs", "why"), rows)


def _prove(operator: Operator[Any], problems: Sequence[Any], target: GPU) -> None:
    """Check defaults without a verdict, so that the compiled ones are those that calls without a record run."""
    with prover(target) as prove:
        for problem in problems:
            for judged in prove(operator, problem):
                if not judged.right:
                    say(f"{operator.name}/{judged.implementation} is not served without a record: {judged.reason}")


def _compile(operator: Operator[Any], problems: Sequence[Any], target: GPU, records: Snapshot) -> None:
    """Compile. Raises MachineError if nothing can be cached: an image needs the cache."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "cannot write to the cache", RuntimeWarning)
        try:
            Dispatcher(records).warmup(operator.name, *problems, target=target)
        except RuntimeWarning as error:
            raise MachineError(str(error)) from error
