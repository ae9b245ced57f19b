"""A plan loaded on one GPU, for the dispatcher to call."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tuner.compiler.cubin import Cubin
from tuner.dispatcher.arrays import Framework
from tuner.dispatcher.binding import Binding
from tuner.errors import MachineError
from tuner.machines.gpu import constant_places, driver_error, grant_shared, opened, tensor_map
from tuner.spec.argument import Parameter, Role
from tuner.spec.operator import Operator
from tuner.spec.parameters import parameters, scalars
from tuner.spec.plan import Launch, Plan
from tuner.spec.tensor_map import MappedTensor

_ON_DEVICE = 3  # cudaMemcpyKind


class GpuKernel:
    """A plan loaded on one device: call it with arrays that fit `binding` and the scalars that the caller gives.

    The arrays and the outputs, in the operator's order, are of `framework`. A call returns when the launches are
    queued on the framework's current stream.
    """

    def __init__(
        self, operator: Operator[Any], binding: Binding, plan: Plan, cubin: Cubin, framework: Framework, ordinal: int
    ) -> None:
        cuda = opened().cuda
        self._framework, self._ordinal, self._device = framework, ordinal, cuda.Device
        self._problem, self._outputs, self._workspaces = binding.problem, operator.outputs, plan.workspaces
        self._tensors = binding.tensors
        self._scalars = scalars(operator, binding.problem)
        with cuda.Device(ordinal):
            self._steps = [_step(operator, binding, plan, launch, cubin) for launch in plan.launches]
            self._symbols = tuple(_symbols(operator, binding, cubin))

    def __call__(self, arrays: Mapping[str, Any], given: Mapping[str, float]) -> tuple[Any, ...]:
        empty, address, place = self._framework.empty, self._framework.address, self._ordinal
        tensors, problem = self._tensors, self._problem
        with self._device(place) as device:
            device.use()  # binds its context to a thread that never used it: CuPy does so only where the device changes
            outputs = {o.name: empty(tensors[o.name].caller_shape, o.dtype_of(problem), place) for o in self._outputs}
            spaces = {space.name: empty(space.shape, space.dtype, place) for space in self._workspaces}
            pointers = {name: address(array) for name, array in {**arrays, **outputs, **spaces}.items()}
            values = {**pointers, **self._scalars, **given}
            stream = self._framework.stream(place)
            for name, symbol, nbytes in self._symbols:
                self._fill(symbol, pointers[name], nbytes, stream)
            for step in self._steps:
                step.launch(values, None if stream is None else _Stream(stream))
        return tuple(outputs.values())

    def _fill(self, symbol: int, address: int, nbytes: int, stream: int | None) -> None:
        """A `__constant__` symbol, in the order of the stream: calls on other streams at the same time share it."""
        cuda = opened().cuda
        queue = cuda.get_current_stream().ptr if stream is None else stream
        cuda.runtime.memcpyAsync(symbol, address, nbytes, _ON_DEVICE, queue)


@dataclass(frozen=True, slots=True)
class _Stream:
    """All that CuPy asks of the stream of another framework."""

    ptr: int


@dataclass(frozen=True, slots=True)
class _Step:
    """One launch. `fixed` holds the strides; the places of pointers and scalars are filled at each call."""

    function: Any
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    smem_bytes: int
    fixed: tuple[Any, ...]
    pointers: tuple[tuple[int, str], ...]  # position, argument
    scalars: tuple[tuple[int, str, Any], ...]  # position, argument, NumPy type: CuPy passes a scalar by its own size
    maps: tuple[tuple[int, MappedTensor], ...]  # position, tensor at an address that is not known yet

    def launch(self, values: Mapping[str, Any], stream: _Stream | None) -> None:
        """Raises MachineError when the driver refuses the launch."""
        arguments = list(self.fixed)
        for position, name in self.pointers:
            arguments[position] = values.get(name, 0)  # an input that is not given is a null pointer
        for position, name, kind in self.scalars:
            arguments[position] = kind(values[name])
        for position, mapped in self.maps:
            arguments[position] = tensor_map.encode(replace(mapped, address=int(values[mapped.name])))
        try:
            self.function(self.grid, self.block, arguments, self.smem_bytes, stream)
        except driver_error() as error:
            raise MachineError(f"the GPU refused a launch of {self.grid} blocks: {error}") from error


def _step(operator: Operator[Any], binding: Binding, plan: Plan, launch: Launch, cubin: Cubin) -> _Step:
    slots = list(enumerate(parameters(operator, binding.problem, plan, launch)))
    by_value = {argument.name for argument in operator.arguments if argument.role is Role.SCALAR}
    return _Step(
        function=_function(cubin, launch),
        grid=launch.grid,
        block=launch.block,
        smem_bytes=launch.smem_bytes,
        fixed=tuple(_stride(binding, parameter) for _, parameter in slots),
        pointers=tuple((position, parameter.argument) for position, parameter in slots if parameter.pointer),
        scalars=tuple(
            (position, parameter.argument, parameter.dtype.numpy.type)
            for position, parameter in slots
            if parameter.argument in by_value
        ),
        maps=tuple((position, _mapped(binding, parameter)) for position, parameter in slots if parameter.tensor_map),
    )


def _symbols(operator: Operator[Any], binding: Binding, cubin: Cubin) -> Iterator[tuple[str, int, int]]:
    """(argument, address, bytes) of each `__constant__` symbol that kernels read."""
    wanted = {each.name: each.nbytes(binding.problem) for each in operator.constants}
    if not wanted:
        return
    module = _module(opened().cuda.runtime.getDevice(), cubin.image)
    for name, address in constant_places(module, cubin.image, wanted).items():
        yield name, address, wanted[name]


def _mapped(binding: Binding, parameter: Parameter) -> MappedTensor:
    assert parameter.tensor_map is not None
    tensor = binding.tensors[parameter.argument]
    return MappedTensor.of(parameter.tensor_map, parameter.dtype, 0, tensor.shape, tensor.strides)


def _stride(binding: Binding, parameter: Parameter) -> int | None:
    """The stride that a parameter passes, in elements, as the int64 that CuPy makes of a Python int."""
    return None if parameter.axis is None else binding.tensors[parameter.argument].strides[parameter.axis]


def _function(cubin: Cubin, launch: Launch) -> Any:
    try:
        function = _module(opened().cuda.runtime.getDevice(), cubin.image).get_function(cubin.symbol(launch.entry))
        grant_shared(function, launch.smem_bytes)
    except driver_error() as error:
        name = f"{launch.entry} for {cubin.options.arch} by {cubin.toolkit}"
        raise MachineError(
            f"the driver cannot load {name} ({error}): it may be older than the toolkit; "
            "or a stream is being captured: make the first call before"
        ) from error
    return function


@cache
def _module(ordinal: int, image: bytes) -> Any:  # noqa: ARG001  # a module belongs to the current device's context
    module = opened().cuda.Module()
    module.load(image)
    return module
