"""`tuner export`: attempts in the exchange format of the auto-tuning community, or as an Optuna study."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tuner import operators
from tuner.arch import GPU
from tuner.backends.gpu import named
from tuner.cli.output import DbOption, GpuOption, ImplementationOption, literal
from tuner.cli.search_results import problem_title
from tuner.errors import NoValidConfigError, UsageError
from tuner.report import optuna_study
from tuner.report.notation import counted
from tuner.search.replay import attempts
from tuner.spec.command_line import search_command
from tuner.spec.operator import Operator
from tuner.spec.problem import canonical
from tuner.spec.space import Value
from tuner.store.sql import Store


def export_command(
    operator: Operator[Any],
    problems: Sequence[Any],
    *,
    storage: Annotated[
        str | None, typer.Argument(metavar="[URL]", help="of Optuna's storage, such as sqlite:///study.db")
    ] = None,
    gpu: GpuOption,
    implementation: ImplementationOption = None,
    form: Annotated[str, typer.Option("--format", help="t4, or optuna: a study at URL")] = "t4",
    study: Annotated[
        str | None, typer.Option(metavar="NAME", help=literal("the study's name [default: the problem and the GPU]"))
    ] = None,
    out: Annotated[Path | None, typer.Option(help=literal("where a T4 file goes [default: stdout]"))] = None,
    db: DbOption = None,
) -> None:
    """Write the attempts at a problem as a T4 file, which `tuner replay` reads, too, or as a study of Optuna."""
    _refuse_options(form, storage, study, out)
    if len(problems) != 1:
        raise UsageError(f"an export is about one problem, and {len(problems)} were given")
    target = named(gpu)
    if implementation:
        operators.implementation(operator.name, implementation)  # raises UsageError for an unknown name
    with Store.open(db) as store:
        stored = store.attempts(operator.name, canonical(problems[0]), target.name, implementation)
        verdicts = store.verdicts([row.id for row in stored])
    if not stored:
        command = search_command(operator, problems[0], target)
        raise NoValidConfigError(f"nothing is stored about this problem on {target.name}: search first: {command}")
    latest = [row for row in stored if row.attempt.identity.policy == stored[-1].attempt.identity.policy]
    if storage is not None:
        name = study or f"{problem_title(operator.name, problems[0])} on {target.name}"
        trials = optuna_study.write(storage, name, latest, verdicts, _choices(operator, problems[0], target))
        typer.echo(f"{counted(trials, 'trial', 'trials')} of the study {name!r}: {storage}")
        return
    text = json.dumps(attempts.document([row.attempt for row in latest]), indent=1)
    if out is None:
        typer.echo(text)
        return
    out.write_text(text, encoding="utf-8")
    typer.echo(f"{counted(len(latest), 'attempt', 'attempts')}: {out}")


def _refuse_options(form: str, storage: str | None, study: str | None, out: Path | None) -> None:
    if form not in ("t4", "optuna"):
        raise UsageError(f"--format {form!r}: give t4 or optuna")
    if form == "optuna" and storage is None:
        raise UsageError("--format optuna needs the URL of a storage, such as sqlite:///study.db")
    if form == "optuna" and out is not None:
        raise UsageError("--out is for T4 files: a study goes to its URL")
    if form == "t4" and (storage or study):
        raise UsageError("a URL and --study are for --format optuna")


def _choices(operator: Operator[Any], problem: Any, target: GPU) -> dict[str, dict[str, Sequence[Value]]]:
    """Return implementation → parameter → choices of the current spaces for the problem."""
    serving = [
        implementation
        for implementation in operators.implementations(operator.name)
        if implementation.refusal(problem, target.arch) is None
    ]
    return {implementation.name: dict(implementation.space(problem, target.arch).choices) for implementation in serving}
