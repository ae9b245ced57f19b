"""How many tries a search needs on recorded spaces, side by side with Kernel Tuner's strategies.

    SPACES_DIR=... python benchmarks/search.py [--methods gp,tpe,kt:genetic_algorithm] [--seeds 20] [--budget 200]

Reads every recording of a folder (T4 or Kernel Tuner cache, .json or .json.gz). A table a group of spaces: fraction of
the optimum after 25, 50, 100 and 200 tries (mean and 10th percentile over the seeds, both averaged over the spaces),
the P-score, and the median of the tries to 95 % and 99 % of the optimum. Failures cost a try. Methods that begin with
`kt:` are Kernel Tuner's and need `pip install kernel-tuner`.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from tuner.replay import Replay, replay, run
from tuner.replay.files import read
from tuner.replay.recording import Recording

TRIES = (25, 50, 100, 200)
METHODS = ["gp", "tpe", "categorical", "genetic", "random"]
PEERS = ["kt:adaptive_tabu_greywolf", "kt:hybrid_vndx", "kt:genetic_algorithm", "kt:simulated_annealing"]
# The spaces on which designs were compared. Only the others say how good the chosen one is.
DEVELOPMENT = ("convolution_milo__A4000", "convolution_milo__W6600")


def main() -> int:
    arguments = _arguments()
    paths = sorted(path for path in arguments.spaces.glob("*.json*") if "_T4." not in path.name)
    if not paths:
        print(f"no recordings in {arguments.spaces}", file=sys.stderr)
        return 2
    print(" ".join(sys.argv))
    print(f"{len(paths)} spaces, {arguments.seeds} seeds, noise {'on' if arguments.noise else 'off'}")
    rows = {method: _replays(method, paths, arguments) for method in arguments.methods}
    groups = {"held out": [], "development": []}
    for i, path in enumerate(paths):
        groups["development" if path.name.split(".")[0] in DEVELOPMENT else "held out"].append(i)
    for name, members in groups.items():
        if members:
            _table(f"{name}: {', '.join(paths[i].name.split('.')[0] for i in members)}", rows, members)
    for i, path in enumerate(paths):
        _table(path.name.split(".")[0], rows, [i])
    return 0


def _arguments() -> argparse.Namespace:
    methods = METHODS + (PEERS if find_spec("kernel_tuner") else [])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    folder = Path(os.environ.get("SPACES_DIR", "."))
    parser.add_argument("--spaces", type=Path, default=folder, help="folder of recordings (default: $SPACES_DIR)")
    parser.add_argument("--methods", type=lambda text: text.split(","), default=methods)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--budget", type=int, default=200)
    parser.add_argument("--noise", action="store_true", help="a try sees one recorded sample, not the recorded value")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    return parser.parse_args()


def _replays(method: str, paths: Sequence[Path], arguments: argparse.Namespace) -> list[Replay]:
    """The method on every space, its seeds spread over the processes."""
    start = time.perf_counter()
    work = [(path, seed) for path in paths for seed in range(arguments.seeds)]
    one = partial(_one, method, arguments.budget, arguments.noise)
    with ProcessPoolExecutor(arguments.jobs) as pool:
        found = np.array(list(pool.map(one, *zip(*work, strict=True), chunksize=5)))
    took = (time.perf_counter() - start) * arguments.jobs / found.size
    print(f"  {method}: {took * 1e3:.1f} ms a try", file=sys.stderr)
    return [Replay(_read(path), method, each) for path, each in zip(paths, np.split(found, len(paths)), strict=True)]


def _one(method: str, budget: int, noise: bool, path: Path, seed: int) -> np.ndarray:
    recording = _read(path)
    if not method.startswith("kt:"):
        return replay(recording, method, budget, (seed,), noise=noise).true_values[0]
    from kernel_tuner_peer import search

    return run(recording, partial(search, recording, method.removeprefix("kt:"), budget), budget, seed, noise=noise)


@lru_cache(maxsize=2)
def _read(path: Path) -> Recording:
    return read(path)


def _table(title: str, rows: dict[str, list[Replay]], members: Sequence[int]) -> None:
    print(f"\n{title}")
    budget = next(iter(rows.values()))[0].true_values.shape[1]
    tries = [k for k in TRIES if k <= budget]
    head = "".join(f"{f'@{k}  (p10)':>15}" for k in tries)
    print(f"  {'':28}{head}{'P-score':>9}{'to 95 %':>9}{'to 99 %':>9}")
    for method, all_replays in rows.items():
        replays = [all_replays[i] for i in members]
        at = [(_mean([r.mean(k) for r in replays]), _mean([r.percentile(k, 10) for r in replays])) for k in tries]
        cells = "".join(f"{f'{mean:.3f} ({p10:.3f})':>15}" for mean, p10 in at)
        reach = "".join(f"{np.median([r.tries_to(share) for r in replays]):>9.0f}" for share in (0.95, 0.99))
        print(f"  {method:28}{cells}{_mean([r.score for r in replays]):>9.3f}{reach}")


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


if __name__ == "__main__":
    sys.exit(main())
