"""`tuner prove`: check every implementation on this machine's GPU."""

import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from tuner import operators
from tuner.arch import GPU
from tuner.backends import gpu as gpu_door
from tuner.base.fields import formatted
from tuner.cli.output import DbOption, JsonOption, emit_json, say, table
from tuner.cli.search_results import problem_title
from tuner.dispatcher import config_choice
from tuner.errors import NoValidConfigError, UsageError
from tuner.results.codec import to_data
from tuner.search.prove import Judged, Prover, prover
from tuner.spec.operator import Operator
from tuner.spec.problem import to_fields
from tuner.store import locations
from tuner.store.records import Snapshot

HereOption = Annotated[str, typer.Option("--gpu", help="the GPU of this machine: here, or its name")]
RetryOption = Annotated[bool, typer.Option("--retry", help="judge again what was found wrong, or hung")]


def prove_command(
    operator: Operator[Any],
    problems: Sequence[Any],
    *,
    gpu: HereOption = gpu_door.HERE,
    retry: RetryOption = False,
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run every default config over the operator's edge cases on the GPU of this machine, and keep the verdicts."""
    _prove([(operator, problem) for problem in problems], gpu, retry, db, as_json)


def prove_all(
    *, gpu: HereOption = gpu_door.HERE, retry: RetryOption = False, db: DbOption = None, as_json: JsonOption = False
) -> None:
    """Run every default config of every operator on its default problem."""
    chosen = []
    for name in operators.names():
        operator = operators.load(name)
        try:
            chosen.append((operator, operator.problem()))
        except TypeError:  # fields without a default
            say(f"{name} has no problem by default: `tuner prove {name} --help` names its options")
    _prove(chosen, gpu, retry, db, as_json)


def _prove(chosen: Sequence[tuple[Operator[Any], Any]], name: str, retry: bool, db: str | None, as_json: bool) -> None:
    target = gpu_door.named(name)
    rows, documents = [], []
    with prover(target, db, retry=retry) as prove:
        for operator, problem in chosen:
            title, started = problem_title(operator.name, problem), time.monotonic()
            judged = list(_shown(operator, problem, prove))
            say(f"{title}: {len(judged)} judged in {time.monotonic() - started:.0f} s")
            serves = _serves(operator, problem, target, db)
            rows += [(title, *_row(one, serves)) for one in judged]
            about = {"operator": operator.name, "problem": to_fields(problem), "serves": serves}
            documents.append({**about, "judged": [_data(one) for one in judged]})
    if as_json:
        emit_json({"gpu": target.name, "problems": documents})
    else:
        names = ("problem", "implementation", "on this GPU", "serves without a record", "why")
        table(f"default configs on the {target.name} of this machine", names, rows)
    if wrong := [row for row in rows if row[2] == _WRONG]:
        raise NoValidConfigError(f"{wrong[0][1]} is wrong on this GPU: {wrong[0][4]}")


_RIGHT, _WRONG, _NOT_JUDGED = "right", "WRONG", "not judged"


def _shown(operator: Operator[Any], problem: Any, prove: Prover) -> Iterator[Judged]:
    """Yield each result after printing a line of progress."""
    for one in prove(operator, problem):
        note = " (judged earlier)" if one.earlier else ""
        say(f"  {operator.name}/{one.implementation}: {_standing(one)}{note}")
        yield one


def _standing(one: Judged) -> str:
    return _NOT_JUDGED if one.proof is None else _RIGHT if one.right else _WRONG


def _row(one: Judged, serves: str) -> tuple[str, ...]:
    config = formatted(one.config) if one.implementation == serves else ""
    return one.implementation, _standing(one), config, one.reason


def _serves(operator: Operator[Any], problem: Any, target: GPU, db: str | None) -> str:
    """Return the implementation that a call without a record runs now; empty if all were found wrong."""
    records = Snapshot.load([db or locations.database()])
    try:
        return config_choice.default(operator, problem, [target], records).instance.implementation.name
    except UsageError:
        return ""


def _data(one: Judged) -> dict[str, Any]:
    verdict = to_data(one.proof.verdict) if one.proof else None
    about = {"implementation": one.implementation, "config": one.config, "right": one.right, "verdict": verdict}
    return {**about, "why_not": one.why_not, "earlier": one.earlier}
