"""`tuner search`: find, check and store the best config of one or more problems."""

import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from tuner.arch import GPU
from tuner.backends import gpu as device
from tuner.backends.emulator import compiler as emulator_compiler
from tuner.backends.emulator.pool import PATIENCE_S
from tuner.backends.gpu import named
from tuner.base.assets import TEMPLATES
from tuner.cli.commands.search_farm import farmed
from tuner.cli.display import Display
from tuner.cli.fleet_display import FleetDisplay
from tuner.cli.output import (
    CheckSecondsOption,
    DbOption,
    GpuOption,
    ImplementationOption,
    JsonOption,
    literal,
    other_database,
    say,
)
from tuner.cli.search_results import show, title
from tuner.errors import NoValidConfigError, TemplateError, UsageError
from tuner.evaluate.check.declarations import broken
from tuner.evaluate.check.edges import too_large
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.report import default_path, prepare, summary
from tuner.report.headline import untuned_call
from tuner.results.attempt import Evidence
from tuner.search import fleet, study
from tuner.search.local_gpus import GpuExecutor, LocalGpu, chosen_gpus
from tuner.search.many_problems import Campaign, CampaignRequest, run
from tuner.search.portfolio import Terms
from tuner.search.sampler import METHODS, check_method
from tuner.search.session import Observe, evidence_for, why_predicted
from tuner.spec.instance import Instance
from tuner.spec.operator import Implementation, Operator
from tuner.store.locations import MEMORY

SideBySide = Callable[[CampaignRequest, Callable[[], bool]], Campaign]  # (request, stopped)
GpusOption = Annotated[
    str | None,
    typer.Option(
        "--gpus",
        metavar="all|0,2,4-7",
        help=literal("GPUs of this machine that search problems side by side [default: one]"),
        rich_help_panel="Several problems",
    ),
]

FarmOption = Annotated[
    str | None,
    typer.Option(
        "--farm",
        metavar="tls://HOST:PORT",
        help="a Dask scheduler whose workers search the problems; needs --db postgresql://…",
        rich_help_panel="Several problems",
    ),
]
InsecureFarmOption = Annotated[
    bool,
    typer.Option(
        "--insecure-farm", help="let --farm use tcp:// in a network that you trust", rich_help_panel="Several problems"
    ),
]
PredictedOption = Annotated[
    bool,
    typer.Option(
        "--predicted",
        help="with --farm: rank by prediction, on workers without a GPU",
        rich_help_panel="Several problems",
    ),
]


def search(
    operator: Operator[Any],
    problems: Sequence[Any],
    *,
    gpu: GpuOption,
    effort: Annotated[str, typer.Option(help=f"how long to look: {', '.join(study.EFFORTS)}")] = "normal",
    budget: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="tries a problem; stands above --effort")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(metavar="N", min=0, help="stop exploring a problem after this long")
    ] = None,
    seed: Annotated[int, typer.Option(help="equal seeds search alike")] = 0,
    sampler: Annotated[str, typer.Option(help=f"{', '.join(METHODS)}, or module:Class of an Optuna sampler")] = "gp",
    implementation: ImplementationOption = None,
    graph: Annotated[bool, typer.Option("--graph", help="time replays of CUDA graphs, where the GPU is here")] = False,
    l2: Annotated[str, typer.Option(help="cold or warm: what a timed launch finds in the L2 cache")] = "cold",
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="go on from what earlier searches stored")
    ] = True,
    retry: Annotated[
        bool, typer.Option("--retry", help="try again what failed or hung on the GPU in earlier searches")
    ] = False,
    history: Annotated[
        bool, typer.Option("--history/--no-history", help="learn from other GPUs, other sizes and earlier code")
    ] = True,
    portfolio: Annotated[
        int, typer.Option(metavar="N", min=1, help="most configs that are to serve problems which differ in sizes only")
    ] = Terms.most,
    regret: Annotated[
        float,
        typer.Option(metavar="N", min=0, help="how far a problem's config of the portfolio may be behind its best"),
    ] = Terms.within,
    gpus: GpusOption = None,
    farm: FarmOption = None,
    insecure_farm: InsecureFarmOption = False,
    predicted: PredictedOption = False,
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help=literal("processes [default: one a core; two fewer beside a GPU]")),
    ] = None,
    check_seconds: CheckSecondsOption = PATIENCE_S,
    report: Annotated[Path | None, typer.Option(help=literal("where the report goes [default: reports/out/…]"))] = None,
    db: DbOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no progress")] = False,
    as_json: JsonOption = False,
) -> bool:
    """Search, check, store and report; whether Ctrl-C ended it before its time."""
    check_method(sampler)
    target = named(gpu)
    request = CampaignRequest(
        tuple(
            study.SearchRequest(
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
                history=history,
                retry=retry,
            )
            for problem in problems
        ),
        Terms(portfolio, regret),
        MeasurementPolicy(l2=l2, launch="graph" if graph else "eager"),  # type: ignore[arg-type]  # which checks it
        workers,
        check_seconds,
        db,
    )
    page = report or default_path(operator.name, target.name, problems, other_database(db))
    if farm and gpus:
        raise UsageError("--farm and --gpus: give one of them, for workers of a farm have their GPUs")
    if (insecure_farm or predicted) and not farm:
        raise UsageError(f"{'--insecure-farm' if insecure_farm else '--predicted'} belongs to --farm: give that, too")
    if farm:
        side_by_side = partial(farmed, address=farm, insecure=insecure_farm, predicted=predicted, quiet=quiet)
    elif gpus:
        side_by_side = partial(_on_gpus, chosen_gpus(gpus, target), quiet=quiet)
    else:
        side_by_side = None
    return _search(request, page, side_by_side, quiet=quiet, as_json=as_json)


def _search(
    request: CampaignRequest, page: Path, side_by_side: SideBySide | None, *, quiet: bool, as_json: bool
) -> bool:
    """Check the request, then search and report; return whether Ctrl-C ended it early."""
    first = request.searches[0]
    serving, *_ = [search.implementations for search in request.searches]  # raises UsageError if all of them refuse
    _warn_of_promises(first, serving)
    evidence = _evidence(request.gpu) if side_by_side is None else None
    if evidence is Evidence.PREDICTED:
        _refuse_large_edges(first, serving)
    prepare(page)
    if side_by_side:
        words = "stopping: the problems under way are finished, no other starts (Ctrl-C again: stop now)"
    else:
        words = (
            f"stopping: checking what was found so far, at most {request.check_seconds:g} s a config "
            "(Ctrl-C again: stop now)"
        )
        _say_that_there_are_more(evidence)
    with _interruptible(words) as stop:
        if side_by_side or evidence is None:
            assert side_by_side is not None
            result = side_by_side(request, stop.is_set)
        else:
            result = run(request, partial(_shown, evidence, quiet), stop.is_set)
        summary.write(result.outcomes, page, result.families)
    show(result, page, as_json=as_json)
    _refuse_failed(result, page)
    return stop.is_set()


def _on_gpus(
    gpus: Sequence[LocalGpu], request: CampaignRequest, stopped: Callable[[], bool], *, quiet: bool
) -> Campaign:
    """Search the problems on several GPUs of this machine. Raises UsageError for a database in memory."""
    if request.db == MEMORY:
        raise UsageError("--gpus needs a database that several processes share: give --db a file or a server")
    say(f"searching on {', '.join(map(str, gpus))}")
    with GpuExecutor(gpus, say) as executor, FleetDisplay("GPU", quiet) as display:
        workers = fleet.Workers(executor, executor.capacity, measured=True, db=request.db or "", show=display.show)
        try:
            return fleet.run(request, workers, stopped)
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            raise


def _say_that_there_are_more(evidence: Evidence | None) -> None:
    if evidence is Evidence.MEASURED and (count := device.count()) > 1:
        say(f"one of {count} GPUs is used: --gpus all searches problems side by side on all of them")


def _evidence(target: GPU) -> Evidence:
    """Return the evidence of the search; print why nothing is timed if there is a GPU. Raises MachineError."""
    evidence = evidence_for(target)
    if evidence is Evidence.PREDICTED:
        emulator_compiler.compiler()  # needed for the finalists, so a missing one is reported before the search
        if why := why_predicted(target):
            say(f"nothing is timed for {target.name}: {why}")
    return evidence


def _refuse_large_edges(request: study.SearchRequest, tried: Sequence[Implementation[Any, Any]]) -> None:
    """Raise TemplateError before the search if no finalist could be checked."""
    for implementation in tried:
        if reason := too_large(Instance.default(request.operator, implementation, request.problem, request.gpu.arch)):
            raise TemplateError(f"{request.operator.name}/{implementation.name}: {reason}")


def _refuse_failed(result: Campaign, page: Path) -> None:
    """Raise NoValidConfigError if a problem has no record."""
    if failed := [outcome for outcome in result.outcomes if outcome.record is None]:
        which = f" for {len(failed)} of {len(result.outcomes)} problems" if len(result.outcomes) > 1 else ""
        tried = any(outcome.tried for outcome in failed)
        what, place_in_report = ("passed its checks", "where each failed") if tried else ("was tried", "why")
        raise NoValidConfigError(f"no config {what}{which}; the report says {place_in_report}: {page}")


def _warn_of_promises(request: study.SearchRequest, tried: Sequence[Implementation[Any, Any]]) -> None:
    """Warn of violated promises of a user's operator before a search; tests check those of this package."""
    if request.operator.folder.parent == TEMPLATES:
        return
    problem, target = request.problem, request.gpu
    for implementation in tried:
        for sentence in broken(Instance.default(request.operator, implementation, problem, target.arch), target):
            say(f"warning: {implementation.name}: {sentence}")


@contextmanager
def _shown(evidence: Evidence, quiet: bool, request: study.SearchRequest) -> Iterator[Observe]:
    untuned = untuned_call(request)
    with Display(title(request), evidence, request.gpu, quiet, untuned.instance.key if untuned else None) as display:
        yield display.step


@contextmanager
def _interruptible(words: str) -> Iterator[threading.Event]:
    """Provide an event that the first Ctrl-C sets, so that a search can end with its results; the second one exits at
    once.
    """
    stop = threading.Event()

    def handler(_number: int, _frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        say(words)

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, action in before.items():
            signal.signal(number, action)


def _command_line() -> str:
    return shlex.join(["tuner", *sys.argv[1:]])
