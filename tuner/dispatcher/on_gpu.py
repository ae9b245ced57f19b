"""A plan loaded on a GPU, callable by the dispatcher."""

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any, NamedTuple

from tuner.backends.gpu import check_driver, constant_places, driver_error, grant_shared, opened, tensor_map
from tuner.base.fork import renew_in_child
from tuner.compiler.cubin import Cubin
from tuner.dispatcher.arrays import Framework
from tuner.dispatcher.binding import Binding
from tuner.errors import MachineError
from tuner.spec.argument import Parameter, Role
from tuner.spec.dtype import DType
from tuner.spec.operator import Operator
from tuner.spec.parameters import parameters, scalars
from tuner.spec.plan import Launch, Plan
from tuner.spec.tensor_map import MappedTensor, TensorMap

_REMEMBERED = 256  # cached argument lists, by the addresses of all tensors of a call
_MAPS = 4096  # cached tensor maps
_ON_DEVICE = 3  # cudaMemcpyKind


class Allocation(NamedTuple):
    """An array that a call allocates: an output or a workspace."""

    name: str
    shape: tuple[int, ...]  # in the caller's order
    dtype: DType


class LaunchArguments(NamedTuple):
    """The launch shape and arguments of one launch, without addresses."""

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    smem_bytes: int
    strides: tuple[int | None, ...]  # strides in elements for all stride parameters
    pointers: tuple[tuple[int, str], ...]  # position, argument
    scalars: tuple[tuple[int, str, Any], ...]  # position, argument, NumPy type: CuPy passes a scalar in its own size
    values: tuple[Any, ...]  # their values unless the caller passes one; None: the caller must
    maps: tuple[
        tuple[int, TensorMap, DType, tuple[int, ...], tuple[int, ...]], ...
    ]  # position; shape, bytes of strides


class Numbers(NamedTuple):
    """The size-dependent data of a call on a GPU, in addition to kernels and addresses."""

    inputs: tuple[str, ...]  # the caller's arrays
    outputs: tuple[Allocation, ...]
    workspaces: tuple[Allocation, ...]
    launches: tuple[LaunchArguments, ...]
    constants: tuple[tuple[str, int], ...] = ()  # argument that kernels read from a `__constant__` symbol, bytes

    @classmethod
    def of(cls, operator: Operator[Any], binding: Binding, plan: Plan) -> "Numbers":
        outputs = tuple(
            Allocation(output.name, binding.tensors[output.name].caller_shape, output.dtype_of(binding.problem))
            for output in operator.outputs
        )
        return cls(
            inputs=tuple(
                argument.name
                for argument in operator.arguments
                if argument.supplied and argument.name in binding.tensors
            ),
            outputs=outputs,
            workspaces=tuple(Allocation(space.name, space.shape, space.dtype) for space in plan.workspaces),
            launches=tuple(_launch_arguments(operator, binding, plan, launch) for launch in plan.launches),
            constants=tuple((constant.name, constant.nbytes(binding.problem)) for constant in operator.constants),
        )


class Functions:
    """The kernels of a cubin on one device, loaded on first use."""

    def __init__(self, cubin: Cubin, ordinal: int) -> None:
        _process.used = True
        self.ordinal, self._cubin = ordinal, cubin
        self._loaded: dict[tuple[str, int], Any] = {}
        self._encoded: dict[object, Any] = {}

    def of(self, entry: str, smem_bytes: int) -> Any:
        """Return a kernel with this dynamic shared memory granted. Raises MachineError if the driver cannot load it."""
        key = entry, smem_bytes
        if key not in self._loaded:
            with opened().cuda.Device(self.ordinal):
                self._loaded[key] = _function(self._cubin, entry, smem_bytes)
        return self._loaded[key]

    def symbols(self, wanted: Mapping[str, int]) -> dict[str, int]:
        """Return the addresses of the `__constant__` symbols for arguments of these sizes in bytes, by argument."""
        if not wanted:
            return {}
        with opened().cuda.Device(self.ordinal):
            return constant_places(_module(self.ordinal, self._cubin.image), self._cubin.image, wanted)

    def encoded(self, map: TensorMap, dtype: DType, shape: Any, strides: Any, address: int) -> Any:
        """Return the cached tensor map of a tensor at this address. Requires a CUDA context."""
        key = address, map.name, map.box, shape, strides
        encoded = self._encoded.get(key)
        if encoded is None:
            if len(self._encoded) >= _MAPS:
                self._encoded.clear()
            tensor = MappedTensor(map.argument, address, dtype, shape, strides, map.box, map.swizzle)
            encoded = self._encoded[key] = tensor_map.encoded(tensor)
        return encoded


class _Process:
    used = False  # whether this process has used a GPU
    lost = False  # whether its parent had used a GPU


_process = _Process()


def refuse_after_fork() -> None:
    """Raise MachineError in a child of a process that used a GPU before the fork: CUDA contexts are not inherited."""
    if _process.lost:
        raise MachineError(
            "this process was forked after its parent used the GPU, whose state CUDA does not hand on: start processes "
            "by spawn or forkserver, or fork before the first call"
        )


def _lose_gpu() -> None:
    _process.lost = _process.lost or _process.used


renew_in_child(_lose_gpu)


class GpuKernel:
    """A callable for arrays that fit `numbers` and the caller's scalars.

    The arrays and the outputs, in the operator's order, belong to `framework`. A call returns when the launches are
    queued on the framework's current stream.
    """

    def __init__(self, numbers: Numbers, functions: Functions, framework: Framework) -> None:
        self._inputs, self._outputs, self._ordinal = numbers.inputs, len(numbers.outputs), functions.ordinal
        self._device, self._address, self._stream = opened().cuda.Device, framework.address, framework.stream
        allocations = (*numbers.outputs, *numbers.workspaces)
        self._names = (*numbers.inputs, *(name for name, _, _ in allocations))
        self._makers = [framework.maker(shape, dtype, functions.ordinal) for _, shape, dtype in allocations]
        self._launches = [_Prepared(launch, functions) for launch in numbers.launches]
        wanted = dict(numbers.constants)
        self._symbols = [(name, address, wanted[name]) for name, address in functions.symbols(wanted).items()]
        self._arguments: dict[tuple[int, ...], list[list[Any]]] = {}

    def __call__(self, arrays: Mapping[str, Any], scalars: Mapping[str, float]) -> tuple[Any, ...]:
        with self._device(self._ordinal) as device:
            device.use()  # binds its context to a new thread: CuPy does so only if the device changes
            allocated = [make() for make in self._makers]
            addresses = tuple(map(self._address, (*[arrays[name] for name in self._inputs], *allocated)))
            filled = self._arguments.get(addresses) or self._filled(addresses)
            handle = self._stream(self._ordinal)
            stream = None if handle is None else _Stream(handle)
            for name, symbol, nbytes in self._symbols:
                self._fill(symbol, addresses[self._names.index(name)], nbytes, handle)
            for launch, arguments in zip(self._launches, filled, strict=True):
                launch(arguments, scalars, stream)
        return tuple(allocated[: self._outputs])

    def _filled(self, addresses: tuple[int, ...]) -> list[list[Any]]:
        """Return the arguments of every launch without the caller's scalars, cached for calls on the same memory."""
        by_name = dict(zip(self._names, addresses, strict=True))
        filled = [launch.filled(by_name) for launch in self._launches]
        if len(self._arguments) >= _REMEMBERED:
            self._arguments.clear()
        self._arguments[addresses] = filled
        return filled

    def _fill(self, symbol: int, address: int, nbytes: int, stream: int | None) -> None:
        """Fill a `__constant__` symbol in stream order; concurrent calls on other streams share it."""
        cuda = opened().cuda
        queue = cuda.get_current_stream().ptr if stream is None else stream
        cuda.runtime.memcpyAsync(symbol, address, nbytes, _ON_DEVICE, queue)


class _Stream(NamedTuple):
    """The part of CuPy's stream interface that it needs for another framework's stream."""

    ptr: int


class _Prepared:
    """One launch with its kernel loaded."""

    def __init__(self, passed: LaunchArguments, functions: Functions) -> None:
        self._passed, self._function = passed, functions.of(passed.entry, passed.smem_bytes)
        self._encoded = functions.encoded
        self._grid, self._block, self._smem_bytes = passed.grid, passed.block, passed.smem_bytes
        self._fixed: list[Any] = list(passed.strides)
        for (position, _, kind), value in zip(passed.scalars, passed.values, strict=True):
            if value is not None:
                self._fixed[position] = _whole(kind, value) if type(value) is int else kind(value)

    def filled(self, addresses: Mapping[str, int]) -> list[Any]:
        arguments = list(self._fixed)
        for position, name in self._passed.pointers:
            arguments[position] = addresses.get(name, 0)  # an omitted input is a null pointer
        for position, map, dtype, shape, strides in self._passed.maps:
            arguments[position] = self._encoded(map, dtype, shape, strides, addresses[map.argument])
        return arguments

    def __call__(self, arguments: list[Any], scalars: Mapping[str, float], stream: _Stream | None) -> None:
        """Launch. Raises MachineError if the driver refuses it."""
        if scalars:
            arguments = list(arguments)
            for position, name, kind in self._passed.scalars:
                if name in scalars:
                    arguments[position] = kind(scalars[name])
        try:
            self._function(self._grid, self._block, arguments, self._smem_bytes, stream)
        except driver_error() as error:
            raise MachineError(f"the GPU refused a launch of {self._grid} blocks: {error}") from error


@lru_cache(maxsize=1 << 12)  # most values equal those of the last call
def _whole(kind: Any, value: int) -> Any:
    return kind(value)


def _launch_arguments(operator: Operator[Any], binding: Binding, plan: Plan, launch: Launch) -> LaunchArguments:
    slots = list(enumerate(parameters(operator, binding.problem, plan, launch)))
    by_value = {argument.name for argument in operator.arguments if argument.role is Role.SCALAR}
    by_position = [(position, parameter) for position, parameter in slots if parameter.argument in by_value]
    values = scalars(operator, binding.problem)
    return LaunchArguments(
        launch.entry,
        launch.grid,
        launch.block,
        launch.smem_bytes,
        strides=tuple(_stride(binding, parameter) for _, parameter in slots),
        pointers=tuple((position, parameter.argument) for position, parameter in slots if parameter.pointer),
        scalars=tuple(
            (position, parameter.argument, parameter.dtype.numpy.type) for position, parameter in by_position
        ),
        values=tuple(values.get(parameter.argument) for _, parameter in by_position),
        maps=tuple(
            (position, parameter.tensor_map, parameter.dtype, mapped.shape, mapped.strides)
            for position, parameter in slots
            if parameter.tensor_map and (mapped := _mapped(binding, parameter.tensor_map, parameter.dtype))
        ),
    )


def _mapped(binding: Binding, map: TensorMap, dtype: DType) -> MappedTensor:
    """Return the mapped tensor without its address, which a call fills in."""
    tensor = binding.tensors[map.argument]
    return MappedTensor.of(map, dtype, 0, tensor.shape, tensor.strides)


def _stride(binding: Binding, parameter: Parameter) -> int | None:
    """Return the stride of a parameter in elements, as a Python int, which CuPy passes as int64."""
    return None if parameter.axis is None else binding.tensors[parameter.argument].strides[parameter.axis]


def _function(cubin: Cubin, entry: str, smem_bytes: int) -> Any:
    check_driver(cubin.toolkit)
    try:
        function = _module(opened().cuda.runtime.getDevice(), cubin.image).get_function(cubin.symbol(entry))
        grant_shared(function, smem_bytes)
    except driver_error() as error:
        name = f"{entry} for {cubin.options.arch} by {cubin.toolkit}"
        raise MachineError(
            f"the driver cannot load {name} ({error}): it may be too old; "
            "or a stream is being captured: make the first call before"
        ) from error
    return function


@cache
def _module(ordinal: int, image: bytes) -> Any:  # noqa: ARG001  # a module belongs to the current device's context
    module = opened().cuda.Module()
    module.load(image)
    return module
