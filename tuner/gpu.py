"""The door to the GPU: which one it is, and cubins loaded and launched on the caller's arrays and stream.

CuPy is imported when a function is called; each of them but `available` raises MachineError where there is no GPU.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import ModuleType
from typing import Any, cast

from tuner import arch, cupy_folder, gpu_tensor_map
from tuner.arch import GPU
from tuner.arch_driver import Told, identify
from tuner.arrays import Framework
from tuner.binding import Binding
from tuner.cubin import Cubin
from tuner.errors import InputError, MachineError, UsageError
from tuner.operator import Launch, Operator, Parameter, Plan, Role, parameters, scalars
from tuner.tensor_map import MappedTensor

_INSUFFICIENT_DRIVER = 35  # cudaErrorInsufficientDriver: CuPy is built for a newer major version
_NO_DEVICE = 100  # cudaErrorNoDevice
_COMPUTE_MODE, _EXCLUSIVE_PROCESS = 20, 3  # cudaDevAttrComputeMode, cudaComputeModeExclusiveProcess
_CLOCK_KHZ, _MEMORY_KHZ, _BUS_BITS, _L2_BYTES = 13, 36, 37, 38  # cudaDeviceAttr
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


def available() -> bool:
    """Whether this machine has CuPy, a CUDA driver and a device."""
    try:
        _cupy()
    except MachineError:
        return False
    return True


def trouble() -> str:
    """Why no GPU can be used on a machine that has a CUDA driver; empty without one, and where a GPU can be used."""
    try:
        _with_driver()
    except MachineError:
        return ""
    try:
        current_gpu()
    except MachineError as error:
        return str(error)
    return ""


def describe() -> str:
    """One line about the current device."""
    found, (major, minor), runtime = current_gpu(), driver(), _cupy().cuda.runtime
    ordinal, count = runtime.getDevice(), runtime.getDeviceCount()
    named = f"{found.name} ({found.arch.name})" if arch.is_listed(found) else found.name
    among = f", number {ordinal} of {count} (CUDA_VISIBLE_DEVICES chooses)" if count > 1 else ""
    alone = ", which one process at a time may open" if exclusive(ordinal) else ""
    return f"{_name(ordinal)} as {named}, driver for CUDA {major}.{minor}{among}{alone}"


def driver() -> tuple[int, int]:
    """The newest CUDA that the driver supports, such as (13, 0): it loads cubins of that major version and older."""
    major, minor = divmod(_cupy().cuda.runtime.driverGetVersion() // 10, 100)
    return major, minor


def current_gpu(ordinal: int | None = None) -> GPU:
    """The GPU with a CUDA ordinal, or the current device. Raises MachineError for an arch that is not known."""
    cuda = _cupy().cuda
    return _gpu(cuda.runtime.getDevice() if ordinal is None else ordinal)


def exclusive(ordinal: int) -> bool:
    """Whether one process at a time may open a GPU, as batch systems set it."""
    return int(_cupy().cuda.runtime.deviceGetAttribute(_COMPUTE_MODE, ordinal)) == _EXCLUSIVE_PROCESS


def bus_id(ordinal: int) -> str:
    """Where a GPU is on the PCI bus; slices of one are at the same place."""
    return str(_cupy().cuda.runtime.deviceGetPCIBusId(ordinal))


def named(name: str) -> GPU:
    """The GPU that a user names: what `arch.gpu` knows, and the one in this machine where its model is not listed.

    Raises UsageError, with what is known, for anything else.
    """
    try:
        found = arch.gpu(name)
    except UsageError:
        if (here := _here()) and arch.is_called(here, name):
            return here
        raise
    here = None if arch.is_listed(found) else _here()
    return here if here and here.name == found.name else found


def adopt(name: str, array: Any) -> Any:
    """A CuPy view of a foreign array in GPU memory, ordered after the producer's work on CuPy's current stream."""
    cupy = _cupy()
    try:
        return cupy.from_dlpack(array) if hasattr(array, "__dlpack__") else cupy.asarray(array)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"{name}: CuPy cannot read this {type(array).__qualname__} ({error})") from error


def grant_shared(function: Any, nbytes: int) -> None:
    """Let a kernel take so much dynamic shared memory, beside what is static in it.

    Raises CUDADriverError where the device has less.
    """
    driver = _cupy().cuda.driver
    if nbytes > driver.funcGetAttribute(_MAX_DYNAMIC_SHARED, function.ptr):
        driver.funcSetAttribute(function.ptr, _MAX_DYNAMIC_SHARED, nbytes)


class Kernel:
    """A plan loaded on one device: call it with arrays that fit `binding` and the scalars that the caller gives.

    The arrays and the outputs, in the operator's order, are of `framework`. A call returns when the launches are
    queued on the framework's current stream.
    """

    def __init__(
        self, operator: Operator[Any], binding: Binding, plan: Plan, cubin: Cubin, framework: Framework, ordinal: int
    ) -> None:
        cuda = _cupy().cuda
        self._framework, self._ordinal, self._device = framework, ordinal, cuda.Device
        self._problem, self._outputs, self._workspaces = binding.problem, operator.outputs, plan.workspaces
        self._tensors = binding.tensors
        self._scalars = scalars(operator, binding.problem)
        with cuda.Device(ordinal):
            self._steps = [_step(operator, binding, plan, launch, cubin) for launch in plan.launches]

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
            for step in self._steps:
                step.launch(values, None if stream is None else _Stream(stream))
        return tuple(outputs.values())


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
            arguments[position] = gpu_tensor_map.encode(replace(mapped, address=int(values[mapped.name])))
        try:
            self.function(self.grid, self.block, arguments, self.smem_bytes, stream)
        except _driver_error() as error:
            raise MachineError(f"the GPU refused a launch of {self.grid} blocks: {error}") from error


def _step(operator: Operator[Any], binding: Binding, plan: Plan, launch: Launch, cubin: Cubin) -> _Step:
    slots = list(enumerate(parameters(operator, binding.problem, plan, launch)))
    by_value = {argument.name for argument in operator.arguments if argument.role is Role.SCALAR}
    return _Step(
        function=_function(cubin, launch),
        grid=launch.grid,
        block=(launch.threads, 1, 1),
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


def _mapped(binding: Binding, parameter: Parameter) -> MappedTensor:
    assert parameter.tensor_map is not None
    tensor = binding.tensors[parameter.argument]
    return MappedTensor.of(parameter.tensor_map, parameter.dtype, 0, tensor.shape, tensor.strides)


def _stride(binding: Binding, parameter: Parameter) -> int | None:
    """The stride that a parameter passes, in elements, as the int64 that CuPy makes of a Python int."""
    return None if parameter.axis is None else binding.tensors[parameter.argument].strides[parameter.axis]


def _function(cubin: Cubin, launch: Launch) -> Any:
    try:
        function = _module(_cupy().cuda.runtime.getDevice(), cubin.image).get_function(launch.entry)
        grant_shared(function, launch.smem_bytes)
    except _driver_error() as error:
        name = f"{launch.entry} for {cubin.options.arch} by {cubin.toolkit}"
        raise MachineError(
            f"the driver cannot load {name} ({error}): it may be older than the toolkit; "
            "or a stream is being captured: make the first call before"
        ) from error
    return function


@cache
def _module(ordinal: int, image: bytes) -> Any:  # noqa: ARG001  # a module belongs to the current device's context
    module = _cupy().cuda.Module()
    module.load(image)
    return module


@cache
def _gpu(ordinal: int) -> GPU:
    runtime = _cupy().cuda.runtime
    properties = runtime.getDeviceProperties(ordinal)

    def told(attribute: int) -> int:
        try:
            return int(runtime.deviceGetAttribute(attribute, ordinal))
        except runtime.CUDARuntimeError:  # of what it does not know
            return 0

    return identify(
        Told(
            _name(ordinal),
            10 * int(properties["major"]) + int(properties["minor"]),
            int(properties["multiProcessorCount"]),
            clock_mhz=told(_CLOCK_KHZ) / 1000,
            memory_mhz=told(_MEMORY_KHZ) / 1000,
            bus_bits=told(_BUS_BITS),
            l2_bytes=told(_L2_BYTES),
        )
    )


def _here() -> GPU | None:
    """The current device; None where there is none, or it is of no arch that is served."""
    try:
        return current_gpu()
    except MachineError:
        return None


def _name(ordinal: int) -> str:
    name: bytes = _cupy().cuda.runtime.getDeviceProperties(ordinal)["name"]
    return name.decode()


@cache
def _driver_error() -> type[Exception]:
    from cupy.cuda.driver import CUDADriverError

    return CUDADriverError  # type: ignore[no-any-return]  # CuPy ships no types


@cache
def _cupy() -> ModuleType:
    """CuPy, on a machine where it has a device to work with."""
    cupy = _with_driver()
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise MachineError(f"no GPU ({error}): {_remedy(cupy, getattr(error, 'status', 0))}") from error
    return cupy


def _remedy(cupy: ModuleType, status: int) -> str:
    if status == _INSUFFICIENT_DRIVER:
        major = cupy.cuda.runtime.driverGetVersion() // 1000
        return f"install a newer driver, or 'kerntune[cuda{major}]', and use NumPy arrays until then"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if status == _NO_DEVICE and visible is not None:
        return f"CUDA_VISIBLE_DEVICES={visible!r} names none that is here, so unset it, or use NumPy arrays"
    return _WITHOUT


def _with_driver() -> ModuleType:
    """CuPy, on a machine with a CUDA driver."""
    cupy_folder.prepare()
    try:
        import cupy
    except ImportError as error:
        why = str(error.__cause__ or error).partition("\n")[0]  # CuPy's own words fill a page
        raise MachineError(f"no GPU can be used without CuPy ({why}): {_INSTALL}") from error
    # With no driver every other call says that the driver is too old; the version 0 is the plain answer.
    if cupy.cuda.runtime.driverGetVersion() == 0:
        raise MachineError(f"no GPU, because there is no CUDA driver: {_WITHOUT}")
    return cast(ModuleType, cupy)


_INSTALL = "pip install 'kerntune[cuda13]' (or [cuda12])"
_WITHOUT = "install one, or use NumPy arrays, which run on the CPU emulator"
