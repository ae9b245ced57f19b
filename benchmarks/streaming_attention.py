"""streaming_attention against dense causal attention over the length: work by formula, and times where there is a GPU.

    python benchmarks/streaming_attention.py [--gpu H200] [--window 1024] [--sinks 4] [--measure]

Both run what an application would get: the stored record, else the default config. Executed FLOPs count every mma;
needed ones the attended pairs. `predicted` is the ratio of the predictor's costs, which rank and are no times, with
the pipe that binds streaming_attention. With --measure, on the GPU that --gpu names, medians in microseconds follow.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from tuner import gpu as devices
from tuner import operators
from tuner.arch import GPU, gpu
from tuner.bench import contender
from tuner.choice import choose
from tuner.gpu_device import Physical
from tuner.operator import Operator
from tuner.policy import MeasurementPolicy
from tuner.predict import formula, guess_residency
from tuner.records import Snapshot
from tuner.result import Prediction
from tuner.samples import estimate
from tuner.trial import Task
from tuner.worker import Worker

LENGTHS = tuple(2**n for n in range(7, 18))  # 128 … 131072
_MMA_FLOPS = 16 * 8 * 16 * 2
_HEADER = ("T", "GFLOP", "/ needed", "MB", "dense GFLOP", "executed", "predicted", "bound by")
_MEASURED = ("µs", "dense µs", "measured")


@dataclass(frozen=True)
class Side:
    """One operator on one length."""

    flops: float  # executed on tensor cores
    needed: float
    bytes: float  # between DRAM and L2, at least
    prediction: Prediction
    time_us: float | None = None


def main() -> int:
    options = _options()
    target, snapshot = gpu(options.gpu), Snapshot.load()
    if options.measure and not devices.available():
        print("--measure needs a CUDA device, and this machine has none", file=sys.stderr)
        return 2
    print(_text(_HEADER + (_MEASURED if options.measure else ())))
    with Worker(Physical()) if options.measure else nullcontext() as worker:
        for length, problems in _problems(options):
            streaming, dense = (_side(operator, problem, target, snapshot, worker) for operator, problem in problems)
            print(_text(_row(length, streaming, dense)), flush=True)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default="H200")
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--sinks", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=0)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--measure", action="store_true", help="time both on this machine's GPU")
    return parser.parse_args()


def _problems(options: argparse.Namespace) -> Iterator[tuple[int, Sequence[tuple[Operator[Any], Any]]]]:
    """(length, (operator, Problem) for streaming and for dense attention)."""
    streaming, dense = operators.load("streaming_attention"), operators.load("flash_attention")
    shape = {name: getattr(options, name) for name in ("head_dim", "batch", "heads", "kv_heads")}
    for length in options.lengths:
        windowed = streaming.problem(seq_q=length, window=options.window, sinks=options.sinks, **shape)
        yield length, ((streaming, windowed), (dense, dense.problem(seq_q=length, causal=True, **shape)))


def _side(operator: Operator[Any], problem: Any, target: GPU, snapshot: Snapshot, worker: Worker | None) -> Side:
    chosen, cost = choose(operator, problem, (target,), snapshot), operator.cost(problem)
    work = chosen.implementation.work(problem, chosen.config, target)
    residency = guess_residency(chosen.implementation.plan(problem, chosen.config), target)
    return Side(
        flops=(work.mma + work.wgmma) * _MMA_FLOPS,
        needed=cost.flops,
        bytes=work.dram_bytes,
        prediction=formula(work, target, residency),
        time_us=_time_us(operator, problem, target, snapshot, worker) if worker else None,
    )


def _time_us(operator: Operator[Any], problem: Any, target: GPU, snapshot: Snapshot, worker: Worker) -> float:
    """The median time of a kernel that was judged right; NaN, and the reason on stderr, where it was not."""
    timed = worker.time(Task(contender(operator, problem, target, snapshot), MeasurementPolicy()))
    if timed.fell is not None:
        print(f"{operator.name}, T = {problem.seq_q}: {timed.fell.reason}", file=sys.stderr)
        return float("nan")
    return estimate([sample.time_us for sample in timed.samples]).mid


def _row(length: int, streaming: Side, dense: Side) -> tuple[str, ...]:
    columns = (
        str(length),
        f"{streaming.flops / 1e9:.2f}",
        f"{streaming.flops / streaming.needed:.2f}",
        f"{streaming.bytes / 1e6:.1f}",
        f"{dense.flops / 1e9:.2f}",
        f"{dense.flops / streaming.flops:.2f} ×",
        f"{dense.prediction.cost / streaming.prediction.cost:.2f} ×",
        streaming.prediction.bottleneck,
    )
    if streaming.time_us is None or dense.time_us is None:
        return columns
    ratio = dense.time_us / streaming.time_us
    return (*columns, f"{streaming.time_us:.1f}", f"{dense.time_us:.1f}", f"{ratio:.2f} ×")


def _text(cells: Sequence[str]) -> str:
    return " ".join(f"{cell:>13}" for cell in cells)


if __name__ == "__main__":
    sys.exit(main())
