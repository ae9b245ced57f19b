"""`tuner show`, `explain`, `report`, `operators`: what is known, why it is served, and how it was found."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from tuner import arch, campaign, choice, operators, summary, tune
from tuner.check import Checker
from tuner.cli.found import title
from tuner.cli.inspect import Chosen, choose, snapshot
from tuner.cli.output import (
    ConfigOption,
    DbOption,
    GpuOption,
    ImplementationOption,
    JsonOption,
    emit_json,
    literal,
    say,
    table,
)
from tuner.errors import NoValidConfigError, TunerError, UsageError
from tuner.evaluate import Predictor
from tuner.nvrtc import Compiler
from tuner.operator import Operator, canonical, from_fields, to_fields
from tuner.portfolio import Terms
from tuner.result import Evidence, Identity, TuningRecord, to_data
from tuner.store import Store


def show(
    operator: Annotated[str | None, typer.Argument(help="only this operator's records")] = None,
    gpu: Annotated[str | None, typer.Option(help="only records of this GPU")] = None,
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the records: the best config known for each problem and GPU."""
    wanted = arch.gpu(gpu).name if gpu else None
    if operator is not None:
        operators.load(operator)
    with Store.open(db) as store:
        records = store.records(operator=operator, gpu=wanted)
        place = store.place
    if as_json:
        emit_json({"records": [to_data(record) for record in records]})
        return
    if not records:
        say(f"no records in {place}: find some with `tuner search`")
        return
    names = ("operator", "problem", "GPU", "winner", "config", "evidence", "margin", "tried", "made")
    table(f"records in {place}", names, [_row(record) for record in records], right=("margin", "tried"))
    for record in records:
        if flaws := record.resources.flaws:
            identity = record.identity
            say(f"{identity.operator} on {identity.gpu}, {_problem(identity)}: {'; '.join(flaws)}")


def _row(record: TuningRecord) -> tuple[str, ...]:
    identity = record.identity
    return (
        identity.operator,
        _problem(identity),
        identity.gpu,
        identity.implementation,
        _spell(record.config),
        standing(record),
        f"{record.margin:.1%}",
        str(record.tried),
        record.created,
    )


def _problem(identity: Identity) -> str:
    """The fields that are not the default; all of them where the operator is not here, or has other fields today."""
    data = summary.parse(identity.problem)
    try:
        problem = from_fields(operators.load(identity.operator).problem, data)
    except (TunerError, TypeError, KeyError):
        return _spell(data)
    return _spell(choice.telling(problem)) or "the defaults"


def standing(record: TuningRecord) -> str:
    """Measured time, or that the rank is only predicted."""
    if record.evidence is Evidence.MEASURED and record.measurement:
        return f"measured {record.measurement.time_us:.1f} us"
    return "predicted"


def _spell(data: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in data.items())


def explain(
    operator: Operator[Any],
    problems: Sequence[Any],
    *,
    gpu: GpuOption,
    implementation: ImplementationOption = None,
    config: ConfigOption = None,
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say which record serves a problem and why; with --config, which constraint refuses a config."""
    chosen = choose(operator, problems, gpu, implementation, config, db)
    if config:
        _explain_config(chosen, as_json)
        return
    known = snapshot(db)
    served = choice.choose(operator, chosen.problem, [chosen.gpu], known)
    found = choice.explain(operator, served, known)
    if as_json:
        emit_json({**asdict(found), "record": to_data(found.record) if found.record else None})
    else:
        typer.echo(str(found))


def _explain_config(chosen: Chosen, as_json: bool) -> None:
    space = chosen.implementation.space(chosen.problem, chosen.gpu.arch)
    reasons = space.refusals(chosen.config)
    if as_json:
        emit_json({"config": to_fields(chosen.config), "valid": not reasons, "refused_by": list(reasons)})
        return
    typer.echo(f"{chosen.implementation.name} {_spell(to_fields(chosen.config))}")
    typer.echo("  is in the space" if not reasons else "\n".join(f"  refused: {reason}" for reason in reasons))
    removed = [(reason, f"{count:,}") for reason, count in space.counts()]
    about = "" if space.enumerated else "about "
    title = f"the space: {about}{len(space):,} of {space.raw_size:,} combinations are valid"
    table(title, ("constraint", "removes"), removed, right=("removes",))


def report(
    operator: Operator[Any],
    problems: Sequence[Any],
    *,
    gpu: GpuOption,
    out: Annotated[Path | None, typer.Option(help=literal("where it goes [default: reports/out/…]"))] = None,
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
    if form == "html":
        typer.echo(f"report: {summary.write(outcomes, out, families)}")
    else:
        typer.echo(summary.text(outcomes, form, families))


def _nothing(store: Store, request: tune.Request) -> str:
    """Why there is nothing to report: attempts of other source, compilers or models are none of today's."""
    stored = store.attempts(request.operator.name, canonical(request.problem), request.gpu.name)
    what = f"only attempts of other code, cost models or compilers ({len(stored)}) are" if stored else "nothing is"
    return f"{what} stored about {title(request)}: search first: {request.command}"


def list_operators(as_json: JsonOption = False) -> None:
    """List the operators, their problems and their implementations."""
    found = [operators.load(name) for name in operators.names()]
    if as_json:
        emit_json([_operator_data(operator) for operator in found])
        return
    for operator in found:
        typer.echo(f"{operator.name}: {operator.summary}")
        for each in operators.implementations(operator.name):
            names = ", ".join(f.name for f in fields(each.config))
            typer.echo(f"  {each.name}: {each.summary} ({names})")
        names = ", ".join(f.name for f in fields(operator.problem))
        typer.echo(f"  problem: {names}")


def _operator_data(operator: Operator[Any]) -> dict[str, Any]:
    return {
        "name": operator.name,
        "summary": operator.summary,
        "problem": {f.name: {"kind": f.metadata["kind"], "help": f.metadata["help"]} for f in fields(operator.problem)},
        "arguments": [{"name": a.name, "dims": a.dims, "role": a.role.value, "doc": a.doc} for a in operator.arguments],
        "implementations": [
            {"name": each.name, "summary": each.summary, "config": [f.name for f in fields(each.config)]}
            for each in operators.implementations(operator.name)
        ],
    }
