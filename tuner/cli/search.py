"""`tuner search`: find, check and store the best config of one or more problems."""

import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from tuner import arch, summary, tune
from tuner.check import Checker
from tuner.cli.display import Display
from tuner.cli.output import DbOption, GpuOption, ImplementationOption, JsonOption, emit_json, listing, say
from tuner.errors import NoValidConfigError, UsageError
from tuner.nvrtc import Compiler
from tuner.operator import Operator, statics, to_fields
from tuner.result import Evidence
from tuner.sampler import METHODS
from tuner.session import evidence_for, session
from tuner.store import Store


def search(
    operator: Operator[Any],
    problems: Sequence[Any],
    *,
    gpu: GpuOption,
    effort: Annotated[str, typer.Option(help=f"how long to look: {', '.join(tune.EFFORTS)}")] = "normal",
    budget: Annotated[int | None, typer.Option(min=1, help="tries a problem; stands above --effort")] = None,
    seconds: Annotated[float | None, typer.Option(min=0, help="stop exploring a problem after this long")] = None,
    seed: Annotated[int, typer.Option(help="equal seeds search alike")] = 0,
    sampler: Annotated[str, typer.Option(help=f"one of {', '.join(METHODS)}")] = "gp",
    implementation: ImplementationOption = None,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="go on from what earlier searches stored")
    ] = True,
    workers: Annotated[int | None, typer.Option(min=1, help="processes [default: one a core]")] = None,
    report: Annotated[Path | None, typer.Option(help="where the report goes [default: reports/out/…]")] = None,
    db: DbOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no progress")] = False,
    as_json: JsonOption = False,
) -> None:
    """Search, check, store and report."""
    target = arch.gpu(gpu)
    if sampler not in METHODS:
        raise UsageError(f"unknown sampler {sampler!r} (known: {', '.join(METHODS)})")
    outcomes = []
    evidence = evidence_for(target)
    with (
        Store.open(db) as store,
        Compiler(workers) as compiler,
        Checker(workers) as checker,
        session(target, store, compiler, checker) as find,
        _interruptible() as stop,
    ):
        for problem in problems:
            request = tune.Request(
                operator,
                problem,
                target,
                effort=effort,
                budget=budget,
                seconds=seconds,
                seed=seed,
                method=sampler,
                resume=resume,
                implementation=implementation,
                command=_command_line(),
            )
            with Display(_title(request), evidence, quiet) as display:
                outcomes.append(find(request, display.step, stop.is_set))
            if stop.is_set():
                break
        path = summary.write(outcomes, report)
    _print(outcomes, path, as_json)
    if not any(outcome.record for outcome in outcomes):
        raise NoValidConfigError(f"no config passed its checks; the report says where each failed: {path}")


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets, so that a search can end with what it knows. The second one ends at once."""
    stop = threading.Event()

    def handler(_number: int, _frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        say("stopping: checking what was found so far (Ctrl-C again: at once)")

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, action in before.items():
            signal.signal(number, action)


def _title(request: tune.Request) -> str:
    gpu, device = request.gpu, request.gpu.device.name
    assumed = "" if gpu.name == device else f" (predictions assume {device})"
    return f"{request.operator.name} {_spell(request.problem)} on {gpu.name}{assumed}"


def _spell(problem: Any) -> str:
    data = to_fields(problem)
    return " ".join(f"{name}={data[name]}" for name in statics(problem))


def _command_line() -> str:
    return shlex.join(["tuner", *sys.argv[1:]])


def _print(outcomes: Sequence[tune.Outcome], path: Path, as_json: bool) -> None:
    if as_json:
        emit_json({"searches": [summary.data(outcome) for outcome in outcomes], "report": str(path)})
        return
    for outcome in outcomes:
        _print_winner(outcome)
    typer.echo(f"report: {path}")


def _print_winner(outcome: tune.Outcome) -> None:
    record, request = outcome.record, outcome.request
    tried = f"{len(outcome.tried)} tried" + (f", {outcome.reused} of them earlier" if outcome.reused else "")
    if record is None:
        typer.echo(f"{_title(request)}: nothing valid found ({tried}; {outcome.why_stopped})")
        return
    measured = record.evidence is Evidence.MEASURED
    standing = "measured" if measured else f"predicted, not validated on {request.gpu.name}"
    listing(f"{_title(request)}: winner ({standing})", summary.winner_rows(outcome))
