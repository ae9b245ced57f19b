"""Access to the GPU: identification, and cubins loaded and launched on the caller's arrays and stream.

CuPy is imported when a function is called. All functions except `available` raise MachineError if there is no GPU.
"""

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, cast
from uuid import UUID

from tuner import arch
from tuner.arch import GPU
from tuner.arch.naming import DriverInfo, identify
from tuner.base.cache import spare
from tuner.compiler.cubin import symbol_sizes
from tuner.compiler.toolkit import Toolkit
from tuner.errors import InputError, MachineError, UsageError

HERE = "here"  # the name for the GPU of this machine
_INSUFFICIENT_DRIVER = 35  # cudaErrorInsufficientDriver: CuPy was built for a newer major version of CUDA
_NO_DEVICE = 100  # cudaErrorNoDevice
_COMPUTE_MODE, _EXCLUSIVE_PROCESS = 20, 3  # cudaDevAttrComputeMode, cudaComputeModeExclusiveProcess
_CLOCK_KHZ, _MEMORY_KHZ, _BUS_BITS, _L2_BYTES = 13, 36, 37, 38  # cudaDeviceAttr
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_FIRST_DRIVERS = {12: "R525", 13: "R580"}  # by major version of CUDA
_INSTALL = "pip install 'kerntune[cuda13]' (or [cuda12])"
_WITHOUT = "install one, or use NumPy arrays, which run on the CPU emulator"
_VARIABLE, _USUAL = "CUPY_CACHE_DIR", "~/.cupy/kernel_cache"


def available() -> bool:
    """Return whether this machine has CuPy, a CUDA driver and a device."""
    try:
        opened()
    except MachineError:
        return False
    return True


def trouble() -> str:
    """Return why no GPU is usable although a CUDA driver exists; empty without a driver or with a usable GPU."""
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
    """Return one line about the current device."""
    gpu, (major, minor), runtime = current_gpu(), driver(), opened().cuda.runtime
    ordinal, count = runtime.getDevice(), runtime.getDeviceCount()
    named = f"{gpu.name} ({gpu.arch.name})" if arch.is_listed(gpu) else gpu.name
    among = f", number {ordinal} of {count} (CUDA_VISIBLE_DEVICES chooses)" if count > 1 else ""
    alone = ", which one process at a time may open" if exclusive(ordinal) else ""
    return f"{_name(ordinal)} as {named}, driver for CUDA {major}.{minor}{among}{alone}"


def driver() -> tuple[int, int]:
    """Return the newest CUDA version that the driver supports, such as (13, 0); it loads cubins of that major version
    or older.
    """
    major, minor = divmod(opened().cuda.runtime.driverGetVersion() // 10, 100)
    return major, minor


def driver_name(version: int | None = None) -> str:
    """The driver in stored proofs: the newest CUDA that it supports, such as "13.0".

    `version` is what the driver says of itself (13000), by default the one of this machine.
    """
    major, minor = driver() if version is None else divmod(version // 10, 100)
    return f"{major}.{minor}"


def check_driver(made_by: Toolkit) -> None:
    """Raise MachineError if the driver supports only an older major version of CUDA than the compiler's.

    The driver would reject every image with an unhelpful error (CUDA_ERROR_UNSUPPORTED_PTX_VERSION or INVALID_IMAGE).
    """
    (major, minor), needed = driver(), made_by.major
    if major < needed:
        raise MachineError(
            f"the driver is for CUDA {major}.{minor}, and cannot load the output of {made_by}: install "
            f"{_FIRST_DRIVERS.get(needed, 'a newer one')} or later, or 'kerntune[cuda{major}]'"
        )


def current_gpu(ordinal: int | None = None) -> GPU:
    """Return the GPU with a CUDA ordinal, or the current device. Raises MachineError for an unlisted arch."""
    cuda = opened().cuda
    return _gpu(cuda.runtime.getDevice() if ordinal is None else ordinal)


def is_here(target: GPU) -> bool:
    """Whether the current device of this machine is `target`, by name."""
    try:
        return available() and current_gpu().name == target.name
    except MachineError:
        return False


def exclusive(ordinal: int) -> bool:
    """Return whether a GPU is in exclusive-process mode, as batch systems set it."""
    return int(opened().cuda.runtime.deviceGetAttribute(_COMPUTE_MODE, ordinal)) == _EXCLUSIVE_PROCESS


def count() -> int:
    """Return the number of GPUs that this process sees."""
    return int(opened().cuda.runtime.getDeviceCount())


def uuid(ordinal: int) -> str:
    """Return the UUID of a GPU, as nvidia-smi prints it; empty if the driver does not report it."""
    data = bytes(opened().cuda.runtime.getDeviceProperties(ordinal).get("uuid") or b"")[:16]
    return f"GPU-{UUID(bytes=data)}" if len(data) == 16 else ""


def bus_id(ordinal: int) -> str:
    """Return the PCI bus id of a GPU; MIG slices of one GPU share it."""
    return str(opened().cuda.runtime.deviceGetPCIBusId(ordinal))


def named(name: str) -> GPU:
    """Return the GPU that a user names: a name that `arch.gpu` accepts, `here` for the GPU in this machine, or its
    model name if that is not listed.

    Raises UsageError, with the list, for any other name, and MachineError for `here` without a GPU.
    """
    if name == HERE:
        return current_gpu()
    try:
        gpu = arch.gpu(name)
    except UsageError:
        if (here := _here()) and arch.has_model_name(here, name):
            return here
        raise
    here = None if arch.is_listed(gpu) else _here()
    return here if here and here.name == gpu.name else gpu


def adopt(name: str, array: Any) -> Any:
    """Return a CuPy view of a foreign array in GPU memory, ordered after the producer's work on CuPy's current
    stream.
    """
    cupy = opened()
    try:
        return cupy.from_dlpack(array) if hasattr(array, "__dlpack__") else cupy.asarray(array)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"{name}: CuPy cannot read this {type(array).__qualname__} ({error})") from error


def grant_shared(function: Any, nbytes: int) -> None:
    """Allow a kernel to use `nbytes` of dynamic shared memory, in addition to its static shared memory.

    Raises CUDADriverError if the device has less.
    """
    driver = opened().cuda.driver
    if nbytes > driver.funcGetAttribute(_MAX_DYNAMIC_SHARED, function.ptr):
        driver.funcSetAttribute(function.ptr, _MAX_DYNAMIC_SHARED, nbytes)


def constant_places(module: Any, image: bytes, wanted: Mapping[str, int]) -> dict[str, int]:
    """Return the addresses of the `__constant__` symbols in a loaded cubin, by name; `wanted` maps names to sizes in
    bytes.

    Symbols that no kernel reads are omitted. Raises InputError if one is too small.
    """
    room = symbol_sizes(image) if wanted else {}
    for name, nbytes in wanted.items():
        if nbytes > room.get(name, nbytes):
            raise InputError(f"__constant__ {name} has {room[name]} bytes, the argument {nbytes}")
    return {name: int(module.get_global_var(name)) for name in wanted if name in room}


@cache
def _gpu(ordinal: int) -> GPU:
    runtime = opened().cuda.runtime
    properties = runtime.getDeviceProperties(ordinal)

    def attribute_value(attribute: int) -> int:
        try:
            return int(runtime.deviceGetAttribute(attribute, ordinal))
        except runtime.CUDARuntimeError:  # the driver does not have this attribute
            return 0

    return identify(
        DriverInfo(
            _name(ordinal),
            10 * int(properties["major"]) + int(properties["minor"]),
            int(properties["multiProcessorCount"]),
            clock_mhz=attribute_value(_CLOCK_KHZ) / 1000,
            memory_mhz=attribute_value(_MEMORY_KHZ) / 1000,
            bus_bits=attribute_value(_BUS_BITS),
            l2_bytes=attribute_value(_L2_BYTES),
        )
    )


def _here() -> GPU | None:
    """Return the current device; None if there is none, or if its arch is not supported."""
    try:
        return current_gpu()
    except MachineError:
        return None


def _name(ordinal: int) -> str:
    name: bytes = opened().cuda.runtime.getDeviceProperties(ordinal)["name"]
    return name.decode()


@cache
def driver_error() -> type[Exception]:
    from cupy.cuda.driver import CUDADriverError

    return CUDADriverError  # type: ignore[no-any-return]  # CuPy ships no types


@cache
def opened() -> ModuleType:
    """Return CuPy, after checking that it has a usable device."""
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
        return f"CUDA_VISIBLE_DEVICES={visible!r} names no device of this machine: unset it, or use NumPy arrays"
    return _WITHOUT


def _with_driver() -> ModuleType:
    """Return CuPy, after checking that the machine has a CUDA driver."""
    prepare_cache()
    try:
        import cupy
    except ImportError as error:
        why = str(error.__cause__ or error).partition("\n")[0]  # the full message fills a page
        raise MachineError(f"no GPU can be used without CuPy ({why}): {_INSTALL}") from error
    # Without a driver every other call reports that the driver is too old. A version of 0 is unambiguous.
    if cupy.cuda.runtime.driverGetVersion() == 0:
        raise MachineError(f"no GPU, because there is no CUDA driver: {_WITHOUT}")
    return cast(ModuleType, cupy)


def prepare_cache() -> None:
    """Prepare CuPy's cache folder before CuPy is imported. A temporary folder suffices, since we cache nothing
    there.
    """
    try:
        Path(os.environ.get(_VARIABLE, _USUAL)).expanduser().mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: there is no home directory
        os.environ[_VARIABLE] = str(spare("cupy"))
