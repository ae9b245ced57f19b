"""What calls wait while records arrive: threads that call all the time, with and without `TUNER_WATCH`.

    python benchmarks/watch.py [--seconds 30] [--threads 8] [--records 8]

The GPU is a double of CuPy and its driver, whose launches return at once, so that a call is this program's own part.
NVRTC compiles the kernel of each new record, from an empty cache. The first row has no records and nothing watches: its
longest calls are what this machine's scheduler and Python's lock do to eight threads. A call is late when it takes
longer than the median of that row plus 1 ms; the first calls of each thread, which compile, are left out.
"""

import argparse
import itertools
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gpu_path  # noqa: F401  # before the package is imported
import numpy as np
from dispatch import double, empty

from tests.support.arriving import Load, arrive, records
from tuner import dispatcher, operators
from tuner.arch import ARCHES
from tuner.dispatcher import UntunedWarning, functions
from tuner.spec.instance import Instance

KEYS = (1024, 2048, 3072, 4096)  # lengths that calls alternate between


def configs(count: int) -> list[Instance]:
    """Return configs of mma_sync, spread over its space."""
    operator, arch = operators.load("flash_attention"), ARCHES["sm_90a"]
    problem = operator.problem(head_dim=128, dtype=operator.problem().dtype.of(np.float16), seq_q=128, seq_k=KEYS[0])
    implementation = operators.implementation("flash_attention", "mma_sync")
    space = implementation.space(problem, arch)
    picked = [space[len(space) * number // count] for number in range(count)]
    return [Instance(operator, implementation, problem, config) for config in picked]


def arrays(keys: int) -> list[Any]:
    return [empty((1, length, 2, 128), np.float16) for length in (128, keys, keys)]


def call(number: int, turns: "list[Iterator[int]]") -> None:
    dispatcher.flash_attention(*arrays(next(turns[number])))


def runs() -> dict[str, Any]:
    return dict(dispatcher.explain("flash_attention", *arrays(KEYS[0])).config)


@contextmanager
def process(folder: Path, watch: str) -> Iterator[Path]:
    """Provide the state of a new process: no kernels, an empty cache, no records."""
    os.environ |= {
        "TUNER_WATCH": watch,
        "TUNER_DB": str(folder / "records.jsonl"),
        "TUNER_CACHE_DIR": str(folder / "cache"),
    }
    functions._dispatcher = None
    for keys in KEYS:
        dispatcher.flash_attention(*arrays(keys))
    yield folder / "records.jsonl"


def load(threads: int) -> Load:
    turns = [itertools.cycle(KEYS[number % len(KEYS) :] + KEYS[: number % len(KEYS)]) for number in range(threads)]
    return Load(lambda number: call(number, turns), threads, pause_s=0.002)


def row(what: str, of: Load, launch_s: float) -> str:
    assert of.errors == [], of.errors
    taken = sorted(seconds for thread in of.seconds for seconds in thread[1:])
    late = sum(seconds > launch_s + 1e-3 for seconds in taken)
    cells = (taken[len(taken) // 2], taken[int(len(taken) * 0.99)], taken[int(len(taken) * 0.999)], taken[-1])
    figures = " | ".join(f"{seconds * 1e6:,.0f}" for seconds in cells)
    return f"| {what} | {len(taken):,} | {figures} | {late:,} ({late / len(taken):.2%}) |"


def median(of: Load) -> float:
    return statistics.median(seconds for thread in of.seconds for seconds in thread[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--records", type=int, default=8)
    options = parser.parse_args()
    warnings.simplefilter("ignore", UntunedWarning)
    print("| load | calls | median, µs | 99 % | 99.9 % | longest | over a launch plus 1 ms |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    with double():
        with tempfile.TemporaryDirectory() as folder, process(Path(folder), "0"):
            alone = load(options.threads)
            with alone.running():
                time.sleep(options.seconds)
            launch_s = median(alone)
            print(row("no record arrives", alone, launch_s), flush=True)
        with tempfile.TemporaryDirectory() as folder, process(Path(folder), "0.2") as place:
            under, new = load(options.threads), records(*configs(options.records), target="H200", arch="sm_90a")
            began = time.monotonic()
            with under.running():
                served = arrive(place, new, runs, options.seconds, look_s=0.25)
                time.sleep(max(0.0, options.seconds - (time.monotonic() - began)))
            print(row(f"{served} records arrive", under, launch_s), flush=True)
    os._exit(0)  # exit at once: the watcher threads have lost their double of the GPU


if __name__ == "__main__":
    main()
