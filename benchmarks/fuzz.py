"""Draw problems and configs at random, run them on the CPU, and compare them with float64.

    python benchmarks/fuzz.py [--operator kda …] [--implementation wgmma …] [--first SEED] [--count 200] [--seconds 600]

A draw is an implementation, any combination of static fields of its problem, a config of its space in which all values
of a parameter are equally likely, and small problems: sizes of 1, sizes next to a tile, primes, packed sequences of
which some are empty, heads that share others, and views with gaps, permuted dims, reversed or repeated axes. Each runs
on the emulator in two orders, one of them with the race detector, and the results must be bitwise equal. The PTX of
some runs is executed on the PTX interpreter. Half are run again with NaN in a sequence, a group of heads, a query, a
channel or a page, which must not affect the others.
A seed gives the same draw for the same code: `--first SEED --count 1` with the same operators repeats it. Prints errors
as they occur, then a table in Markdown; exits with 1 if there were any.
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
    """Yield one draw per seed: mostly of implementations that no device has confirmed, least often of oracles."""
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
