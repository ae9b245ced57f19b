"""Compare predictions with published measurements, largest errors first.

    python benchmarks/public_measurements.py [TABLE] [--sources DIR] [--every 4]

`streams`: six streaming kernels at every occupancy. Constants of the model were fitted on "A100 40GB"; the other
devices are held out. `strides`: L1 cycles per warp load. `copies`: bulk copies, one in flight per block. `latencies`:
pointer chasing; rows marked "source" are constants of the model. `reductions` and `convolutions`: the order of seven
sums, and of convolutions by mask, channels and block, on sm_86 cards; DIR is a checkout of
github.com/R100001/Programming-Massively-Parallel-Processors, whose kernels are compiled and predicted unmodified. All
other tables need only tests/evaluate/predict/data.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import public_convolutions
import public_plots
from scipy.stats import spearmanr

from tuner import operators
from tuner.arch import gpu
from tuner.backends import ptx
from tuner.backends.ptx.counting import Sketch, count
from tuner.base.cache import Cache
from tuner.compiler import nvrtc
from tuner.compiler.cubin import Cubin
from tuner.compiler.render import render
from tuner.compiler.source import Source
from tuner.compiler.toolkit import Options
from tuner.errors import TunerError
from tuner.evaluate.predict.compiled import predict_config
from tuner.evaluate.predict.cost import formula, in_turn, load_latency
from tuner.results.attempt import Prediction
from tuner.spec.instance import Instance
from tuner.spec.operator import Work

DATA = Path(__file__).parents[1] / "tests" / "evaluate" / "predict" / "data"
KERNELS = Path(__file__).parent / "public_kernels"
CHOSEN_ON = "A100 40GB"  # the device on which constants of the model were fitted
TABLES = {  # with the unit of their rows
    "streams": "GB/s",
    "strides": "cycles",
    "copies": "GB/s",
    "latencies": "cycles",
    "reductions": "µs",
    "convolutions": "µs",
}
WORST = 5  # rows shown per table


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement and its prediction, in the same unit."""

    group: str
    case: str
    predicted: float
    measured: float
    kernels: str = ""  # the class of kernels, where devices judge predicted times by it

    @property
    def error(self) -> float:
        """The prediction error relative to the measurement."""
        return self.predicted / self.measured - 1


def read(name: str) -> list[dict[str, str]]:
    """Return the rows of a data file by column; its first lines are the source and the licence."""
    lines = [line for line in (DATA / name).read_text().splitlines() if not line.startswith("#")]
    header, *rows = (line.split("\t") for line in lines)
    return [dict(zip(header, row, strict=True)) for row in rows]


def streams(every: int = 1) -> Iterator[Row]:
    """Yield GB/s of each kernel at each block size, for every `every`-th row of the file."""
    with operators.folder(KERNELS):
        operator, kernel = operators.load("streams"), operators.implementation("streams", "fp64")
        for row in read("stream_occupancy.tsv")[::every]:
            target = gpu(row["device"])
            for index, name in enumerate(list(row)[2:]):
                problem = operator.problem(kernel=index)
                instance = Instance(operator, kernel, problem, kernel.config(threads=int(row["block"])))
                seconds = prediction(instance, row["device"]).cost / (target.device.clock_mhz * 1e6)
                moved = operator.cost(problem).bytes / seconds * 1e-9
                yield Row(f"{row['device']}, {name}", f"2 × {row['block']} threads", moved, float(row[name]))


@cache
def prediction(instance: Instance, model: str) -> Prediction:
    """Return the prediction of a config on a GPU model."""
    target = gpu(model)
    cubin = nvrtc.compile(render(instance), Options(target.arch.name), Cache.of("cubin"))
    if not isinstance(cubin, Cubin):
        raise SystemExit(cubin.log)
    return predict_config(instance, target, cubin)


def strides() -> Iterator[Row]:
    """Yield the L1 cycles of one warp load."""
    entries = {name: _loads(name) for name in ("float", "double")}
    for row in read("l1_strides_a100.tsv"):
        memory = Sketch({"x": 1 << 20})
        values = [memory.address("x"), np.int32(row["stride"])]
        counts = count(entries[row["type"]], ptx.Shape((1, 1, 1), 32, 0), memory, values, 1 << 17)
        (access,) = (access for access in counts.accesses if access.kind == "load")
        yield Row(f"A100, {row['type']}", f"stride {row['stride']}", access.wavefronts, float(row["cycles"]))


def _loads(kind: str) -> ptx.Entry:
    text = f"""extern "C" __global__ void loads({kind}* x, int stride) {{
      {kind} value = x[threadIdx.x * stride];
      if (value == 3) x[0] = value;
    }}"""
    found = nvrtc.ptx(Source(("loads",), text, (), "cuda"), Options("sm_80"), Cache.of("ptx"))
    if not isinstance(found, str):
        raise SystemExit(found.log)
    return ptx.parse(found)["loads"]


def copies() -> Iterator[Row]:
    """Yield GB/s of blocks that wait for each copy before they issue the next.

    The serial part of a step is the issue, the arrival and the wait, and the 104 cycles by which a pointer chase
    through bulk copies is slower than one through loads (pointer_chase.tsv, H100 PCIe), which equal three further
    instructions.
    """
    target, moved, sms = gpu("H100 PCIe"), float(1 << 32), 114
    for row in read("bulk_copies_h800.tsv"):
        ctas, nbytes = int(row["ctas"]), float(row["kib"]) * 1024
        work = Work(
            ctas=ctas,
            warps=1,
            fma=0.0,
            alu=0.0,
            smem_wavefronts=moved / 128,
            l2_bytes=moved,
            dram_bytes=moved,
            chain=moved / ctas / nbytes,
            stages=1,
            step_other=6,
        )
        seconds = formula(work, target, -(-ctas // sms)).cost / (target.device.clock_mhz * 1e6)
        case = f"{ctas} × {row['kib']} KiB"
        yield Row(f"H800 PCIe, {row['kind']} copies", case, moved / seconds * 1e-9, float(row["gb_s"]))


def latencies() -> Iterator[Row]:
    """Yield latencies of L2 and DRAM in cycles."""
    sources = {"A100", "A40", "L40", "H100 PCIe"}
    for row in read("pointer_chase.tsv"):
        if row["device"] in ("V100", "GH200") or "tma" in row["device"]:
            model = {"GH200": "H200"}.get(row["device"])
        else:
            model = row["device"]
        if model is None:
            continue
        source = "source" if row["device"] in sources and row["file"].startswith("te42kyfo") else "held out"
        for share, column in ((0.0, "l2"), (1.0, "dram")):
            yield Row(source, f"{row['device']}, {column}", load_latency(share, gpu(model)), float(row[column]))


def reductions(sources: Path) -> Iterator[Row]:
    """Yield the seconds of a reduction of 2^22 to 2^26 elements, over all launches, on each card."""
    header = sources / "Performance-Tests-NvBench" / "reduction" / "reduction_kernels.cuh"
    types = "typedef unsigned int uint32_t;\ntypedef unsigned char uint8_t;"
    text = header.read_text().replace("#include <iostream>", types)
    with tempfile.TemporaryDirectory() as folder:
        _write_reductions(Path(folder), text)
        with operators.folder(Path(folder)):
            operator, kernel = operators.load("sums"), operators.implementation("sums", "public")
            for row in read("reductions_sm86.tsv"):
                config = kernel.config(which=int(row["kernel"]))
                problems = [operator.problem(n=n) for n in _levels(int(row["n"]), config.which)]
                costs = [prediction(Instance(operator, kernel, problem, config), row["device"]) for problem in problems]
                seconds = in_turn(costs).cost / (gpu(row["device"]).device.clock_mhz * 1e6)
                group = f"{row['device']}, 2^{int(row['n']).bit_length() - 1} elements"
                kernels = costs[0].kernels if len({cost.kernels for cost in costs[:2]}) == 1 else ""
                yield Row(group, f"kernel {row['kernel']}", seconds * 1e6, float(row["us"]), kernels)


def convolutions(sources: Path) -> Iterator[Row]:
    """Microseconds of convolutions by kernel, mask, channels and block, on each card."""
    header = sources / "Performance-Tests-NvBench" / "convolution" / "convolution_kernels.cuh"
    text = header.read_text().replace("#include <iostream>", "__constant__ float M[121];")
    with tempfile.TemporaryDirectory() as folder:
        for dims in (1, 2):
            for constant in (False, True):
                public_convolutions.write(Path(folder), dims, constant=constant, kernel="// {{ which }}\n" + text)
        with operators.folder(Path(folder)):
            for row in read("convolutions_sm86.tsv"):
                yield _convolved(row)


def _convolved(row: Mapping[str, str]) -> Row:
    dims = 1 if "1D" in row["kernel"] else 2
    name = f"convolutions_{dims}d_{'masked' if 'basic' in row['kernel'] else 'constant'}"
    operator, kernel = operators.load(name), operators.implementation(name, "public")
    size, mask, block = int(row["size"]), int(row["mask"]), int(row["block"])
    problem = operator.problem(size=size, mask=mask, channels=int(row["channels"]))
    config = kernel.config(which=row["kernel"], block=block)
    cost = prediction(Instance(operator, kernel, problem, config), row["device"])
    case = f"{row['kernel']} mask {mask}, {row['channels']} channels, block {block}"
    us = cost.cost / gpu(row["device"]).device.clock_mhz
    return Row(f"{row['device']}, convolutions {dims}D", case, us, float(row["us"]), cost.kernels)


def _levels(n: int, which: int) -> Iterator[int]:
    """Yield the number of elements of each launch; a block of 512 threads reduces one or two elements per thread to
    one.
    """
    while n > 1:
        yield n
        n = -(-n // (1024 if which > 3 else 512))


def _write_reductions(place: Path, text: str) -> None:
    folder = place / "sums" / "public"
    folder.mkdir(parents=True)
    (folder.parent / "operator.py").write_text(_SUMS)
    (folder / "implementation.py").write_text(_PUBLIC)
    (folder / "kernel.cu.jinja").write_text("{# which: {{ which }} #}\n" + text + "\n// {{ which }}\n")


_SUMS = """\
from dataclasses import dataclass

import numpy as np

from tuner.spec import Argument, Cost, DType, Operator, Role, extent


@dataclass(frozen=True)
class Problem:
    n: int = extent("elements", default=1 << 20)


def reference(problem, arrays):
    raise NotImplementedError("these kernels are compiled and predicted, not run")


OPERATOR = Operator(
    name="sums", summary="sum", problem=Problem, reference=reference, tails=lambda problem: (problem,),
    arguments=(
        Argument("X", DType.INT32, ("n",)), Argument("n", DType.INT32, role=Role.SCALAR),
        Argument("Y", DType.INT32, ("n",), Role.OUTPUT),
    ),
    cost=lambda problem: Cost(flops=float(problem.n), bytes=4.0 * problem.n),
    inputs=lambda problem, rng, kind: {"X": np.zeros(problem.n, np.int32)},
)
"""
_PUBLIC = """\
from dataclasses import dataclass

from tuner.spec import Implementation, Launch, Plan, Space

THREADS = 512


@dataclass(frozen=True, slots=True)
class Config:
    which: int


def space(problem, arch):
    return Space(Config, choices={"which": tuple(range(1, 8))})


def plan(p, c):
    blocks = -(-p.n // (THREADS * (2 if c.which > 3 else 1)))
    return Plan((Launch(f"reduction{c.which}<unsigned int>", (blocks, 1, 1), THREADS, THREADS * 4),), {})


IMPLEMENTATION = Implementation(
    name="public", summary="as published", config=Config, space=space, plan=plan, checked_on="ptx"
)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="?", choices=TABLES)
    parser.add_argument("--sources", type=Path, metavar="DIR", help="the checkout that `reductions` needs")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="of `streams`, every N-th row")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="write every row and a scatter plot of each table there"
    )
    arguments = parser.parse_args()
    tables: Mapping[str, Callable[[], Iterator[Row]]] = {
        "streams": lambda: streams(arguments.every),
        "strides": strides,
        "copies": copies,
        "latencies": latencies,
    }
    if arguments.sources:
        tables = {
            **tables,
            "reductions": lambda: reductions(arguments.sources),
            "convolutions": lambda: convolutions(arguments.sources),
        }
    for name, rows in tables.items():
        if arguments.table in (None, name):
            began = time.process_time()
            measurements = list(rows())
            print_table(name, measurements, time.process_time() - began)
            if arguments.out:
                public_plots.write(name, TABLES[name], measurements, arguments.out)


def print_table(name: str, rows: Sequence[Row], seconds: float) -> None:
    """Print errors by group, the worst first, then the rows with the largest errors."""
    print(f"\n{name}: {len(rows)} measurements, {seconds:.0f} s of CPU")
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    by_error = sorted(groups.items(), key=lambda item: -mean_error(item[1]))
    for group, members in by_error:
        errors = sorted(row.error for row in members)
        correlation = rank_correlation(members)
        print(
            f"  {group:32} n {len(members):4}  mean |error| {mean_error(members):6.1%}  "
            f"from {errors[0]:+.0%} to {errors[-1]:+.0%}{correlation}"
        )
    if name == "streams":
        held_out = [row for row in rows if not row.group.startswith(CHOSEN_ON)]
        low, high = np.quantile([row.predicted / row.measured - 1 for row in held_out], (0.05, 0.95))
        print(
            f"  held out: n {len(held_out)}, mean |error| {mean_error(held_out):.1%}; of measured over predicted time, "
        )
        print(f"  percentiles 5 and 95 minus 1: {low:+.3f} {high:+.3f}")
    for kernels in sorted({row.kernels for row in rows} - {""}):
        of_class = [row.measured / row.predicted - 1 for row in rows if row.kernels == kernels]
        low, middle, high = np.quantile(of_class, (0.05, 0.5, 0.95))
        print(
            f"  class {kernels}: n {len(of_class)}; of measured over predicted time, percentiles 5, 50 and 95 minus 1: "
        )
        print(f"    {low:+.3f} {middle:+.3f} {high:+.3f}")
    for row in sorted(rows, key=lambda row: -abs(row.error))[:WORST]:
        print(f"    miss: {row.group}, {row.case}: predicted {row.predicted:.4g}, measured {row.measured:.4g}")


def mean_error(rows: Sequence[Row]) -> float:
    return statistics.mean(abs(row.error) for row in rows)


def rank_correlation(rows: Sequence[Row]) -> str:
    if len(rows) < 5:
        return ""
    value: Any = spearmanr([row.predicted for row in rows], [row.measured for row in rows]).statistic
    return f"  Spearman {value:.3f}" if np.isfinite(value) else ""


if __name__ == "__main__":
    try:
        main()
    except TunerError as error:
        sys.exit(f"public_measurements: {error}")
