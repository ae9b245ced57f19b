"""Measure how long a search waits for its own program: for the next config, and for the enumeration of a space.

    python benchmarks/latency.py [--tries 100]

Results are CPU time of this process, and its ratio to a matrix product that is timed in between: the ratio is
comparable between machines and under load.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import make_dataclass
from itertools import islice

import numpy as np
from threadpoolctl import threadpool_limits

from tuner.search.sampler import Sampler
from tuner.spec import Constraint, Space

_SIDE = 256  # size of the matrices
_PRODUCTS = 20
_POWERS = tuple(1 << k for k in range(8))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=100, help="of each search (default 100)")
    tries = parser.parse_args().tries
    print(f"{'':44} {'ms':>9} {'products':>9}")
    with threadpool_limits(1):
        for sizes in ((4, 4, 4, 4, 4, 6, 3), (8, 8, 4, 4, 4, 4, 6)):
            space = Space(make_dataclass("Wide", "abcdefg"), named(*(tuple(range(1, n + 1)) for n in sizes)))
            report(f"a suggestion among {len(space):,}", lambda space=space: suggest(space, tries), tries)
        million, many = a_million(), millions()
        report(f"enumerating {len(million()):,} of {million().raw_size:,}", lambda: len(million()))
        report(f"enumerating {len(many()):,} of {many().raw_size:,}", lambda: len(many()))


def named(*choices: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return dict(zip("abcdefgh", choices, strict=False))


def suggest(space: Space, tries: int) -> None:
    """Search a smooth cost, with every result reported before the next suggestion."""
    centre = space.codes.mean(axis=0)
    costs = 1.0 + np.sum(np.abs(space.codes - centre), axis=1)
    sampler = Sampler(space, seed=0)
    for (index,) in islice(iter(lambda: sampler.ask(1), []), tries):
        sampler.tell(index, float(costs[index]))


def a_million() -> Callable[[], Space]:
    constraint = Constraint("registers", lambda c: c.a * c.d * c.g <= 1024)
    return lambda: Space(make_dataclass("Million", "abcdefg"), named(*[_POWERS] * 7), (constraint,))


def millions() -> Callable[[], Space]:
    constraints = (
        Constraint("registers", lambda c: c.a * c.b * c.h <= 4096),
        Constraint("shared memory", lambda c: c.a * (c.g + c.d) * c.h <= 4096),
        Constraint("alignment", lambda c: (c.h % 3 != 0) | (c.c > 4) | (c.f < c.g)),
    )
    choices = named(*[_POWERS] * 7, tuple(range(1, 13)))
    return lambda: Space(make_dataclass("Large", "abcdefgh"), choices, constraints)


def report(what: str, call: Callable[[], object], times: int = 1) -> None:
    """Print the CPU milliseconds per call, and the ratio to a matrix product timed before and after."""
    products = [product_s()]
    started = time.process_time()
    call()
    seconds = (time.process_time() - started) / times
    products.append(product_s())
    print(f"{what:44} {seconds * 1e3:9.2f} {seconds / statistics.mean(products):9.1f}")


def product_s() -> float:
    a = np.random.default_rng(0).standard_normal((_SIDE, _SIDE))
    started = time.process_time()
    for _ in range(_PRODUCTS):
        a = a @ a / _SIDE
    return (time.process_time() - started) / _PRODUCTS


if __name__ == "__main__":
    main()
