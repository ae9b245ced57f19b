"""What a dispatched call costs in Python before its launch, in microseconds.

    python benchmarks/dispatch.py [--calls 20000]

A call runs whole but for its launch: arguments to Request, the facts of the arrays, the key and its look-up. With
PyTorch installed the same for tensors; on a GPU the whole call as well. Last, what a length costs that was never seen,
when its kernel is compiled already.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from tuner.dispatcher import UntunedWarning
from tuner.dispatcher.calls import Dispatcher
from tuner.machines import gpu
from tuner.operators import load
from tuner.store.records import Snapshot

_SAMPLES = 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=20000, help="calls a sample (default 20000)")
    calls = parser.parse_args().calls
    warnings.simplefilter("ignore", UntunedWarning)
    operator = load("flash_attention")
    qkv = [np.zeros((1, length, 2, 64), np.float16) for length in (16, 32, 32)]
    report("arguments to Request", partial(operator.call, *qkv, causal=True), calls)
    report("NumPy arrays, no record", before_launch(qkv, tuned=False), calls)
    report("NumPy arrays, tuned", before_launch(qkv, tuned=True), calls)
    if find_spec("torch"):
        import torch

        report("torch tensors, tuned", before_launch([torch.from_numpy(each) for each in qkv], tuned=True), calls)
    if gpu.available():
        import cupy

        whole = partial(Dispatcher(Snapshot.load([])).call, "flash_attention", *map(cupy.asarray, qkv))
        report("CuPy arrays, launch included", whole, calls)
    new_lengths(100)


def before_launch(qkv: Sequence[Any], *, tuned: bool) -> Callable[[], Any]:
    """A call that was prepared, whose kernel returns at once; `tuned` calls are not counted as misses."""
    operator, at = load("flash_attention"), Dispatcher(Snapshot.load([]))
    at.call("flash_attention", *qkv, causal=True)
    for key, (_, tally) in at._prepared.items():
        at._prepared[key] = (lambda arrays, scalars: (arrays, scalars)), None if tuned else tally
    return lambda: at.run(operator, operator.call(*qkv, causal=True))


def report(what: str, call: Callable[[], Any], calls: int) -> None:
    call()
    samples = []
    for _ in range(_SAMPLES):
        started = time.perf_counter()
        for _ in range(calls):
            call()
        samples.append((time.perf_counter() - started) / calls * 1e6)
    print(f"{what:30} {statistics.median(samples):8.2f} µs   ({min(samples):.2f} to {max(samples):.2f})")


def new_lengths(count: int) -> None:
    """The first call of a length against its second."""
    at = Dispatcher(Snapshot.load([]))
    calls = [[np.zeros((1, length, 1, 64), np.float16) for length in (1, keys, keys)] for keys in range(1, count + 2)]
    at.call("flash_attention", *calls[0])
    first = [seconds(partial(at.call, "flash_attention", *qkv)) for qkv in calls[1:]]
    again = [seconds(partial(at.call, "flash_attention", *qkv)) for qkv in calls[1:]]
    extra = statistics.median(a - b for a, b in zip(first, again, strict=True)) * 1e6
    print(f"{'a new length, no record':30} {extra:8.0f} µs")


def seconds(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
