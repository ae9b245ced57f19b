"""`tuner replay`: how many tries a sampler needs on a recorded space."""

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from tuner.cli.output import JsonOption, emit_json, table
from tuner.report.notation import counted
from tuner.search import replay
from tuner.search.replay import Replay, files, t1
from tuner.search.sampler import METHODS

_TRIES = (25, 50, 100, 200)


def replay_command(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="a T4 or Kernel Tuner cache file, .json or .json.gz")],
    sampler: Annotated[str, typer.Option(help=f"one of {', '.join(METHODS)}")] = "gp",
    budget: Annotated[int, typer.Option(metavar="N", min=1, help="tries a run")] = 100,
    seeds: Annotated[int, typer.Option(metavar="N", min=1, help="runs")] = 10,
    history: Annotated[
        Path | None, typer.Option(metavar="FILE", help="a recording of the same kernel elsewhere, searched first")
    ] = None,
    history_tries: Annotated[int, typer.Option(metavar="N", min=1, help="tries of that search")] = 200,
    space: Annotated[
        Path | None, typer.Option(metavar="FILE", help="a T1 file: what FILE lacks of its space has failed")
    ] = None,
    noise: Annotated[bool, typer.Option(help="each try sees one recorded sample, not the value behind them")] = True,
    as_json: JsonOption = False,
) -> None:
    """Run a sampler against a recorded space, and say how near to its optimum it came."""
    recording = files.read(path, t1.read(space) if space else None)
    past = files.read(history) if history else None
    tried = min(budget, len(recording.space))
    result = replay.replay(recording, sampler, tried, range(seeds), noise=noise, past=past, past_tries=history_tries)
    if as_json:
        begun = {"recording": past.name, "tries": history_tries} if past else None
        emit_json({**_data(result), "history": begun})
        return
    after = f", after {history_tries} tries on {past.name}" if past else ""
    _print(f"{recording.name}: {len(recording.space)} configs, {sampler}, {seeds} seeds{after}", result)


def _shares(replayed: Replay) -> dict[int, tuple[float, float]]:
    """Return the mean and 10th percentile of the fraction of the optimum, by number of tries."""
    budget = replayed.true_values.shape[1]
    tries = sorted({count for count in (*_TRIES, budget) if count <= budget})
    return {count: (replayed.mean(count), replayed.percentile(count, 10)) for count in tries}


def _reached(replayed: Replay) -> dict[str, float]:
    return {f"{share:.0%}": replayed.tries_to(share) for share in (0.95, 0.99)}


def _data(replayed: Replay) -> dict[str, Any]:
    return {
        "recording": replayed.recording.name,
        "configs": len(replayed.recording.space),
        "sampler": replayed.method,
        "seeds": len(replayed.true_values),
        "fraction_of_optimum": {str(n): {"mean": mean, "p10": p10} for n, (mean, p10) in _shares(replayed).items()},
        "median_tries_to": {share: n if math.isfinite(n) else None for share, n in _reached(replayed).items()},
        "p_score": replayed.score,
    }


def _print(title: str, replayed: Replay) -> None:
    rows = [(str(n), f"{mean:.3f}", f"{p10:.3f}") for n, (mean, p10) in _shares(replayed).items()]
    names = ("tries", "mean", "10th percentile")
    table(f"{title}: fraction of the optimum", names, rows, right=names)
    for share, count in _reached(replayed).items():
        reached = f"after {counted(int(count), 'try', 'tries')}" if math.isfinite(count) else "not by half of the runs"
        typer.echo(f"{share} of the optimum: {reached}")
    typer.echo(f"P-score against random search: {replayed.score:.3f}")
