"""`tuner bench`: our best kernel against peers on this machine's GPU, or a forecast without one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tuner import arch, bench
from tuner.arch import GPU
from tuner.backends import gpu
from tuner.bench import Comparison, Forecast
from tuner.bench.page import page
from tuner.cli.config_selection import snapshot
from tuner.cli.output import DbOption, JsonOption, emit_json, literal, say, table, wrapped
from tuner.errors import MachineError
from tuner.evaluate.measure.gpu_device import Physical
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.report import default_path, write
from tuner.spec.operator import Operator
from tuner.spec.problem import to_fields
from tuner.store.records import Snapshot

_ASSUMED = "H200"  # if there is no GPU and none is named
_FORECAST = "predicted for {}, nothing was timed"


def bench_command(
    operator: Operator[Any],
    problems: Sequence[Any],
    *,
    gpu_name: Annotated[str | None, typer.Option("--gpu", help="predict for this one where it is not here")] = None,
    inputs: Annotated[
        str | None, typer.Option(help=literal("kind of inputs [default: the first of the operator]"))
    ] = None,
    graph: Annotated[
        bool, typer.Option("--graph", help="replay our plans from CUDA graphs, in the ratios too")
    ] = False,
    out: Annotated[Path | None, typer.Option(help=literal("where the page goes [default: reports/out/…]"))] = None,
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """Race what the dispatcher serves against every peer, interleaved, outputs checked.

    Several problems, as with --seq-len 128..131072, are drawn as lines over what varies.
    """
    target, here = _target(gpu_name)
    kind, records = bench.inputs_kind(operator, inputs), snapshot(db)
    if here:
        policy = MeasurementPolicy(launch="graph" if graph else "eager")
        results: list[Any] = [_compared(operator, problem, target, policy, kind, records) for problem in problems]
    else:
        results = [bench.forecast(operator, problem, target, records) for problem in problems]
    path = out or default_path(f"bench-{operator.name}", target.name, problems)
    write(page(results), path)
    if as_json:
        emit_json([result.data() for result in results])
    else:
        _print(operator.name, results)
        typer.echo(f"report: {path}")
    if not here:
        _nothing_timed(target, asked=gpu_name is not None)


def _target(name: str | None) -> tuple[GPU, bool]:
    """Return (GPU, whether it is in this machine)."""
    here = gpu.current_gpu() if gpu.available() else None
    target = gpu.named(name) if name else here or arch.gpu(_ASSUMED)
    return target, here is not None and target.name == here.name


def _compared(
    operator: Operator[Any], problem: Any, target: GPU, policy: MeasurementPolicy, kind: str, records: Snapshot
) -> Comparison:
    related = bench.context(operator, problem)
    context = (bench.contender(*related, target, records),) if related else ()
    ours = bench.contender(operator, problem, target, records)
    say(f"racing {operator.name} {bench.formatted_problem(operator.name, to_fields(problem))}")
    return bench.compare(ours, Physical(), policy, context=context, kind=kind)


def _print(operator: str, results: Sequence[Comparison | Forecast]) -> None:
    first = results[0]
    how = f"on {first.device['gpu']}, {first.policy}" if isinstance(first, Comparison) else _FORECAST.format(first.gpu)
    for part in bench.tables(results):
        table(f"{operator} {part.title}: {how}", part.columns, part.rows, right=part.numbers)
    if isinstance(first, Forecast):
        for times in dict.fromkeys(result.times for result in results if isinstance(result, Forecast)):
            typer.echo(wrapped(f"predicted time: {times}"))
    if sentence := bench.leaders(results):
        typer.echo(wrapped(sentence))


def _nothing_timed(target: GPU, *, asked: bool) -> None:
    """Report that nothing was timed. Raises MachineError unless a forecast was requested."""
    sentence = f"nothing was timed: the tables are predictions for {target.name}"
    if asked:
        say(sentence)
        return
    why = gpu.trouble() or "this machine has no GPU"
    raise MachineError(f"{why}, and {sentence}. Ask for them with --gpu {target.name}")
