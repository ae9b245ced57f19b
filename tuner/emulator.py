"""Run CUDA kernels on the CPU and find their bugs: races, wild accesses, uninitialised reads, deadlocks, lateness."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import astuple
from typing import Any, NamedTuple

import numpy as np

from tuner.argument import span
from tuner.emulator_kernel import Finding, Kernel, Mode, Run, build
from tuner.emulator_memory import Array, Buffer, TensorMap, base_address, encode, tensor_map
from tuner.emulator_pool import Pool
from tuner.emulator_runtime import Counters
from tuner.operator import Argument, Implementation, Launch, Operator, Plan, Role, parameters, scalars
from tuner.render import render
from tuner.tensor_map import MappedTensor

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
    operator: Operator[Any],
    implementation: Implementation[Any, Any],
    problem: Any,
    config: Any,
    arrays: Mapping[str, Any],
    mode: Mode,
    *,
    instrumented: bool = False,
) -> tuple[dict[str, Array], Run]:
    """Run a config on a problem: (every output by name, what happened).

    `arrays` holds every input by name, and scalars that are not to take their default. What is updated in place is a
    copy, and one of the outputs here. Launches after one with findings are skipped; outputs that nobody wrote are NaN.
    A plain run may use the build for checked ones, `instrumented`: one build then serves both, and runs longer.
    """
    plan = implementation.plan(problem, config)
    kernel = build(render(operator, implementation, problem, config, "host"), checked=mode.checked or instrumented)
    with _device(operator, problem, plan, arrays) as device:
        values = scalars(operator, problem, arrays)
        runs: list[Run] = []
        for launch in plan.launches:
            arguments = _arguments(operator, problem, plan, launch, device, values)
            sizes = launch.grid, launch.threads, launch.smem_bytes
            runs.append(kernel.launch(launch.entry, *sizes, arguments, mode, cluster=launch.cluster))
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
        nbytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        buffer = Buffer(argument.name, nbytes, writable=True, initialized=False)
        return _Tensor(buffer, buffer.view(dtype, shape))
    source = argument.laid_out(argument.drawn(problem, arrays))
    buffer = Buffer(argument.name, span(source), writable=argument.written)
    view = buffer.view(dtype, shape, source.strides)
    view[...] = source
    return _Tensor(buffer, view)


def _arguments(
    operator: Operator[Any],
    problem: Any,
    plan: Plan,
    launch: Launch,
    device: Mapping[str, _Tensor],
    values: Mapping[str, float],
) -> list[Buffer | np.generic]:
    found: list[Buffer | np.generic] = []
    for parameter in parameters(operator, problem, plan, launch):
        if parameter.pointer:
            found.append(device[parameter.argument].buffer)
        elif parameter.tensor_map is not None:
            tensor, array = device[parameter.argument], device[parameter.argument].array
            steps = tuple(stride // array.itemsize for stride in array.strides)
            address = tensor.buffer.address
            found.append(encode(MappedTensor.of(parameter.tensor_map, parameter.dtype, address, array.shape, steps)))
        elif parameter.axis is not None:
            array = device[parameter.argument].array
            found.append(np.int64(array.strides[parameter.axis] // array.itemsize))
        else:
            found.append(parameter.dtype.numpy.type(values[parameter.argument]))
    return found
