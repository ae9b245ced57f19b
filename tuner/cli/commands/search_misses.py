"""`tuner search --misses PLACE`: search the problems that applications missed, the most frequent first."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from tuner import arch, operators
from tuner.arch import GPU
from tuner.base.canonical_json import decode
from tuner.base.fields import formatted
from tuner.cli.commands.search import search
from tuner.cli.output import say
from tuner.dispatcher.config_choice import refusal
from tuner.errors import NoValidConfigError, TunerError
from tuner.spec.operator import Operator
from tuner.spec.problem import canonical, from_fields
from tuner.store import misses
from tuner.store.misses import Missed

_NOT_OFFERED = ("gpu", "implementation", "report", "as_json")  # options for a single problem or document
Wanted = tuple[Operator[Any], GPU, Any]  # a problem to search


def command() -> Callable[..., None]:
    """Return the function from whose signature Typer builds the command."""
    place = inspect.Parameter(
        "misses_place",
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[
            str, typer.Option("--misses", metavar="PLACE", help="the file or server that TUNER_MISSES named")
        ],
    )
    gpu = inspect.Parameter(
        "gpu",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[str | None, typer.Option("--gpu", help="only misses on this GPU")],
    )
    options = [
        parameter
        for name, parameter in inspect.signature(search).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name not in _NOT_OFFERED
    ]

    def run(*, misses_place: str, gpu: str | None, **chosen: Any) -> None:
        _search_all(misses_place, gpu, chosen)

    parameters = [place, gpu, *options]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what Typer reads
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _search_all(place: str, gpu: str | None, options: dict[str, Any]) -> None:
    """Search all problems. Raises NoValidConfigError afterwards if some problem has no record."""
    missed, refused = _read(place)
    for sentence in refused:
        say(f"passed over: {sentence}")
    wanted = list(_known(missed, arch.gpu(gpu).name if gpu else None))
    open_ = _without_record(wanted, options["db"])
    counts = f"{len(open_)} to search, {len(wanted) - len(open_)} have a record"
    say(f"{len(missed)} missed problems in {_label(place)}: {counts}")
    failures = []
    for (name, target), group in groupby(open_, key=lambda each: (each[0].name, each[1].name)):
        problems = [problem for _, _, problem in group]
        try:
            stopped = search(operators.load(name), problems, gpu=target, **options)
        except NoValidConfigError as error:
            say(f"{name} on {target}: {error}")
            failures.append(name)
            continue
        if stopped:
            say("stopped: the same command goes on from here")
            return
    if failures:
        raise NoValidConfigError(f"{len(failures)} of the searches ended without a record for each problem")


def _read(place: str) -> tuple[list[Missed], list[str]]:
    if "://" not in place:
        return misses.read(Path(place).expanduser())
    from tuner.store.sql import Store

    with Store.open(place) as store:
        return store.misses()


def _known(missed: Sequence[Missed], gpu: str | None) -> Iterator[Wanted]:
    """Yield the problems with known operators and GPUs; print and skip the others."""
    for miss in missed:
        if gpu not in (None, miss.gpu):
            continue
        try:
            operator, target = operators.load(miss.operator), arch.gpu(miss.gpu)
            yield operator, target, from_fields(operator.problem, decode(miss.problem))
        except (TunerError, TypeError, ValueError) as error:
            what = f"{miss.operator} {formatted(decode(miss.problem))} on {miss.gpu}"
            say(f"passed over: {what} ({miss.calls} calls): {error}")


def _without_record(wanted: Sequence[Wanted], db: str | None) -> list[Wanted]:
    """Return the problems without a valid record of their own in the database."""
    from tuner.store.sql import Store

    with Store.open(db) as store:
        return [entry for entry in wanted if not _has_record(store, *entry)]


def _has_record(store: Any, operator: Operator[Any], target: GPU, problem: Any) -> bool:
    record = store.record(operator.name, canonical(problem), target.name)
    return record is not None and refusal(record) is None


def _label(place: str) -> str:
    scheme, url, _ = place.partition("://")
    return f"{scheme}://…" if url else place
