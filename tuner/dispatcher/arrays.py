"""Arrays of any framework: what a kernel must know of one, its address, and new ones of the same kind.

A framework is never imported here: where its arrays are, it is loaded already.
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

CPU = -1  # a place; others are CUDA ordinals
ALIGNMENT = 16  # bytes: the widest load of a kernel
ACCEPTED = "NumPy, CuPy or torch arrays, or anything with __dlpack__ or __cuda_array_interface__"


class Facts(NamedTuple):
    """All of an array but its contents and address, as its framework spells it: arrays with equal facts run alike."""

    framework: str
    device: Any
    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    misalignment: int  # address modulo ALIGNMENT
    writable: bool = True


class Framework(Protocol):
    """One array library."""

    name: str

    def facts(self, name: str, array: Any) -> Facts:
        """Cheap: it is part of every call. Raises InputError, naming the argument, for what no kernel may take."""

    def place(self, facts: Facts) -> int | None:
        """CPU, a CUDA ordinal, or None for any other device."""

    def dtype(self, facts: Facts) -> DType | None: ...

    def byte_strides(self, facts: Facts) -> tuple[int, ...]: ...

    def empty(self, shape: Sequence[int], dtype: DType, place: int) -> Any:
        """A new array in C order."""

    def maker(self, shape: Sequence[int], dtype: DType, place: int) -> Callable[[], Any]:
        """`empty` again and again, where the place is the current device."""

    def put(self, array: Any, value: Any) -> None:
        """Set all elements of an array to a number, or to those of another array, on the current stream."""

    def address(self, array: Any) -> int: ...

    def numpy(self, array: Any) -> Array:
        """An array of this framework in CPU memory as a NumPy view of it."""

    def stream(self, place: int) -> int | None:
        """Handle of the framework's current stream; None where that is CuPy's."""


class _NumPy:
    name = "numpy"

    def facts(self, name: str, array: Any) -> Facts:  # noqa: ARG002  # no NumPy array is refused
        flags = array.flags
        off = 0 if flags.owndata else self.address(array) % ALIGNMENT  # what NumPy allocates is aligned; to ask is slow
        return Facts("numpy", CPU, array.dtype, array.shape, array.strides, off, flags.writeable)

    def place(self, facts: Facts) -> int:  # noqa: ARG002  # they are all there
        return CPU

    def dtype(self, facts: Facts) -> DType | None:
        return DType.of(facts.dtype) if facts.dtype.isnative else None

    def byte_strides(self, facts: Facts) -> tuple[int, ...]:
        return facts.strides

    def empty(self, shape: Sequence[int], dtype: DType, place: int) -> Any:  # noqa: ARG002
        return np.empty(shape, dtype.numpy)

    def maker(self, shape: Sequence[int], dtype: DType, place: int) -> Callable[[], Any]:
        return partial(self.empty, shape, dtype, place)

    def put(self, array: Any, value: Any) -> None:
        array[...] = value

    def address(self, array: Any) -> int:
        return int(array.__array_interface__["data"][0])

    def numpy(self, array: Any) -> Array:
        return array  # type: ignore[no-any-return]

    def stream(self, place: int) -> None:
        raise AssertionError(f"NumPy arrays were sent to place {place}")


class _CuPy:
    name = "cupy"

    def facts(self, name: str, array: Any) -> Facts:  # noqa: ARG002  # no CuPy array is refused
        data = array.data
        return Facts("cupy", data.device_id, array.dtype, array.shape, array.strides, data.ptr % ALIGNMENT)

    def place(self, facts: Facts) -> int:
        return int(facts.device)

    def dtype(self, facts: Facts) -> DType | None:
        return DType.of(facts.dtype)

    def byte_strides(self, facts: Facts) -> tuple[int, ...]:
        return facts.strides

    def empty(self, shape: Sequence[int], dtype: DType, place: int) -> Any:
        cupy = _loaded("cupy")
        with cupy.cuda.Device(place):
            return cupy.empty(shape, dtype.numpy)

    def maker(self, shape: Sequence[int], dtype: DType, place: int) -> Callable[[], Any]:  # noqa: ARG002
        return partial(_loaded("cupy").empty, shape, dtype.numpy)

    def put(self, array: Any, value: Any) -> None:
        with _loaded("cupy").cuda.Device(array.data.device_id):
            array[...] = value

    def address(self, array: Any) -> int:
        return int(array.data.ptr)

    def numpy(self, array: Any) -> Array:
        raise AssertionError(f"a CuPy array on device {array.data.device_id} was sent to the emulator")

    def stream(self, place: int) -> None:  # noqa: ARG002  # CuPy launches on it by itself
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

    def place(self, facts: Facts) -> int | None:
        places = {"cpu": CPU, "cuda": facts.device.index}
        return places.get(facts.device.type)

    def dtype(self, facts: Facts) -> DType | None:
        return _torch_dtypes().get(facts.dtype)

    def byte_strides(self, facts: Facts) -> tuple[int, ...]:
        return tuple(stride * facts.dtype.itemsize for stride in facts.strides)

    def empty(self, shape: Sequence[int], dtype: DType, place: int) -> Any:
        return self.maker(shape, dtype, place)()

    def maker(self, shape: Sequence[int], dtype: DType, place: int) -> Callable[[], Any]:
        torch = _loaded("torch")
        device = torch.device("cpu") if place == CPU else torch.device("cuda", place)
        return partial(torch.empty, tuple(shape), dtype=getattr(torch, dtype.numpy.name), device=device)

    def put(self, array: Any, value: Any) -> None:
        array[...] = value

    def address(self, array: Any) -> int:
        return int(array.data_ptr())

    def numpy(self, array: Any) -> Array:
        torch, dtype = _loaded("torch"), _torch_dtypes()[array.dtype]
        plain = array.detach()
        lent = {DType.BF16: torch.int16, DType.FP8_E4M3: torch.uint8}.get(dtype)
        if lent is not None:  # torch lends NumPy only dtypes that NumPy itself has
            return plain.view(lent).numpy().view(dtype.numpy)  # type: ignore[no-any-return]
        return plain.numpy()  # type: ignore[no-any-return]

    def stream(self, place: int) -> int:
        return int(_loaded("torch").cuda.current_stream(place).cuda_stream)


FRAMEWORKS: dict[str, Framework] = {each.name: each for each in (_NumPy(), _CuPy(), _Torch())}


def framework_of(array: Any) -> Framework | None:
    """The framework of an array, also of its subclasses; None for foreign ones, which must be adopted."""
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


def foreign_place(name: str, array: Any) -> int:
    """Where an array of another framework is: CPU, or a CUDA ordinal. Raises InputError for what is no array."""
    if _root(type(array)) == "jax":  # arrays are jaxlib's
        raise InputError(f"{name} is traced by JAX, in jit, grad or vmap: call the function of tuner.jax there")
    if hasattr(array, "__dlpack_device__"):
        kind, ordinal = array.__dlpack_device__()
        if int(kind) in _DLPACK_CPU:
            return CPU
        if int(kind) in _DLPACK_CUDA:
            return int(ordinal)
        raise InputError(f"{name} is on a device that is neither CPU nor CUDA (DLPack type {int(kind)}): move it")
    if hasattr(array, "__cuda_array_interface__"):
        return 0  # the address tells its device, and CuPy asks
    if hasattr(array, "__array_interface__"):
        return CPU
    raise InputError(f"{name} is a {type(array).__qualname__}: pass {ACCEPTED}")


def adopt(name: str, array: Any) -> Array:
    """A NumPy view of a foreign array in CPU memory."""
    try:
        # __array__ comes first: it alone knows bf16, which NumPy's own DLPack does not.
        return np.asarray(array) if hasattr(array, "__array__") else np.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError) as error:
        raise InputError(f"{name}: NumPy cannot read this {type(array).__qualname__} ({error})") from error


def handed_back(outputs: tuple[Any, ...], given: Mapping[str, Any]) -> tuple[Any, ...]:
    """Outputs of a call on foreign arrays: as JAX's where those are, else of the framework that adopted them."""
    if "jaxlib" not in {_root(type(each)) for each in given.values()}:
        return outputs
    numpy = _loaded("jax").numpy
    return tuple(numpy.asarray(each) if isinstance(each, np.ndarray) else numpy.from_dlpack(each) for each in outputs)


def _root(kind: type) -> str:
    return kind.__module__.partition(".")[0]


_DLPACK_CPU = {1, 3}  # kDLCPU, kDLCUDAHost
_DLPACK_CUDA = {2, 13}  # kDLCUDA, kDLCUDAManaged


def _loaded(framework: str) -> ModuleType:
    return sys.modules[framework]


@cache
def _torch_dtypes() -> dict[Any, DType]:
    torch = _loaded("torch")
    return {getattr(torch, each.numpy.name): each for each in DType}
