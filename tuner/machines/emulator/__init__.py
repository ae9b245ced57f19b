"""Run CUDA kernels on the CPU and find their bugs: races, wild accesses, uninitialised reads, deadlocks, lateness."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import astuple
from typing import Any, NamedTuple

import numpy as np

from tuner.compiler.render import render
from tuner.machines.emulator.kernel import Finding, Kernel, Mode, Run, build
from tuner.machines.emulator.memory import Array, Buffer, TensorMap, base_address, encode, tensor_map
from tuner.machines.emulator.pool import Pool
from tuner.machines.emulator.runtime import Counters
from tuner.spec.argument import Argument, Located, Role, span
from tuner.spec.instance import Instance
from tuner.spec.operator import Operator
from tuner.spec.parameters import parameters, scalars
from tuner.spec.plan import Plan

__all__ = [
    "Buffer",
    "Counters",
    "Finding",
    "Kernel",
    "Mode",
    "Pool",
    "Run",
    "TensorMap",
    "base_address",
    "build",
    "encode",
    "run",
    "tensor_map",
]


def run(
    instance: Instance,
    arrays: Mapping[str, Any],
    mode: Mode,
    *,
    instrumented: bool = False,
    most_seconds: float = 0.0,
) -> tuple[dict[str, Array], Run]:
    """Run a config on a problem: (every output by name, what happened).

    `arrays` holds every input by name, and scalars that are not to take their default. What is updated in place is a
    copy, and one of the outputs here. Launches after one with findings are skipped; outputs that nobody wrote are NaN.
    A plain run may use the build for checked ones, `instrumented`: one build then serves both, and runs longer. One
    that is still running after `most_seconds` of CPU time is a finding (0: it may take any).
    """
    operator, problem, plan = instance.operator, instance.problem, instance.plan()
    kernel = build(render(instance, "host"), checked=mode.checked or instrumented)
    with _device(operator, problem, plan, arrays) as device:
        given = scalars(operator, problem, arrays)
        tensors = {name: Located.of(each.buffer.address, each.array) for name, each in device.items()}
        runs: list[Run] = []
        for launch in plan.launches:
            arguments = [each.value(tensors, given) for each in parameters(operator, problem, plan, launch)]
            runs.append(kernel.run(launch, arguments, mode, most_seconds=most_seconds))
            if runs[-1].findings:
                break
        outputs = {argument.name: device[argument.name].array.copy() for argument in operator.written}
    return outputs, _sum(runs)


def _sum(runs: list[Run]) -> Run:
    counted = zip(*(astuple(run.counters) for run in runs), strict=True)
    return Run(
        findings=tuple(finding for run in runs for finding in run.findings),
        counters=Counters(*map(sum, counted)),
        block_counters=np.concatenate([run.block_counters for run in runs]),
        cpu_seconds=sum(run.cpu_seconds for run in runs),
    )


class _Tensor(NamedTuple):
    buffer: Buffer
    array: Array  # a view of it


@contextmanager
def _device(
    operator: Operator[Any], problem: Any, plan: Plan, arrays: Mapping[str, Any]
) -> Iterator[dict[str, _Tensor]]:
    device: dict[str, _Tensor] = {}
    with ExitStack() as stack:
        for argument in operator.arguments:
            if argument.role is not Role.SCALAR:
                device[argument.name] = tensor = _tensor(argument, problem, arrays)
                stack.enter_context(tensor.buffer)
        for space in plan.workspaces:
            buffer = stack.enter_context(Buffer(space.name, space.nbytes, writable=True, initialized=False))
            device[space.name] = _Tensor(buffer, buffer.view(space.dtype.numpy, space.shape))
        yield device


def _tensor(argument: Argument, problem: Any, arrays: Mapping[str, Any]) -> _Tensor:
    dtype, shape = argument.dtype_of(problem).numpy, argument.shape(problem)
    if not argument.given:
        buffer = Buffer(argument.name, argument.nbytes(problem), writable=True, initialized=False)
        return _Tensor(buffer, buffer.view(dtype, shape))
    source = argument.laid_out(argument.drawn(problem, arrays))
    buffer = Buffer(argument.name, span(source), writable=argument.written)
    view = buffer.view(dtype, shape, source.strides)
    view[...] = source
    return _Tensor(buffer, view)
