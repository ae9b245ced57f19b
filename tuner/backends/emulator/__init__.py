"""The CPU emulator for CUDA kernels. It detects races, out-of-bounds accesses, uninitialised reads, deadlocks and
hangs.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import astuple
from typing import Any, NamedTuple

import numpy as np

from tuner.backends.emulator.kernel import DEFAULT_ARCH, Finding, Kernel, Mode, Run, build
from tuner.backends.emulator.memory import Array, Buffer, EncodedTensorMap, encode, tensor_map
from tuner.backends.emulator.pool import Pool
from tuner.backends.emulator.runtime import Counters
from tuner.compiler.render import render
from tuner.spec.instance import Instance
from tuner.spec.layout import Layout, Region, workspaces

__all__ = [
    "DEFAULT_ARCH",
    "Buffer",
    "Counters",
    "EncodedTensorMap",
    "Finding",
    "Kernel",
    "Mode",
    "Placed",
    "Pool",
    "Run",
    "build",
    "encode",
    "placed",
    "run",
    "tensor_map",
]


class Placed(NamedTuple):
    """A region in the emulator's memory."""

    address: int
    array: Array  # view of the region


def run(
    instance: Instance,
    arrays: Mapping[str, Any],
    mode: Mode,
    *,
    arch: str = DEFAULT_ARCH,
    instrumented: bool = False,
    most_seconds: float = 0.0,
) -> tuple[dict[str, Array], Run]:
    """Run a config on a problem and return its outputs by name and a `Run`.

    `arrays` holds every input by name, and scalars that do not use their default. Arrays that are updated in place are
    copied, and the copies are among the outputs. Launches after one with findings are skipped; outputs that no kernel
    wrote are NaN. `mma.sync` rounds like the tensor cores of `arch`. A plain run may use the `instrumented` build for
    checked runs: one build then serves both, but runs slower. Exceeding `most_seconds` of CPU time is a finding (0: no
    limit).
    """
    plan, layout = instance.plan(), Layout.of(instance.operator, instance.problem, arrays)
    kernel = build(render(instance, "host"), checked=mode.checked or instrumented)
    with placed((*layout.tensors, *workspaces(plan))) as memory:
        runs: list[Run] = []
        for argument in instance.operator.constants:
            kernel.fill(argument.name, memory[argument.name].array)
        for launch, values in layout.launches(plan, {name: array.address for name, array in memory.items()}):
            runs.append(kernel.run(launch, values, mode, arch=arch, most_seconds=most_seconds))
            if runs[-1].findings:
                break
        outputs = {argument.name: memory[argument.name].array.copy() for argument in instance.operator.written}
    return outputs, _sum(runs)


def _sum(runs: list[Run]) -> Run:
    counted = zip(*(astuple(run.counters) for run in runs), strict=True)
    return Run(
        findings=tuple(finding for run in runs for finding in run.findings),
        counters=Counters(*map(sum, counted)),
        block_counters=np.concatenate([run.block_counters for run in runs]),
        cpu_seconds=sum(run.cpu_seconds for run in runs),
    )


@contextmanager
def placed(regions: Iterable[Region]) -> Iterator[dict[str, Placed]]:
    """Allocate each region between guard pages and copy its initial contents; the rest is poisoned."""
    memory: dict[str, Placed] = {}
    with ExitStack() as stack:
        for region in regions:
            initialized = region.initial is not None
            buffer = Buffer(region.name, region.nbytes, writable=region.writable, initialized=initialized)
            stack.enter_context(buffer)
            view = region.view(buffer.view(np.uint8, (region.nbytes,)))
            if region.initial is not None:
                view[...] = region.initial
            memory[region.name] = Placed(buffer.address, view)
        yield memory
