"""Check the timer against other timers on the same work, one row per question, with what the row proves.

Each question is answered in a process that uses the device, and torch if installed. Run as a program, this is the
target of Nsight Compute: torch's cuDNN attention, a few times.
"""

import csv
import io
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from statistics import median
from typing import Any

from tuner.backends import gpu
from tuner.bench import peers
from tuner.bench.peers import AbsentError
from tuner.evaluate.measure.device import Device, DeviceFaultError
from tuner.evaluate.measure.gpu_device import GpuDevice
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.evaluate.measure.samples import typical
from tuner.evaluate.measure.worker import DeviceOpener

COLD, WARM = MeasurementPolicy(), MeasurementPolicy(l2="warm")
_MB = 1 << 20
_COPY_BYTES = 256 * _MB  # bytes read, and the same number written
_ON_DEVICE = 3  # cudaMemcpyDeviceToDevice
_AGREE = 0.03  # maximum relative difference of three timers
_IDLE_S, _WATCHED_S = 5.0, 0.3
_KEPT = 100  # number of launches observed
_SINGLE = 500  # number of launches beside busy cores
_MATMUL_S, _MATMUL = 2.0, 8192
_ATTENTION = (2, 16, 8192, 128)  # batch, heads, tokens, head_dim
_RUNS, _NCU_S = 20, 25.0  # number of runs for Nsight Compute, and its time limit
_TIME, _CLOCK = "gpu__time_duration.sum", "sm__cycles_elapsed.avg.per_second"
# Minimum rates of a device with correct clocks and timer: (GB/s of a copy, TFLOP/s of a product).
_LEAST = {"H200": (3800.0, 700.0)}

Found = dict[str, Any]


@dataclass(frozen=True)
class Question:
    """One row: `ask` answers it on a device, and `proves` states what the answer says about the timer."""

    name: str
    ask: Callable[[Device], Found]
    may_take_s: float
    proves: str


def monitor(device: Device) -> Found:
    took = sorted(_seconds(device.state) for _ in range(50))
    return {
        "state_us": 1e6 * median(took),
        "most_us": 1e6 * took[-1],
        "summary": f"a look takes {1e6 * median(took):.0f} us",
    }


def floor(device: Device) -> Found:
    floors = {}
    for launch in ("eager", "graph"):
        try:
            floors[launch] = device.floor_us(replace(COLD, launch=launch))
        except DeviceFaultError as error:
            floors[launch] = str(error)
    summary = ", ".join(
        f"{launch} {us:.2f} us" if isinstance(us, float) else f"{launch}: {us}" for launch, us in floors.items()
    )
    return {"floor_us": floors, "summary": summary}


def ticks(device: Device) -> Found:
    times = sorted(set(device.times_us(device.ready_copy(512), 200, COLD)))
    steps = [late - early for early, late in pairwise(times) if late - early > 1e-3]
    return {"step_us": min(steps, default=0.0), "summary": f"times differ by at least {min(steps, default=0.0):.3f} us"}


def idle(device: Device) -> Found:
    """Measure (seconds since the first, microseconds, MHz) of single launches, starting on an idle device."""
    copy = device.ready_copy(64 * _MB)
    device.times_us(copy, 1, COLD)
    time.sleep(_IDLE_S)
    began, rows = time.monotonic(), []
    while (at := time.monotonic() - began) < _WATCHED_S:
        time_us = typical(device.times_us(copy, 1, COLD))
        rows.append((round(at, 4), time_us, device.state().sm_mhz))
    summary = [f"{time_us:.1f} us at {mhz} MHz" for _, time_us, mhz in (rows[0], rows[-1])]
    rows_kept = rows[:: len(rows) // _KEPT + 1]
    return {
        "launches": rows_kept,
        "summary": f"{summary[0]} after {_IDLE_S:g} s idle, {summary[1]} {rows[-1][0]:.2f} s later",
    }


def copies(device: Device) -> Found:
    """Measure GB/s of a copy for each state of the L2 cache, with our timer and with plain events after a plain
    memset.
    """
    copies = {}
    ready = device.ready_copy(2 * _COPY_BYTES)
    for name, policy in (("clean flush", COLD), ("no flush", WARM)):
        for _ in range(3):  # the first one raises the clock
            copies[name] = _gb_s(typical(device.times_us(ready, 20, policy)))
    if isinstance(device, GpuDevice):
        copies["dirty flush, plain events"] = _gb_s(_plain_copy_us())
    return {"copy_gb_s": copies, "summary": ", ".join(f"{name} {rate:.0f} GB/s" for name, rate in copies.items())}


def attention(device: Device) -> Found:
    """Measure microseconds with three timers, and the clock that each observed; times may differ if the clocks do."""
    run, mhz = _attention(), {}
    times = {"ours": median(typical(device.times_us(run, 10, COLD)) for _ in range(10))}
    mhz["ours"] = device.state().sm_mhz
    bench = peers.module("triton.testing").do_bench
    times["do_bench"] = 1e3 * float(bench(run, warmup=100, rep=300, return_mode="median"))
    mhz["do_bench"] = device.state().sm_mhz
    try:
        times["ncu"], mhz["ncu"] = _by_ncu()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return _agreeing(times, mhz) | {"without": {"ncu": str(error)[-300:]}}
    return _agreeing(times, mhz)


def matmul(device: Device) -> Found:
    """Run a large bf16 product for seconds: its rate, the clock and the power cap."""
    torch = peers.gpu_torch()
    a, b = (torch.randn(_MATMUL, _MATMUL, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    times, states, began = [], [], time.monotonic()
    while time.monotonic() - began < _MATMUL_S:
        times.append(_event_us(torch, lambda: torch.matmul(a, b)))
        states.append(device.state())
    warm = slice(len(times) // 4, None)
    rate = 2e-6 * _MATMUL**3 / median(times[warm])
    clocks = [state.sm_mhz for state in states[warm]]
    capped = sum(state.capped for state in states[warm]) / len(clocks)
    summary = (
        f"bf16 matmul {rate:.0f} TFLOP/s at {min(clocks)} to {max(clocks)} MHz, power capped {capped:.0%} of the time"
    )
    return {"tflop_s": rate, "sm_mhz": [min(clocks), max(clocks)], "capped": capped, "summary": summary}


def busy(device: Device) -> Found:
    """Measure single launches, alone and with a busy process on each core."""
    copy, rates = device.ready_copy(4 * _MB), {}
    device.times_us(copy, 8, COLD)
    for name in ("alone", "beside busy cores"):
        with _busy_cores() if name != "alone" else _nothing():
            times, late = [], []
            for _ in range(_SINGLE):
                times += device.times_us(copy, 1, COLD)
                late.append(device.state().late)
        rates[name] = {"time_us": median(times), "late": sum(late) / len(late)}
    apart = rates["beside busy cores"]["time_us"] / rates["alone"]["time_us"] - 1
    summary = f"{apart:+.1%} beside busy cores, {rates['beside busy cores']['late']:.1%} of launches late"
    return {"launches": rates, "apart": apart, "summary": summary}


QUESTIONS = (
    Question("monitor", monitor, 8, "the cost of reading the clock between launches"),
    Question("floor", floor, 5, "the minimum time: differences below it are not meaningful"),
    Question("ticks", ticks, 3, "the resolution of events, which limits the accuracy of a single launch"),
    Question("idle", idle, 8, "how long the clock takes to rise: the warm-up must be longer"),
    Question(
        "copies", copies, 5, "that the flush does not slow the kernel, and that our timer agrees with plain events"
    ),
    Question("attention", attention, 40, "that three timers agree on a third-party kernel"),
    Question("matmul", matmul, 6, "the clock under full load, and whether the power-cap bit reports it"),
    Question("busy", busy, 10, "that concurrent compilers do not affect times"),
)


def answer(job: tuple[DeviceOpener, str]) -> Found:
    """Answer a question in the process that uses the device."""
    opener, name = job
    question = next(question for question in QUESTIONS if question.name == name)
    try:
        result = question.ask(_device(opener))
    except AbsentError as error:
        result = {"summary": f"absent: {error}"}
    return result | {"proves": question.proves}


def warned(result: Found, model: str) -> Found:
    """Add a warning if a rate is below the minimum of the model, because later results are then unreliable."""
    warnings = []
    copy, product = _LEAST.get(model, (0.0, 0.0))
    rate = max(_rates(result), default=copy)
    if rate < copy:
        warnings.append(
            f"copies at {rate:.0f} GB/s, but at least {copy:.0f} are expected: check the clocks and the timer"
        )
    if result.get("tflop_s", product) < product:
        warnings.append(
            f"matmul at {result['tflop_s']:.0f} TFLOP/s, but at least {product:.0f} are expected: check clocks, power"
        )
    if result.get("apart", 0.0) > _AGREE:
        warnings.append(f"times are {result['apart']:.1%} apart, but {_AGREE:.0%} are allowed: do not trust the timer")
    return result | ({"warning": "; ".join(warnings)} if warnings else {})


def _rates(result: Found) -> list[float]:
    """Return the rates of copies: one, or one per timing method."""
    rates = result.get("copy_gb_s", {})
    return list(rates.values()) if isinstance(rates, dict) else [rates]


@cache
def _device(opener: DeviceOpener) -> Device:
    return opener.open()


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _gb_s(time_us: float) -> float:
    return 2e-3 * _COPY_BYTES / time_us


def _plain_copy_us() -> float:
    """Time a copy without our code: events around each copy, after a memset larger than the L2 cache."""
    runtime = gpu.opened().cuda.runtime
    source, target, flush = (runtime.malloc(_COPY_BYTES) for _ in range(3))
    begin, end, times = runtime.eventCreate(), runtime.eventCreate(), []
    for _ in range(30):
        runtime.memsetAsync(flush, 0, _COPY_BYTES, 0)
        runtime.eventRecord(begin, 0)
        runtime.memcpyAsync(target, source, _COPY_BYTES, _ON_DEVICE, 0)
        runtime.eventRecord(end, 0)
        runtime.eventSynchronize(end)
        times.append(1e3 * float(runtime.eventElapsedTime(begin, end)))
    for address in (source, target, flush):
        runtime.free(address)
    return median(times[10:])


def _event_us(torch: Any, work: Callable[[], object]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return 1e3 * float(begin.elapsed_time(end))


def _attention() -> Callable[[], object]:
    torch, nn = peers.gpu_torch(), peers.module("torch.nn.attention")
    q, k, v = (torch.randn(_ATTENTION, device="cuda", dtype=torch.bfloat16) for _ in range(3))

    def run() -> object:
        with nn.sdpa_kernel(nn.SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    run()
    return run


def _by_ncu() -> tuple[float, int]:
    """Return (median gpu__time_duration of all kernels of a run, over the later runs; MHz). Raises ValueError with
    ncu's error.
    """
    ncu = shutil.which("ncu")
    if ncu is None:
        raise ValueError("Nsight Compute (ncu) is not on the PATH")
    options = ["--clock-control", "none", "--profile-from-start", "off", "--metrics", f"{_TIME},{_CLOCK}", "--csv"]
    command = [ncu, *options, "--print-units", "base", sys.executable, __file__]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=_NCU_S, check=False)
    lines = finished.stdout.splitlines()
    head = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if head is None:
        raise ValueError((finished.stderr + finished.stdout).strip() or "ncu said nothing")
    values: dict[str, list[float]] = {_TIME: [], _CLOCK: []}
    for row in csv.DictReader(io.StringIO("\n".join(lines[head:]))):
        values[row["Metric Name"]].append(float(row["Metric Value"].replace(",", "")))
    times = values[_TIME]
    if not times or len(times) % _RUNS:
        raise ValueError(f"ncu saw {len(times)} kernels in {_RUNS} runs")
    kernels = len(times) // _RUNS
    runs = [1e-3 * sum(times[i : i + kernels]) for i in range(0, len(times), kernels)]
    return median(runs[_RUNS // 2 :]), round(1e-6 * median(values[_CLOCK])) if values[_CLOCK] else 0


def _agreeing(times: dict[str, float], mhz: dict[str, int]) -> Found:
    apart = max(times.values()) / min(times.values()) - 1
    times_text = ", ".join(f"{name} {us:.1f} us at {mhz[name]} MHz" for name, us in times.items())
    summary = f"cuDNN attention: {times_text}, {apart:.1%} apart"
    return {"time_us": times, "sm_mhz": mhz, "apart": apart, "summary": summary}


@contextmanager
def _busy_cores() -> Iterator[None]:
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def main() -> None:
    """Run the target of Nsight Compute."""
    run, torch = _attention(), peers.gpu_torch()
    for _ in range(_RUNS):
        run()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    for _ in range(_RUNS):
        run()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


if __name__ == "__main__":
    main()
