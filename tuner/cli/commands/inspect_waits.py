"""The output of `tuner inspect --waits`: predicted warp stalls, from a replay of each launch's machine code."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tuner.arch import GPU, PARTITIONS
from tuner.cli.output import table
from tuner.compiler.cubin import Cubin
from tuner.compiler.sass.fields import BYTES
from tuner.compiler.sass.simulate import PathCycles, simulate_kernel
from tuner.compiler.usage import occupancy
from tuner.spec.plan import Launch

_SHOWN = 4  # number of causes, and of locations
_LISTED = 20  # number of locations in JSON


@dataclass(frozen=True, slots=True)
class Waiting:
    """The paths of one kernel, with the number of warps per scheduler."""

    kernel: str
    warps: int
    paths: tuple[PathCycles, ...]


def waiting(cubin: Cubin, launches: Sequence[Launch], gpu: GPU) -> tuple[Waiting, ...]:
    """Return each kernel of `launches` once."""
    return tuple(_of_launch(cubin, launch, gpu) for launch in {launch.entry: launch for launch in launches}.values())


def _of_launch(cubin: Cubin, launch: Launch, gpu: GPU) -> Waiting:
    """Return the stalls with as many resident blocks per SM as fit, limited by the grid."""
    fits = occupancy(cubin.entries[launch.entry], launch, gpu.arch).ctas
    x, y, z = launch.grid
    blocks = max(1, min(fits, -(-x * y * z // gpu.device.sm_count)))
    warps = -(-blocks * launch.block_threads // 32 // PARTITIONS)  # of the scheduler with the most warps
    return Waiting(
        launch.entry, warps, simulate_kernel(cubin.instructions(launch.entry), gpu, warps, min(blocks, warps))
    )


def print_waiting(kernels: Sequence[Waiting]) -> None:
    """Print one row per path: the whole kernel, then its loops."""
    names = ("kernel", "path", "instructions", "busiest pipe", "alone", "together", "waits for", "longest before")
    table(
        "where a warp waits, predicted: clocks of one of an SM's four schedulers a pass, by a replay of the control "
        "bits with latencies that others measured; no times. together: a warp's share, beside those that are resident",
        names,
        [(kernel.kernel, *_row(path, kernel.warps)) for kernel in kernels for path in kernel.paths],
        right=("instructions", "alone", "together"),
    )


def _row(path: PathCycles, warps: int) -> tuple[str, ...]:
    pipe, clocks = next(iter(path.pipes.items()))
    causes = (f"{cause} {clocks:.0f}" for cause, clocks in path.causes.items())
    stalls = (f"{wait.index * BYTES:#x}: {wait.cause} {wait.cycles:.0f}" for wait in path.stalls)
    together = f"{path.together:.0f} ({warps})" if path.path.repeats else ""
    return (
        _span(path),
        str(len(path.path.indices)),
        f"{pipe} {clocks:.0f}",
        f"{path.alone:.0f}",
        together,
        ", ".join(islice(causes, _SHOWN)),
        ", ".join(islice(stalls, _SHOWN)),
    )


def _span(path: PathCycles) -> str:
    first, last = (path.path.indices[at] * BYTES for at in (0, -1))
    return f"loop {first:#x} to {last:#x}" if path.path.repeats else "once through"


def as_json(kernels: Sequence[Waiting]) -> list[dict[str, Any]]:
    """Return one value per path; locations are byte offsets in the kernel's code."""
    return [
        {
            "kernel": kernel.kernel,
            "path": _span(path),
            "instructions": len(path.path.indices),
            "pipes": path.pipes,
            "alone": path.alone,
            "together": path.together,
            "warps": kernel.warps,
            "causes": path.causes,
            "waits": [
                {"at": wait.index * BYTES, "cause": wait.cause, "clocks": wait.cycles} for wait in path.stalls[:_LISTED]
            ],
        }
        for kernel in kernels
        for path in kernel.paths
    ]
