"""Measure the host overhead of a dispatched call, in microseconds of CPU time and in calls of an empty Python function.

    python benchmarks/dispatch.py [--calls 3000]

The GPU is a fake of CuPy and its driver, whose launches and tensor map encoders return immediately, so only this
program's overhead remains. There is one record of flash_attention on wgmma, whose four tensors are tensor maps. A bound
launch is the part of a call after its arrays are known: outputs, arguments, launch. A new length changes one key per
call, as in a generation, and is compared with the same call repeated right after it; the slowest calls are the first
ones of a kernel, which compute everything. With PyTorch installed, the part before a launch is also measured for
tensors, and with a GPU a whole call.
"""

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tuner import operators
from tuner.arch import ARCHES
from tuner.backends import gpu
from tuner.backends.gpu import tensor_map
from tuner.dispatcher import UntunedWarning
from tuner.dispatcher.calls import Dispatcher
from tuner.dispatcher.on_gpu import GpuKernel
from tuner.operators import load
from tuner.spec.instance import Instance
from tuner.store.records import Snapshot

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.support import cupy_double, served

_SAMPLES = 7
_PROMPT, _STEPS = 1000, 200  # number of keys before the first step of a generation, and number of steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=3000, help="calls a sample (default 3000)")
    calls = parser.parse_args().calls
    warnings.simplefilter("ignore", UntunedWarning)
    operator = load("flash_attention")
    qkv = [np.zeros((1, length, 2, 128), np.float16) for length in (16, 32, 32)]
    report = Report(calls)
    report("arguments to Request", partial(operator.call, *qkv, causal=True))
    report("before a launch, NumPy arrays", before_launch(qkv))
    if find_spec("torch"):
        import torch

        report("before a launch, torch tensors", before_launch([torch.from_numpy(tensor) for tensor in qkv]))
    if gpu.available():
        import cupy

        call = partial(Dispatcher(Snapshot.load([])).call, "flash_attention", *map(cupy.asarray, qkv))
        report("CuPy arrays on this GPU, whole call", call)
    gpu.opened.cache_clear()
    with double():
        on_the_double(report)


def before_launch(qkv: Sequence[Any]) -> Callable[[], Any]:
    """Return a prepared call whose kernel returns immediately."""
    operator, at = load("flash_attention"), Dispatcher(Snapshot.load([]))
    at.call("flash_attention", *qkv, causal=True)
    for key in at._prepared:
        at._prepared[key] = (lambda arrays, scalars: (arrays, scalars)), None
    return lambda: at.run(operator, operator.call(*qkv, causal=True))


class Report:
    """Prints the cost of a call: the median of several samples, in microseconds and in empty calls."""

    def __init__(self, calls: int) -> None:
        self._calls = calls
        self._empty = self._median(lambda: None)
        self.line("an empty call", self._empty)

    def __call__(self, what: str, call: Callable[[], Any], note: str = "") -> float:
        call()
        median = self._median(call)
        self.line(what, median, note)
        return median

    def line(self, what: str, microseconds: float, note: str = "") -> None:
        print(f"{what:36} {microseconds:8.2f} µs {microseconds / self._empty:7.0f} × an empty call  {note}")

    def _median(self, call: Callable[[], Any]) -> float:
        samples = []
        for _ in range(_SAMPLES):
            started = time.thread_time()
            for _ in range(self._calls):
                call()
            samples.append((time.thread_time() - started) / self._calls * 1e6)
        return statistics.median(samples)


@contextmanager
def double() -> Iterator[None]:
    """Provide a fake machine whose launches and encoders do nothing, and whose memory is on the host."""
    with pytest.MonkeyPatch.context() as patch, cupy_double.machine(patch) as driver:
        patch.setattr(sys.modules["cupy"], "empty", empty)
        patch.setattr(driver, "launch", lambda *_: None)
        patch.setattr(tensor_map, "_driver", lambda: SimpleNamespace(cuTensorMapEncodeTiled=lambda *_: 0))
        yield


def on_the_double(report: Report) -> None:
    """Report a call of a wgmma record, repeated at one length and at consecutive lengths."""
    operator, wgmma = load("flash_attention"), operators.implementation("flash_attention", "wgmma")
    tuned = operator.problem(head_dim=128, dtype=operator.problem().dtype.of(np.float16), seq_q=1, seq_k=2048)
    records = served.snapshot(Instance.default(operator, wgmma, tuned, ARCHES["sm_90a"]), target="H200", arch="sm_90a")
    for what, at in (("record", Dispatcher(records)), ("no record", Dispatcher(Snapshot.load([])))):
        again, bound = repeated(at)
        report(f"bound launch, {what}", bound)
        report(f"repeated call, {what}", again)
        taken = [(seconds(step), seconds(step)) for step in generation(at)]
        first, second = (statistics.median(parts) * 1e6 for parts in zip(*taken, strict=True))
        report.line(f"a new length, {what}", first, f"{first / second:.1f} × the same call again")
        report.line("  again", second)
        over = [first for first, again in taken if first > 5 * again]
        longest = max(over, default=0) * 1e6
        print(
            f"  of {len(taken)} lengths, {len(over)} took over 5 × as long as when repeated, at most {longest:.0f} µs"
        )


def repeated(at: Dispatcher) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return a repeated call, and the same without everything before its kernel."""
    operator = load("flash_attention")
    arrays = dict(zip("qkv", step(_PROMPT), strict=True))
    at.call("flash_attention", **arrays)
    kernel = next(run for run, _ in at._prepared.values())
    assert isinstance(kernel, GpuKernel)
    scalars = operator.call(**arrays).scalars
    return call_of(at, list(arrays.values())), partial(kernel, arrays, scalars)


def generation(at: Dispatcher) -> Iterator[Callable[[], Any]]:
    for keys in range(_PROMPT + 1, _PROMPT + 1 + _STEPS):
        yield call_of(at, step(keys))


def call_of(at: Dispatcher, arrays: list[Any]) -> Callable[[], Any]:
    """Return the same call as `dispatcher.flash_attention` makes."""
    operator = load("flash_attention")
    return lambda: at.run(operator, operator.call(*arrays))


def step(keys: int) -> list[Any]:
    """Return a query and `keys` keys."""
    return [empty((1, length, 2, 128), np.float16) for length in (1, keys, keys)]


@cache
def empty(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return an uninitialised array, at a repeated address as from a memory pool."""
    strides = np.cumprod((np.dtype(dtype).itemsize, *shape[:0:-1]))[::-1]
    return cupy_double.ndarray(None, np.lib.stride_tricks.as_strided(np.empty(64, dtype), shape, strides.tolist()))


def seconds(call: Callable[[], Any]) -> float:
    started = time.thread_time()
    call()
    return time.thread_time() - started


if __name__ == "__main__":
    main()
