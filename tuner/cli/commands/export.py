"""`tuner export`: what was tried, in the exchange format of the auto-tuning community."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tuner import operators
from tuner.backends.gpu import named
from tuner.cli.output import DbOption, GpuOption, ImplementationOption, literal
from tuner.errors import NoValidConfigError, UsageError
from tuner.report.notation import counted
from tuner.search.replay import attempts
from tuner.spec.command_line import search_command
from tuner.spec.operator import Operator
from tuner.spec.problem import canonical
from tuner.store.sql import Store


def export_command(
    operator: Operator[Any],
    problems: Sequence[Any],
    *,
    gpu: GpuOption,
    implementation: ImplementationOption = None,
    out: Annotated[Path | None, typer.Option(help=literal("where it goes [default: stdout]"))] = None,
    db: DbOption = None,
) -> None:
    """Write the attempts at a problem as a T4 file, which `tuner replay` reads, too."""
    if len(problems) != 1:
        raise UsageError(f"a T4 file is about one problem, and {len(problems)} were given")
    target = named(gpu)
    if implementation:
        operators.implementation(operator.name, implementation)  # or its name is refused
    with Store.open(db) as store:
        stored = store.attempts(operator.name, canonical(problems[0]), target.name, implementation)
    if not stored:
        command = search_command(operator, problems[0], target)
        raise NoValidConfigError(f"nothing is stored about this problem on {target.name}: search first: {command}")
    latest = [row.attempt for row in stored if row.attempt.identity.policy == stored[-1].attempt.identity.policy]
    text = json.dumps(attempts.document(latest), indent=1)
    if out is None:
        typer.echo(text)
        return
    out.write_text(text, encoding="utf-8")
    typer.echo(f"{counted(len(latest), 'attempt', 'attempts')}: {out}")
