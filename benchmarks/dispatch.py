"""What a dispatched call costs before its launch: `python benchmarks/dispatch.py`.

Every call runs whole up to the launch, which is replaced by returning: what is left is arguments → request → key →
look-up. Also: the first call of a new length whose kernel is compiled already.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from tuner.dispatcher import Dispatcher, UntunedWarning
from tuner.operators import load
from tuner.records import Snapshot


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=20000, help="calls a sample (default 20000)")
    parser.add_argument("--samples", type=int, default=7)
    given = parser.parse_args()
    warnings.simplefilter("ignore", UntunedWarning)
    q, k, v = (np.zeros((1, length, 2, 64), np.float16) for length in (16, 32, 32))
    at = Dispatcher(Snapshot.load([]))
    operator = load("flash_attention")
    at.call("flash_attention", q, k, v)
    report("operator.call: arguments to Request", lambda: operator.call(q, k, v, causal=False), given)
    without_launch(at)
    report("warm call, a miss: all but the launch", lambda: at.run(operator, operator.call(q, k, v)), given)
    as_hits(at)
    report("warm call, tuned: all but the launch", lambda: at.run(operator, operator.call(q, k, v)), given)
    new_length(Dispatcher(Snapshot.load([])))


def without_launch(at: Dispatcher) -> None:
    """Kernels that return at once; the table of kinds of calls is the dispatcher's own."""
    for key, (_, tally) in at._prepared.items():
        at._prepared[key] = (lambda arrays, given: (arrays, given)), tally


def as_hits(at: Dispatcher) -> None:
    for key, (run, _) in at._prepared.items():
        at._prepared[key] = run, None


def new_length(at: Dispatcher) -> None:
    """Milliseconds to prepare and run lengths never seen, and the same calls again."""
    calls = [[np.zeros((1, length, 1, 64), np.float16) for length in (1, keys, keys)] for keys in range(1, 101)]
    at.call("flash_attention", *calls[0])
    first = [timed(lambda given=given: at.call("flash_attention", *given)) for given in calls[1:]]
    again = [timed(lambda given=given: at.call("flash_attention", *given)) for given in calls[1:]]
    extra = statistics.median(a - b for a, b in zip(first, again, strict=True))
    print(f"{'a new length, beyond the same call again':45} {extra * 1e6:8.1f} µs")


def timed(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def report(what: str, call: Callable[[], Any], given: argparse.Namespace) -> None:
    samples = []
    for _ in range(given.samples):
        started = time.perf_counter()
        for _ in range(given.calls):
            call()
        samples.append((time.perf_counter() - started) / given.calls * 1e6)
    print(f"{what:45} {statistics.median(samples):8.2f} µs (from {min(samples):.2f} to {max(samples):.2f})")


if __name__ == "__main__":
    main()
