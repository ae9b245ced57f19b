"""What a search loses where its model may say stop sooner, on recorded spaces.

    SPACES_DIR=... python benchmarks/stopping.py [--spaces FOLDER] [--seeds 8] [--budget 256]

Searches each recording (as benchmarks/search.py reads them) in batches as `tuner search` does, to the end of the
budget, and notes what the model expected before each batch. A rule stops a search after so many batches in a row that
were expected to gain under 1 % and did, but not before a floor of tries. "lost" is what of the optimum the rest of the
budget would have found: the mean, the worst, and in how many searches it is over 1 %. What a sweep finds after a stop
is left out.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from tuner.search.explore import Patience, gained
from tuner.search.replay.files import read
from tuner.search.replay.recording import Recording
from tuner.search.running import BATCH
from tuner.search.sampler import Sampler

LOOKS = (3, 2, 1)
FLOORS = {"half": 2, "a quarter": 4, "24 tries": 0}  # of the budget, one part in so many
_LEAST = 24


@dataclass(frozen=True)
class Look:
    """A search after a batch: tries, the best as a share of the optimum, and how long nothing was to be gained."""

    tried: int
    found: float
    looks: int


def search(recording: Recording, seed: int, budget: int) -> list[Look]:
    sampler = Sampler(recording.space, method="gp", seed=seed)
    evaluate = recording.evaluate(None)
    patience, seen = Patience(), list[Look]()
    for first in range(0, budget, BATCH):
        before = sampler.best
        for index in sampler.ask(min(BATCH, budget - first)):
            sampler.tell(index, evaluate(index))
        best = sampler.best
        gain = gained(before and before[1], best and best[1])
        patience = patience.after(sampler.expected_improvement, gain)
        seen.append(Look(first + BATCH, recording.optimum / best[1] if best else 0.0, patience.looks))
    return seen


def stopped(seen: Sequence[Look], looks: int, floor: int) -> Look:
    """Where a rule ends a search."""
    return next((each for each in seen if each.looks >= looks and each.tried >= floor), seen[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spaces", type=Path, default=Path(os.environ.get("SPACES_DIR", ".")))
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--budget", type=int, default=256)
    told = parser.parse_args()
    paths = sorted(path for path in told.spaces.glob("*.json*") if "_T4." not in path.name)
    if not paths:
        print(f"no recordings in {told.spaces}", file=sys.stderr)
        return 2
    searches = [search(read(path), seed, told.budget) for path in paths for seed in range(told.seeds)]
    print(f"{', '.join(path.name.split('.')[0] for path in paths)}: {len(searches)} searches of {told.budget} tries")
    print(f"{'floor':>10}{'looks':>7}{'tries':>8}{'found':>8}{'lost':>8}{'worst':>8}{'over 1 %':>10}")
    for (name, part), looks in product(FLOORS.items(), LOOKS):
        floor = max(_LEAST, told.budget // part if part else 0)
        ends = [stopped(seen, looks, floor) for seen in searches]
        lost = [seen[-1].found - end.found for seen, end in zip(searches, ends, strict=True)]
        means = np.mean([end.tried for end in ends]), np.mean([end.found for end in ends]), np.mean(lost)
        print(f"{name:>10}{looks:>7}{means[0]:>8.0f}{means[1]:>8.3f}{means[2]:>8.3f}{max(lost):>8.3f}", end="")
        print(f"{sum(each > 0.01 for each in lost):>10}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
