"""Compare the number of tries that searches need on recorded spaces, with Kernel Tuner's strategies for reference.

    SPACES_DIR=... python benchmarks/search.py [--methods gp,tpe,kt:genetic_algorithm] [--seeds 20] [--budget 200]

Reads every recording in a folder (T4 or Kernel Tuner cache, .json or .json.gz), named `kernel__GPU` as in the list of
development spaces below. Exhaustive measurements are in the public benchmark hub
(github.com/AutoTuningAssociation/benchmark_hub); none is part of this repository. Prints a table per group of spaces:
fraction of the optimum after 25, 50, 100 and 200 tries (mean and 10th percentile over the seeds, both averaged over the
spaces), the P-score relative to the expectation of random search, the median number of tries to 95 % and 99 % of the
optimum, and the CPU time per try. Failures count as tries. Methods with the prefix `kt:` are Kernel Tuner's and need
`pip install kernel-tuner`.

`gp+history` starts from 200 tries on another GPU, for spaces named `kernel__GPU` with recordings of several GPUs; a
separate table compares it with `gp` on the same spaces.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from tuner.search.replay import Replay, replay, run
from tuner.search.replay.files import read
from tuner.search.replay.recording import Recording

TRIES = (25, 50, 100, 200)
METHODS = ["gp", "tpe", "categorical", "genetic", "random"]
WITH_HISTORY = "gp+history"
HISTORY_TRIES = 200
PEERS = ["kt:adaptive_tabu_greywolf", "kt:hybrid_vndx", "kt:genetic_algorithm", "kt:simulated_annealing"]
# The spaces on which designs were compared. Only the others measure how good the selected one is.
DEVELOPMENT = (
    *(f"convolution_milo__{gpu}" for gpu in ("A4000", "W6600", "W7800", "mi50")),
    *(f"dedispersion_milo__{gpu}" for gpu in ("W6600", "W7800")),
    *(f"{kernel}__RTX_{gpu}" for kernel in ("convolution", "gemm", "pnpoly") for gpu in ("2080_Ti", "3060_laptop")),
)


def main() -> int:
    arguments = _arguments()
    paths = sorted(path for path in arguments.spaces.glob("*.json*") if "_T4." not in path.name)
    if not paths:
        print(f"no recordings in {arguments.spaces}", file=sys.stderr)
        return 2
    print(" ".join(sys.argv))
    print(f"{len(paths)} spaces, {arguments.seeds} seeds, noise {'on' if arguments.noise else 'off'}")
    rows = {method: _runs(method, [(path, None) for path in paths], arguments) for method in arguments.methods}
    groups = {"held out": [], "development": []}
    for i, path in enumerate(paths):
        groups["development" if _name(path) in DEVELOPMENT else "held out"].append(i)
    for name, members in groups.items():
        if members:
            _table(f"{name}: {', '.join(_name(paths[i]) for i in members)}", rows, members)
    for i, path in enumerate(paths):
        _table(_name(path), rows, [i])
    pairs = _pairs(paths)
    if arguments.history and pairs:
        cold = [rows["gp"][paths.index(path)] for path, _ in pairs] if "gp" in rows else None
        histories = {"gp": cold} if cold else {}
        histories[WITH_HISTORY] = _runs("gp", pairs, arguments)
        spoken = ", ".join(f"{_name(path)} from {_name(past).split('__')[1]}" for path, past in pairs)
        _table(f"with {HISTORY_TRIES} tries of history of another GPU: {spoken}", histories, range(len(pairs)))
        for i, (path, past) in enumerate(pairs):
            _table(f"{_name(path)} from {_name(past)}", histories, [i])
    return 0


def _pairs(paths: Sequence[Path]) -> list[tuple[Path, Path]]:
    """Return each space with the next one of the same kernel and parameters on another GPU."""
    kinds = {path: (_name(path).split("__")[0], set(_read(path).space.names)) for path in paths if "__" in path.name}
    pairs = []
    for path in kinds:
        same = [other for other in kinds if kinds[other] == kinds[path]]
        if len(same) > 1:
            pairs.append((path, same[(same.index(path) + 1) % len(same)]))
    return pairs


def _name(path: Path) -> str:
    return path.name.split(".")[0]


def _arguments() -> argparse.Namespace:
    methods = METHODS + (PEERS if find_spec("kernel_tuner") else [])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    folder = Path(os.environ.get("SPACES_DIR", "."))
    parser.add_argument("--spaces", type=Path, default=folder, help="folder of recordings (default: $SPACES_DIR)")
    parser.add_argument("--methods", type=lambda text: text.split(","), default=methods)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--budget", type=int, default=200)
    parser.add_argument("--noise", action="store_true", help="a try sees one recorded sample, not the recorded value")
    parser.add_argument("--history", action=argparse.BooleanOptionalAction, default=True, help="also with history")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    return parser.parse_args()


@dataclass(frozen=True)
class Runs:
    """The results of a method on one space."""

    replay: Replay
    cpu_ms: float  # per try, including look-ups


def _runs(method: str, work: Sequence[tuple[Path, Path | None]], arguments: argparse.Namespace) -> list[Runs]:
    """Run the method on every space, with history if there is any; seeds are distributed over the processes."""
    runs = [(path, past, seed) for path, past in work for seed in range(arguments.seeds)]
    one = partial(_one, method, arguments.budget, arguments.noise)
    with ProcessPoolExecutor(arguments.jobs) as pool:
        values, seconds = zip(*pool.map(one, *zip(*runs, strict=True), chunksize=5), strict=True)
    print(f"  {method}: {len(runs)} runs done", file=sys.stderr)
    by_space = [slice(i * arguments.seeds, (i + 1) * arguments.seeds) for i in range(len(work))]
    return [
        Runs(Replay(_read(path), method, np.array(values[at])), 1e3 * _mean(seconds[at]) / arguments.budget)
        for (path, _), at in zip(work, by_space, strict=True)
    ]


def _one(method: str, budget: int, noise: bool, path: Path, past: Path | None, seed: int) -> tuple[np.ndarray, float]:
    """Return the value after each try, and the CPU seconds of the run (with those of the history)."""
    recording, past_recording = _read(path), None if past is None else _read(past)
    start = time.process_time()
    if method.startswith("kt:"):
        from kernel_tuner_peer import search

        peer = partial(search, recording, method.removeprefix("kt:"), budget)
        run_result = run(recording, peer, budget, seed, noise=noise)
    else:
        replayed = replay(
            recording, method, budget, (seed,), noise=noise, past=past_recording, past_tries=HISTORY_TRIES
        )
        run_result = replayed.true_values[0]
    return run_result, time.process_time() - start


@lru_cache(maxsize=2)
def _read(path: Path) -> Recording:
    return read(path)


def _table(title: str, rows: dict[str, list[Runs]], members: Sequence[int]) -> None:
    print(f"\n{title}")
    budget = next(iter(rows.values()))[0].replay.true_values.shape[1]
    tries = [k for k in TRIES if k <= budget]
    head = "".join(f"{f'@{k}  (p10)':>15}" for k in tries)
    print(f"  {'':28}{head}{'P-score':>9}{'to 95 %':>9}{'to 99 %':>9}{'ms a try':>10}")
    for method, runs in rows.items():
        replays = [runs[i].replay for i in members]
        at = [(_mean([r.mean(k) for r in replays]), _mean([r.percentile(k, 10) for r in replays])) for k in tries]
        cells = "".join(f"{f'{mean:.3f} ({p10:.3f})':>15}" for mean, p10 in at)
        reach = "".join(f"{np.median([r.tries_to(share) for r in replays]):>9.0f}" for share in (0.95, 0.99))
        took = _mean([runs[i].cpu_ms for i in members])
        print(f"  {method:28}{cells}{_mean([r.score for r in replays]):>9.3f}{reach}{took:>10.1f}")


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


if __name__ == "__main__":
    sys.exit(main())
