"""Replays of whole CTAs beside the durations of FlashAttention-3 on an H100 that others measured: misses first.

    python benchmarks/fa3_replay.py --launches DIR [--data FILE] [--ablate] [--shapes 512]
    python benchmarks/fa3_replay.py --own [--shapes 512]

DIR holds, for each shape, BATCH_SEQLEN_HEADS_HEADDIM_MASK.json and the cubin that it names: {"cubin": file name,
"grid": [x, y, z], "threads": n, "smem_bytes": n, "cluster": n, "parameters": hex digits of the parameters from the
start of their constant bank on, "boxes": {offset among the parameters: [bytes, tensor, bytes of the whole tensor]}}.
FlashAttention-3's kernels are not part of this project. `--own` replays this project's wgmma default on the same
shapes. `--data` is another table with the columns of tests/evaluate/predict/data/fa3_h100.tsv. `--ablate` prints what
each term contributes: the error without it. `--shapes` keeps the sequence lengths that are named.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from tuner import operators
from tuner.arch import GPU, gpu
from tuner.base.cache import Cache
from tuner.compiler import nvrtc
from tuner.compiler.cubin import Cubin, sections
from tuner.compiler.render import render
from tuner.compiler.sass import decode
from tuner.compiler.sass.cta.grid import Replay
from tuner.compiler.sass.cta.grid import replay as replay_kernel
from tuner.compiler.sass.cta.launch import Box, KernelLaunch
from tuner.compiler.sass.cta.program import Program, program
from tuner.compiler.sass.cta.rates import Rates, rates_of
from tuner.compiler.toolkit import Options
from tuner.errors import TunerError, UsageError
from tuner.evaluate.predict.compiled import predict_launches
from tuner.evaluate.predict.cost import in_turn
from tuner.evaluate.predict.replayed import replay_launch
from tuner.spec.instance import Instance

DATA = Path(__file__).parents[1] / "tests" / "evaluate" / "predict" / "data" / "fa3_h100.tsv"
CLOCK_MHZ = 1500.0  # clock at which the durations were measured
CODE_SECTION = ".text."
_NO_LIMIT = 1e9  # bytes per cycle


@dataclass(frozen=True, slots=True)
class Row:
    """One measured launch."""

    batch: int
    seqlen: int
    heads: int
    head_dim: int
    mask: str
    measured_us: float
    simulated_us: float  # FlashGPU-Sim's prediction

    @property
    def name(self) -> str:
        return f"{self.batch}_{self.seqlen}_{self.heads}_{self.head_dim}_{self.mask}"


def rows(path: Path) -> Iterator[Row]:
    """Read a table whose first lines name its source."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    header, *values = (line.split("\t") for line in lines)
    for value in values:
        row = dict(zip(header, value, strict=True))
        batch, seqlen, heads, head_dim = (int(row[column]) for column in ("B", "S", "H", "D"))
        yield Row(batch, seqlen, heads, head_dim, row["mask"], float(row["ncu_us"]), float(row["flashgpusim_us"]))


@cache
def foreign_program(path: Path) -> Program:
    """Return the only kernel of a cubin."""
    image, target = path.read_bytes(), gpu("H100")
    (name,) = (name for name in sections(image) if name.startswith(CODE_SECTION))
    entry = name.removeprefix(CODE_SECTION)
    code = decode.decode(sections(image)[name].data, target.arch.name)
    return program(entry, decode.disassemble(image)[entry], code, target)


def foreign_launch(path: Path) -> tuple[Program, KernelLaunch]:
    """Return the launch that a file of DIR describes. Raises UsageError for an invalid file."""
    try:
        about: Mapping[str, Any] = json.loads(path.read_text())
        boxes = {
            int(offset): Box(int(size), str(name), int(whole)) for offset, (size, name, whole) in about["boxes"].items()
        }
        x, y, z = (int(side) for side in about["grid"])
        threads, smem_bytes, cluster = (int(about[key]) for key in ("threads", "smem_bytes", "cluster"))
        launch = KernelLaunch((x, y, z), threads, smem_bytes, cluster, bytes.fromhex(about["parameters"]), boxes)
        return foreign_program(path.parent / str(about["cubin"])), launch
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} does not describe a launch: {error!r}") from error


def ablations(rates: Rates) -> Mapping[str, Rates]:
    """Disable one term of the model."""
    return {
        "tail of wgmma": replace(rates, product_tail=0.0, product_tail_from_registers=0.0),
        "issue of wgmma": replace(rates, product_issue=1.0),
        "queue of wgmma": replace(rates, product_queue=8, product_queue_from_registers=8),
        "shared memory's bandwidth": replace(rates, shared_bytes=_NO_LIMIT),
        "DRAM's bandwidth": replace(rates, dram_share=_NO_LIMIT),
        "latency of copies": replace(rates, l2_latency=1.0, dram_latency=1.0),
        "latency of barriers": replace(rates, try_wait=1.0, arrive=1.0, barrier=1.0, remote=1.0),
        "cold instruction cache": replace(rates, fetch_latency=0.0),
        "latency of fences": replace(rates, shared_latency=0.0),
        "launch": replace(rates, launch=0.0),
    }


def foreign_table(folder: Path, table: list[Row], ablate: bool) -> None:
    """Print FlashAttention-3's kernels: measured, replayed, and predicted by FlashGPU-Sim."""
    target, errors = gpu("H100"), []
    for row in table:
        kernel, launch = foreign_launch(folder / f"{row.name}.json")
        begin = time.process_time()
        whole = replay_kernel(kernel, launch, target, rates_of(target, CLOCK_MHZ))
        error = whole.cycles / CLOCK_MHZ / row.measured_us - 1
        errors.append((abs(error), describe(row, whole, error, time.process_time() - begin)))
        if ablate:
            for name, rates in ablations(rates_of(target, CLOCK_MHZ)).items():
                without = replay_kernel(kernel, launch, target, rates, missing=whole.missing).cycles / whole.cycles - 1
                print(f"{row.name:24} without {name}: {without:+.1%}", flush=True)
    print(f"{'shape':24} measured  replayed   error  FlashGPU-Sim  tensor cores  CPU s")
    for _, line in sorted(errors, reverse=True):
        print(line)
    sizes = [size for size, _ in errors]
    simulated = [abs(row.simulated_us / row.measured_us - 1) for row in table]
    print(
        f"mean of |error| {statistics.mean(sizes):.1%}, at most {max(sizes):.1%}; "
        f"FlashGPU-Sim {statistics.mean(simulated):.1%}, at most {max(simulated):.1%}"
    )


def describe(row: Row, replay: Replay, error: float, seconds: float) -> str:
    """Format a row of the table."""
    busy = replay.traces[0].products / replay.traces[0].end
    microseconds = replay.cycles / CLOCK_MHZ
    peer = row.simulated_us / row.measured_us - 1
    times = f"{row.measured_us:8.2f}  {microseconds:8.2f}"
    return f"{row.name:24} {times}  {error:+6.1%}  {peer:+12.1%}  {busy:12.0%}  {seconds:5.1f}"


def own_table(table: list[Row]) -> None:
    """Print this project's default, replayed and predicted by its cost, relative to FlashAttention-3's measured
    duration.
    """
    target = gpu("H100")
    operator = operators.load("flash_attention")
    implementation = operators.implementation("flash_attention", "wgmma")
    print(f"{'shape':24} FA3 took  replayed  over FA3  cost as clocks over FA3  CPU s")
    for row in table:
        problem = operator.problem(
            head_dim=row.head_dim,
            causal=row.mask == "causal",
            batch=row.batch,
            heads=row.heads,
            seq_q=row.seqlen,
        )
        instance = Instance.default(operator, implementation, problem, target.arch)
        cubin = compiled(instance, target)
        begin = time.process_time()
        launches = [replay_launch(instance, x, cubin, target, CLOCK_MHZ) for x in instance.plan().launches]
        microseconds = sum(launch.cycles for launch in launches) / CLOCK_MHZ
        cost = in_turn([prediction for _, prediction in predict_launches(instance, target, cubin)]).cost / CLOCK_MHZ
        print(
            f"{row.name:24} {row.measured_us:8.2f}  {microseconds:8.2f}  {microseconds / row.measured_us:8.2f}  "
            f"{cost / row.measured_us:23.2f}  {time.process_time() - begin:5.1f}",
            flush=True,
        )


def compiled(instance: Instance, target: GPU) -> Cubin:
    """Compile a config. Raises UsageError if the compiler fails."""
    cubin = nvrtc.compile(render(instance), Options(target.arch.name), Cache.of("cubin"))
    if not isinstance(cubin, Cubin):
        raise UsageError(f"{instance.name} does not compile: {cubin.reason}")
    return cubin


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=Path, help="folder of launches of FlashAttention-3")
    parser.add_argument("--data", type=Path, default=DATA, help="table of measured durations")
    parser.add_argument("--own", action="store_true", help="replay this project's wgmma default")
    parser.add_argument("--ablate", action="store_true", help="replay each shape without each term, too")
    parser.add_argument("--shapes", nargs="*", type=int, help="sequence lengths")
    options = parser.parse_args()
    table = [row for row in rows(options.data) if not options.shapes or row.seqlen in options.shapes]
    try:
        if options.own:
            own_table(table)
        elif options.launches:
            foreign_table(options.launches, table, options.ablate)
        else:
            parser.error("--launches DIR, or --own")
    except TunerError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
