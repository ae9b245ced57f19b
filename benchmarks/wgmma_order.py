"""How evenly the row tiles of flash_attention/wgmma come out among SMs: a simulation, of counts and an assumed jitter.

A row tile lasts as many steps as it has tiles of keys, and one more, each time up to 5 % more or less. Blocks that do
not walk are assumed to lose half a step at their start. Printed is how much longer the last SM works than the mean.

python benchmarks/wgmma_order.py
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from heapq import heapreplace

import numpy as np

from tuner import operators
from tuner.arch import ARCHES
from tuner.operators.flash_attention.operator import Problem
from tuner.operators.flash_attention.wgmma.work import order, tiles
from tuner.spec.problem import Array

WGMMA = operators.implementation("flash_attention", "wgmma")
START = 0.5  # steps, of a block that begins with empty stages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sms", type=int, default=132)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--jitter", type=float, default=0.05)
    given = parser.parse_args()
    print("   seq  heads  row tiles an SM  every n-th  by ticket  a block each  a block each, head by head")
    found = []
    for S in (1024, 2048, 4096, 8192, 16384):
        for heads in (16384 // S * 8, 16384 // S * 16, 16384 // S * 32):
            problem = Problem(given.head_dim, causal=True, batch=1, heads=heads, seq_q=S)
            found.append(losses(problem, given.sms, given.jitter))
            print(f"{S:6d}{heads:7d}{found[-1][0]:17.1f}{row(found[-1])}")
    print(f"{'mean':30s}{row(np.mean(found, axis=0))}")


def row(found: Sequence[float]) -> str:
    return "".join(f"{each:{width}.1f} %" for each, width in zip(found[1:], (10, 9, 12, 26), strict=True))


def losses(problem: Problem, sms: int, jitter: float) -> tuple[float, ...]:
    """Row tiles an SM, then percents: dealt in turn, taken by ticket, one block each in that order and head by head."""
    config = replace(WGMMA.default(problem, ARCHES["sm_90a"]), cluster=1)
    taken, by_head = order(problem, config)[:, 0], np.tile(tiles(problem, config)[::-1, 0], problem.heads)
    steps = np.random.default_rng(0).uniform(1 - jitter, 1 + jitter, len(taken))
    mean = float(np.sum((taken + 1) * steps)) / sms
    ends = (
        dealt((taken + 1) * steps, sms),
        claimed((taken + 1) * steps, sms),
        claimed((taken + 1 + START) * steps, sms),
        claimed((by_head + 1 + START) * steps, sms),
    )
    return (len(taken) / sms, *(100 * (end / mean - 1) for end in ends))


def dealt(steps: Array, sms: int) -> float:
    """The last end, if SM b takes every `sms`-th row tile from b on."""
    return float(np.max(np.bincount(np.arange(len(steps)) % sms, weights=steps)))


def claimed(steps: Array, sms: int) -> float:
    """The last end, if an SM that becomes free takes the next."""
    ends = [0.0] * sms
    for each in steps.tolist():
        heapreplace(ends, ends[0] + each)
    return max(ends)


if __name__ == "__main__":
    main()
