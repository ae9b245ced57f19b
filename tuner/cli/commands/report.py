"""`tuner report`: the report of stored results, without a search."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from tuner.arch import GPU
from tuner.backends.gpu import named
from tuner.cli.commands.import_study import IMPORTED
from tuner.cli.output import DbOption, GpuOption, literal, other_database
from tuner.cli.search_results import title
from tuner.compiler.nvrtc import Compiler
from tuner.errors import NoValidConfigError, UsageError
from tuner.evaluate.check.checker import Checker
from tuner.evaluate.measure.policy import is_of_times
from tuner.evaluate.predictor import Predictor, Remembered
from tuner.report import default_path, summary, write
from tuner.search import many_problems, study
from tuner.search.portfolio import Terms
from tuner.search.request import code_of
from tuner.spec import command_line
from tuner.spec.operator import Operator
from tuner.spec.problem import canonical
from tuner.store.sql import Store


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
    target = named(gpu)
    code = code_of(operator)
    with Store.open(db) as store, Compiler() as compiler, Checker() as checker:
        machines = compiler, checker
        outcomes = [_recalled(_request(operator, problem, target, code), store, machines) for problem in problems]
    kinds = dict.fromkeys(outcome.evidence for outcome in outcomes)
    by_kind = [[outcome for outcome in outcomes if outcome.evidence is kind] for kind in kinds]
    families = [family for group in by_kind for family in many_problems.portfolios(group, Terms())]
    text = summary.text(outcomes, form, families)
    if out is None and form != "html":
        typer.echo(text)
        return
    path = out or default_path(operator.name, target.name, problems, other_database(db))
    write(text, path)
    typer.echo(f"report: {path}")


def _request(operator: Operator[Any], problem: Any, target: GPU, code: str) -> study.SearchRequest:
    command = command_line.search_command(operator, problem, target)
    return study.SearchRequest(operator, problem, target, command=command, code_digest=code)


def _recalled(request: study.SearchRequest, store: Store, machines: tuple[Compiler, Checker]) -> study.Outcome:
    """Return the latest valid measured results, or else the predicted ones."""
    stored = store.attempts(request.operator.name, canonical(request.problem), request.gpu.name)
    policies = dict.fromkeys(row.attempt.identity.policy for row in reversed(stored))
    predicting = request.gpu, *machines
    for evaluator in (
        *(Remembered(policy, *predicting) for policy in policies if is_of_times(policy)),
        Predictor(*predicting),
    ):
        outcome = study.recall(request, store, evaluator)
        if outcome.tried:
            return _with_its_search(_with_its_record(outcome, store), store)
    what = f"only attempts of other code, cost models or compilers ({len(stored)}) are" if stored else "nothing is"
    raise NoValidConfigError(f"{what} stored about {title(request)}: search first: {request.command}")


def _with_its_search(outcome: study.Outcome, store: Store) -> study.Outcome:
    """Add how the searches that made these attempts went: why the last one stopped, and their total time."""
    request = outcome.request
    about = (request.operator.name, canonical(request.problem), request.gpu.name)
    searches = [s for s in store.studies(*about) if s.method != IMPORTED]
    if not searches:
        return replace(outcome, why_stopped="not stored: these attempts were imported", seconds=0.0)
    last = searches[-1]
    seconds = sum((_moment(s.ended) - _moment(s.started)).total_seconds() for s in searches if s.ended)
    with suppress(UsageError):  # a database of another version may name an unknown sampler
        request = replace(request, effort=last.effort, budget=last.budget, method=last.method, seed=last.seed)
    why = last.why or "it was interrupted before its end"
    return replace(outcome, request=request, why_stopped=why, seconds=seconds)


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _with_its_record(outcome: study.Outcome, store: Store) -> study.Outcome:
    """Replace the record by the serving one if it belongs to these attempts: a final race may have chosen
    another one.
    """
    request = outcome.request
    record = store.record(request.operator.name, canonical(request.problem), request.gpu.name)
    configs = {
        tried.attempt.identity: tried.attempt.config for tried in outcome.tried
    }  # stored fields are sorted by name
    if record is None or record.identity not in configs:
        return outcome
    races = store.races(request.operator.name, canonical(request.problem), request.gpu.name)
    final = next((race for race in reversed(races) if race.settled(record)), None)
    return replace(outcome, record=replace(record, config=configs[record.identity]), final=final)
