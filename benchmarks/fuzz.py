"""Draw problems and configs at random, run them on the CPU, and judge them against float64.

    python benchmarks/fuzz.py [--operator kda …] [--implementation wgmma …] [--first SEED] [--count 200] [--seconds 600]

A draw is an implementation, static fields of its problem in any combination, a config of its space in which one
parameter's value is as likely as any other, and small problems: sizes of 1, beside a tile, primes, packed sequences of
which some are empty, heads that share others, views with gaps in any order of dims, backwards or repeated. Each runs on
the emulator in two orders, one of them with the race detector, to the same bits; what NVRTC makes of some runs on the
machine for PTX. Half run once more with NaN in a sequence, a group of heads, a query, a channel or a page, which must
leave what is beside it right.
A seed is the same draw wherever the code is the same: `--first SEED --count 1` with the same operators repeats it.
Prints what is wrong as it is found, then a table in Markdown; exits with 1 where something was.
"""

import argparse
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator

import fuzz_judge
from fuzz_judge import Tried

from tuner import operators
from tuner.backends import emulator


def main() -> int:
    options = _options()
    jobs = list(_jobs(options))
    started, results = time.perf_counter(), list[Tried]()
    with emulator.Pool(options.workers) as pool:
        for position, answer in pool.map(fuzz_judge.tried, jobs):
            operator, implementation, seed = jobs[position]
            lost = isinstance(answer, emulator.Finding)
            results.append(Tried(f"{operator}/{implementation}", findings=(str(answer),)) if lost else answer)
            for finding in results[-1].findings:
                print(f"seed {seed}: {results[-1].name} {finding}", flush=True)
            if time.perf_counter() - started > options.seconds:
                break
    print("\n".join(_table(results)))
    return 1 if any(result.findings for result in results) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operator", nargs="+", default=list(operators.names()), choices=operators.names())
    parser.add_argument("--implementation", nargs="+", default=[], help="[all]")
    parser.add_argument("--first", type=int, default=0, help="seed")
    parser.add_argument("--count", type=int, default=200, help="draws")
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--workers", type=int, default=None)
    return parser.parse_args()


def _jobs(options: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    """A draw a seed: most often of implementations that no device has confirmed, least of oracles."""
    implementations = [
        implementation
        for name in options.operator
        for implementation in ((name, it) for it in operators.implementations(name))
    ]
    chosen = [
        (name, it) for name, it in implementations if it.name in options.implementation or not options.implementation
    ]
    weights = [0.2 if it.oracle else 2 if it.unproven else 1 for _, it in chosen]
    for seed in range(options.first, options.first + options.count):
        ((operator, implementation),) = random.Random(f"which {seed}").choices(chosen, weights)
        yield operator, implementation.name, seed


def _table(results: list[Tried]) -> Iterator[str]:
    yield "| implementation | configs | problems | beside NaN | on PTX | findings |"
    yield "|---|---|---|---|---|---|"
    configs = Counter(result.name for result in results if result.emulated or result.executed)
    for name in sorted({result.name for result in results}):
        results_of_name = [result for result in results if result.name == name]
        counts = [
            sum(getattr(result, what) for result in results_of_name) for what in ("emulated", "apart", "executed")
        ]
        findings = sum(len(result.findings) for result in results_of_name)
        yield " | ".join(map(str, (f"| {name}", configs[name], *counts, f"{findings} |")))


if __name__ == "__main__":
    sys.exit(main())
