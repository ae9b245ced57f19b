"""The part of `tuner import` that takes an Optuna study: its trials guide later searches of the same problem."""

import json
from typing import Any

import typer

from tuner import operators
from tuner.backends.gpu import named
from tuner.cli.output import say
from tuner.errors import NoValidConfigError, UsageError
from tuner.report import optuna_import
from tuner.report.notation import counted
from tuner.results.attempt import Evidence
from tuner.spec.command_line import search_command
from tuner.spec.problem import canonical, from_fields
from tuner.store.sql import Store

IMPORTED = "imported"  # the method of a session that searched nothing
_SHOWN = 3  # reasons for refused trials


def import_study(
    url: str,
    study: str | None,
    *,
    operator: str | None,
    problem: str | None,
    gpu: str | None,
    implementation: str | None,
    evidence: str | None,
    db: str | None,
) -> None:
    """Add the trials of a study to the database. Options stand above what the study says of itself."""
    stored = optuna_import.load(url, study)
    about = stored.attributes
    name = operator or _text(about.get("operator"))
    target = gpu or _text(about.get("gpu"))
    for option, value in (("--operator", name), ("--gpu", target)):
        if not value:
            raise UsageError(f"the study {stored.name!r} does not name it: give {option}")
    of = operators.load(str(name))
    if implementation:
        operators.implementation(of.name, implementation)  # raises UsageError for an unknown name
    instance, device = _problem(of, problem or _text(about.get("problem")) or "{}"), named(str(target))
    kind = _evidence(evidence or _text(about.get("evidence")))
    imported = optuna_import.attempts_of(stored, of, instance, device, implementation, kind)
    for reason, trials in list(imported.refused.items())[:_SHOWN]:
        say(f"{counted(trials, 'trial', 'trials')} left out: {reason}")
    if not imported.attempts:
        raise NoValidConfigError(f"no trial of the study {stored.name!r} is a config of {of.name}")
    with Store.open(db) as store:
        before = {_key(row.attempt) for row in store.attempts(of.name)}
        new = [attempt for attempt in imported.attempts if _key(attempt) not in before]
        if new:
            session = store.begin_study(
                operator=of.name, problem=canonical(instance), gpu=device.name, command="tuner import",
                seed=0, method=IMPORTED, effort=IMPORTED, budget=len(new),
            )  # fmt: skip
            store.append(new, session)
            store.end_study(session, f"the study {stored.name!r} was imported")
    known = len(imported.attempts) - len(new)
    again = f" ({known} were imported before)" if known else ""
    typer.echo(f"{counted(len(new), 'attempt', 'attempts')} of the study {stored.name!r} imported as history{again}")
    typer.echo(f"a search takes them into account: {search_command(of, instance, device)}")


def _key(attempt: Any) -> tuple[Any, ...]:
    return attempt.identity, json.dumps(attempt.config, sort_keys=True), attempt.value


def _problem(operator: Any, text: str) -> Any:
    try:
        return from_fields(operator.problem, dict(json.loads(text)))
    except (TypeError, ValueError) as error:
        example = "--problem '{\"head_dim\": 72}'"
        raise UsageError(f"the problem {text[:80]!r}: {error}; give the fields as JSON, such as {example}") from error


def _evidence(text: str | None) -> Evidence:
    try:
        return Evidence(text or Evidence.MEASURED.value)
    except ValueError:
        raise UsageError(f"evidence {text!r}: give measured (times in µs) or predicted (costs)") from None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
