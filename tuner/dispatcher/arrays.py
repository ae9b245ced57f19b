"""Access to arrays of any framework: the facts that a kernel needs, addresses, and allocation.

Frameworks are never imported here: if an array exists, its framework is loaded already.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import numpy as np

from tuner.errors import InputError
from tuner.spec.dtype import DType
from tuner.spec.problem import Array

CPU = -1  # the ordinal of CPU memory; those of CUDA devices start at 0
ALIGNMENT = 16  # bytes: the widest load of a kernel
ACCEPTED = "NumPy, CuPy or torch arrays, or anything with __dlpack__ or __cuda_array_interface__"


class Facts(NamedTuple):
    """The properties of an array that a call depends on, in its framework's terms; not its contents or address."""

    framework: str
    device: Any
    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    misalignment: int  # address modulo ALIGNMENT
    writable: bool = True


class Framework(Protocol):
    """An array library."""

    name: str

    def facts(self, name: str, array: Any) -> Facts:
        """Return the array's facts, cheaply, since every call does so. Raises InputError, naming the argument, if no
        kernel may use it.
        """

    def ordinal(self, facts: Facts) -> int | None:
        """Return CPU, a CUDA ordinal, or None for any other device."""

    def dtype(self, facts: Facts) -> DType | None: ...

    def byte_strides(self, facts: Facts) -> tuple[int, ...]: ...

    def empty(self, shape: Sequence[int], dtype: DType, ordinal: int) -> Any:
        """Return a new array in C order."""

    def maker(self, shape: Sequence[int], dtype: DType, ordinal: int) -> Callable[[], Any]:
        """Return a function that repeats `empty`, if the ordinal is the current device's."""

    def put(self, array: Any, value: Any) -> None:
        """Set all elements to a number, or copy another array, on the current stream."""

    def address(self, array: Any) -> int: ...

    def numpy(self, array: Any) -> Array:
        """Return a NumPy view of an array of this framework in CPU memory."""

    def stream(self, ordinal: int) -> int | None:
        """Return the handle of the framework's current stream; None for CuPy's."""


class _NumPy:
    name = "numpy"

    def facts(self, name: str, array: Any) -> Facts:  # noqa: ARG002  # no NumPy array is refused
        flags = array.flags
        off = (
            0 if flags.owndata else self.address(array) % ALIGNMENT
        )  # NumPy aligns its allocations, and the query is slow
        return Facts("numpy", CPU, array.dtype, array.shape, array.strides, off, flags.writeable)

    def ordinal(self, facts: Facts) -> int:  # noqa: ARG002  # all are in CPU memory
        return CPU

    def dtype(self, facts: Facts) -> DType | None:
        return DType.of(facts.dtype) if facts.dtype.isnative else None

    def byte_strides(self, facts: Facts) -> tuple[int, ...]:
        return facts.strides

    def empty(self, shape: Sequence[int], dtype: DType, ordinal: int) -> Any:  # noqa: ARG002
        return np.empty(shape, dtype.numpy)

    def maker(self, shape: Sequence[int], dtype: DType, ordinal: int) -> Callable[[], Any]:
        return partial(self.empty, shape, dtype, ordinal)

    def put(self, array: Any, value: Any) -> None:
        array[...] = value

    def address(self, array: Any) -> int:
        return int(array.__array_interface__["data"][0])

    def numpy(self, array: Any) -> Array:
        return array  # type: ignore[no-any-return]

    def stream(self, ordinal: int) -> None:
        raise AssertionError(f"NumPy arrays were sent to device {ordinal}")


class _CuPy:
    name = "cupy"

    def facts(self, name: str, array: Any) -> Facts:  # noqa: ARG002  # no CuPy array is refused
        data = array.data
        return Facts("cupy", data.device_id, array.dtype, array.shape, array.strides, data.ptr % ALIGNMENT)

    def ordinal(self, facts: Facts) -> int:
        return int(facts.device)

    def dtype(self, facts: Facts) -> DType | None:
        return DType.of(facts.dtype)

    def byte_strides(self, facts: Facts) -> tuple[int, ...]:
        return facts.strides

    def empty(self, shape: Sequence[int], dtype: DType, ordinal: int) -> Any:
        cupy = _loaded("cupy")
        with cupy.cuda.Device(ordinal):
            return cupy.empty(shape, dtype.numpy)

    def maker(self, shape: Sequence[int], dtype: DType, ordinal: int) -> Callable[[], Any]:  # noqa: ARG002
        return partial(_loaded("cupy").empty, shape, dtype.numpy)

    def put(self, array: Any, value: Any) -> None:
        with _loaded("cupy").cuda.Device(array.data.device_id):
            array[...] = value

    def address(self, array: Any) -> int:
        return int(array.data.ptr)

    def numpy(self, array: Any) -> Array:
        raise AssertionError(f"a CuPy array on device {array.data.device_id} was sent to the emulator")

    def stream(self, ordinal: int) -> None:  # noqa: ARG002  # CuPy launches on it by itself
        return None


class _Torch:
    name = "torch"

    def facts(self, name: str, array: Any) -> Facts:
        if array.requires_grad and _loaded("torch").is_grad_enabled():
            raise InputError(
                f"{name} requires grad, and there is no backward here: call under torch.no_grad(), or through "
                "tuner.torch, where some operators have one"
            )
        shape, strides, misalignment = tuple(array.shape), array.stride(), array.data_ptr() % ALIGNMENT
        return Facts("torch", array.device, array.dtype, shape, strides, misalignment)

    def ordinal(self, facts: Facts) -> int | None:
        ordinals = {"cpu": CPU, "cuda": facts.device.index}
        return ordinals.get(facts.device.type)

    def dtype(self, facts: Facts) -> DType | None:
        return _torch_dtypes().get(facts.dtype)

    def byte_strides(self, facts: Facts) -> tuple[int, ...]:
        return tuple(stride * facts.dtype.itemsize for stride in facts.strides)

    def empty(self, shape: Sequence[int], dtype: DType, ordinal: int) -> Any:
        return self.maker(shape, dtype, ordinal)()

    def maker(self, shape: Sequence[int], dtype: DType, ordinal: int) -> Callable[[], Any]:
        torch = _loaded("torch")
        device = torch.device("cpu") if ordinal == CPU else torch.device("cuda", ordinal)
        return partial(torch.empty, tuple(shape), dtype=getattr(torch, dtype.framework_name), device=device)

    def put(self, array: Any, value: Any) -> None:
        array[...] = value

    def address(self, array: Any) -> int:
        return int(array.data_ptr())

    def numpy(self, array: Any) -> Array:
        torch, dtype = _loaded("torch"), _torch_dtypes()[array.dtype]
        plain = array.detach()
        if not dtype.in_numpy:  # torch shares only NumPy's own dtypes with NumPy
            bits = plain.view(getattr(torch, f"int{8 * dtype.itemsize}"))
            return bits.numpy().view(dtype.numpy)  # type: ignore[no-any-return]
        return plain.numpy()  # type: ignore[no-any-return]

    def stream(self, ordinal: int) -> int:
        return int(_loaded("torch").cuda.current_stream(ordinal).cuda_stream)


FRAMEWORKS: dict[str, Framework] = {framework.name: framework for framework in (_NumPy(), _CuPy(), _Torch())}


def framework_of(array: Any) -> Framework | None:
    """Return the framework of an array or a subclass; None for foreign arrays, which must be adopted."""
    kind = type(array)
    if kind not in _frameworks:
        _frameworks[kind] = _framework_of(kind)
    return _frameworks[kind]


_frameworks: dict[type, Framework | None] = {}


def _framework_of(kind: type) -> Framework | None:
    for base in kind.__mro__:
        root = _root(base)
        if (root, base.__name__) in {("numpy", "ndarray"), ("cupy", "ndarray"), ("torch", "Tensor")}:
            return FRAMEWORKS[root]
    return None


def foreign_ordinal(name: str, array: Any) -> int:
    """Return the device of a foreign array: CPU, or a CUDA ordinal. Raises InputError if it is not an array."""
    if _root(type(array)) == "jax":  # arrays are defined in jaxlib
        raise InputError(f"{name} is traced by JAX, in jit, grad or vmap: call the function of tuner.jax there")
    if hasattr(array, "__dlpack_device__"):
        kind, ordinal = array.__dlpack_device__()
        if int(kind) in _DLPACK_CPU:
            return CPU
        if int(kind) in _DLPACK_CUDA:
            return int(ordinal)
        raise InputError(f"{name} is on a device that is neither CPU nor CUDA (DLPack type {int(kind)}): move it")
    if hasattr(array, "__cuda_array_interface__"):
        return 0  # CuPy queries the driver for the device of the address
    if hasattr(array, "__array_interface__"):
        return CPU
    raise InputError(f"{name} is a {type(array).__qualname__}: pass {ACCEPTED}")


def adopt(name: str, array: Any) -> Array:
    """Return a NumPy view of a foreign array in CPU memory."""
    try:
        # __array__ comes first because NumPy's DLPack does not support bf16.
        return np.asarray(array) if hasattr(array, "__array__") else np.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError) as error:
        raise InputError(f"{name}: NumPy cannot read this {type(array).__qualname__} ({error})") from error


def handed_back(outputs: tuple[Any, ...], arrays: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return outputs of a call on foreign arrays: JAX arrays for JAX inputs, otherwise those of the adopting
    framework.
    """
    if "jaxlib" not in {_root(type(array)) for array in arrays.values()}:
        return outputs
    numpy = _loaded("jax").numpy
    return tuple(
        numpy.asarray(array) if isinstance(array, np.ndarray) else numpy.from_dlpack(array) for array in outputs
    )


def _root(kind: type) -> str:
    return kind.__module__.partition(".")[0]


_DLPACK_CPU = {1, 3}  # kDLCPU, kDLCUDAHost
_DLPACK_CUDA = {2, 13}  # kDLCUDA, kDLCUDAManaged


def _loaded(framework: str) -> ModuleType:
    return sys.modules[framework]


@cache
def _torch_dtypes() -> dict[Any, DType]:
    torch = _loaded("torch")
    return {getattr(torch, dtype.framework_name): dtype for dtype in DType}
