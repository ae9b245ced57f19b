"""`tuner replay`: how few tries a sampler needs on a recorded space."""

import math
from pathlib import Path
from typing import Annotated

import typer

from tuner import replay
from tuner.cli.output import JsonOption, emit_json, table
from tuner.errors import UsageError
from tuner.replay import files
from tuner.sampler import METHODS

_TRIES = (25, 50, 100, 200)


def replay_command(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="a T4 or Kernel Tuner cache file, .json or .json.gz")],
    sampler: Annotated[str, typer.Option(help=f"one of {', '.join(METHODS)}")] = "gp",
    budget: Annotated[int, typer.Option(min=1, help="tries a run")] = 100,
    seeds: Annotated[int, typer.Option(min=1, help="runs")] = 10,
    noise: Annotated[bool, typer.Option(help="each try sees one recorded sample, not the value behind them")] = True,
    as_json: JsonOption = False,
) -> None:
    """Run a sampler against a recorded space, and say how near to its optimum it came."""
    if sampler not in METHODS:
        raise UsageError(f"unknown sampler {sampler!r} (known: {', '.join(METHODS)})")
    recording = files.read(path)
    done = replay.replay(recording, sampler, min(budget, len(recording.space)), range(seeds), noise=noise)
    tries = [count for count in (*_TRIES, done.true_values.shape[1]) if count <= done.true_values.shape[1]]
    shares = {count: (done.mean(count), done.percentile(count, 10)) for count in sorted(set(tries))}
    reached = {f"{share:.0%}": done.tries_to(share) for share in (0.95, 0.99)}
    if as_json:
        emit_json(
            {
                "recording": recording.name,
                "configs": len(recording.space),
                "sampler": sampler,
                "seeds": seeds,
                "fraction_of_optimum": {str(n): {"mean": mean, "p10": p10} for n, (mean, p10) in shares.items()},
                "median_tries_to": {share: n if math.isfinite(n) else None for share, n in reached.items()},
                "p_score": done.score,
            }
        )
        return
    rows = [(str(n), f"{mean:.3f}", f"{p10:.3f}") for n, (mean, p10) in shares.items()]
    title = f"{recording.name}: {len(recording.space)} configs, {sampler}, {seeds} seeds, fraction of the optimum"
    table(title, ("tries", "mean", "10th percentile"), rows, right=("tries", "mean", "10th percentile"))
    for share, count in reached.items():
        typer.echo(
            f"{share} of the optimum: {f'{count:.0f} tries' if math.isfinite(count) else 'not by half of the runs'}"
        )
    typer.echo(f"P-score against random search: {done.score:.3f}")
