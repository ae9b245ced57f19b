"""`tuner report`: the report of what is stored about problems, without searching."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tuner import arch, campaign, choice, summary, tune
from tuner.check import Checker
from tuner.cli.found import title
from tuner.cli.output import DbOption, GpuOption, literal
from tuner.errors import NoValidConfigError, UsageError
from tuner.evaluate import Predictor
from tuner.nvrtc import Compiler
from tuner.operator import Operator, canonical
from tuner.portfolio import Terms
from tuner.report import default_path, write
from tuner.store import Store


def report(
    operator: Operator[Any],
    problems: Sequence[Any],
    *,
    gpu: GpuOption,
    out: Annotated[
        Path | None,
        typer.Option(help=literal("where it goes [default: reports/out/… for html, stdout for the others]")),
    ] = None,
    form: Annotated[str, typer.Option("--format", help="html, md or json")] = "html",
    db: DbOption = None,
) -> None:
    """Write the report of what is stored about a problem, without searching."""
    if form not in summary.FORMATS:
        raise UsageError(f"--format {form!r}: give one of {', '.join(summary.FORMATS)}")
    target = arch.gpu(gpu)
    outcomes = []
    with Store.open(db) as store, Compiler() as compiler, Checker() as checker:
        for problem in problems:
            request = tune.Request(operator, problem, target, command=choice.search_command(operator, problem, target))
            outcome = tune.recall(request, store, Predictor(operator, problem, target, compiler, checker))
            if not outcome.tried:
                raise NoValidConfigError(_nothing(store, request))
            outcomes.append(outcome)
    families = campaign.known(outcomes, Terms())
    found = summary.text(outcomes, form, families)
    if out is None and form != "html":
        typer.echo(found)
        return
    path = out or default_path(operator.name, target.name, problems)
    write(found, path)
    typer.echo(f"report: {path}")


def _nothing(store: Store, request: tune.Request) -> str:
    """Why there is nothing to report: attempts of other source, compilers or models are none of today's."""
    stored = store.attempts(request.operator.name, canonical(request.problem), request.gpu.name)
    what = f"only attempts of other code, cost models or compilers ({len(stored)}) are" if stored else "nothing is"
    return f"{what} stored about {title(request)}: search first: {request.command}"
