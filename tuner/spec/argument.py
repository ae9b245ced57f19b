"""The arguments of an operator's kernels; the C++ signature, the checks and the launches are derived from them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import prod
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tuner.errors import InputError, TemplateError
from tuner.spec.dtype import DType
from tuner.spec.tensor_map import MappedTensor, TensorMap

_WORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t class compl const
const_cast constexpr continue decltype default delete do double dynamic_cast else enum explicit export extern false
float for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private
protected public register reinterpret_cast return short signed sizeof static static_assert static_cast struct switch
template this thread_local throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t
while xor xor_eq
"""
KEYWORDS = frozenset(_WORDS.split())  # C++17 keywords, which cannot name a parameter or a member


class Role(Enum):
    INPUT = "input"
    UPDATED = "updated"  # read and written in place: the caller's array changes
    OUTPUT = "output"
    SCALAR = "scalar"


class DeviceTensor(NamedTuple):
    """A tensor or a workspace in device memory."""

    address: int  # address of the first element; 0 for an absent input
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()  # in elements


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of an array in C order, in elements."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


@dataclass(frozen=True, slots=True)
class Parameter:
    """One kernel parameter: its C++ declaration and its value in a launch."""

    declaration: str
    argument: str  # name of its Argument or Workspace
    dtype: DType
    axis: int | None = None  # a stride parameter's axis; None for the pointer or the scalar itself
    pointer: bool = False
    tensor_map: TensorMap | None = None  # passed by value as 128 bytes, encoded from a `MappedTensor`

    def value(self, tensors: Mapping[str, DeviceTensor], scalars: Mapping[str, float]) -> np.generic | MappedTensor:
        """Return the value that a launch passes, in the parameter's type; a tensor map is not encoded yet."""
        if self.axis is None and not self.pointer and self.tensor_map is None:
            scalar: np.generic = self.dtype.numpy.type(scalars[self.argument])
            return scalar
        tensor = tensors[self.argument]
        if self.tensor_map is not None:
            return MappedTensor.of(self.tensor_map, self.dtype, *tensor)
        if self.axis is None:
            return np.uint64(tensor.address)
        return np.int64(tensor.strides[self.axis] if tensor.strides else 0)  # an absent input has no strides


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor with named dims, or a scalar passed by value.

    A tensor's dims are attributes of Problems, outermost first; its last dim is contiguous. `strided` tensors pass the
    element strides of their other dims to the kernel, so that views need no copy, and with "all" the last dim's too;
    others are dense. A scalar is named after a Problem extent, or takes `default(problem)` unless the caller gives it.
    `optional` names a boolean attribute of the Problem: where it is false, no launch takes the argument, and
    `<name>_argument` is a null pointer or 0 in templates. Other arguments are always present. `constant` means that it
    is no parameter but the kernel's `__constant__` symbol of that name, which may be larger and is filled before a
    launch. An output that has elements where another dim is empty holds what `without` says for that dim: a number, or
    the contents of an argument, zeros where that is absent.
    """

    name: str
    dtype: DType | str  # or the name of the Problem field that holds it
    dims: tuple[str, ...] = ()
    role: Role = Role.INPUT
    strided: bool | Literal["all"] = False
    default: Callable[[Any], float] | None = None
    doc: str = ""
    without: Mapping[str, float | str] = field(default_factory=dict, hash=False)
    constant: bool = False
    optional: str = ""

    def is_present(self, problem: Any) -> bool:
        """Return whether launches for the problem take it."""
        return not self.optional or bool(getattr(problem, self.optional))

    def expression(self, problem: Any) -> str:
        """Return the C++ expression for it in a kernel: its name, or a substitute if the argument is absent."""
        if self.is_present(problem):
            return self.name
        return "nullptr" if self.role is not Role.SCALAR else "0.0f" if self.dtype_of(problem).is_float else "0"

    @property
    def supplied(self) -> bool:
        """Whether the caller passes it with contents."""
        return self.role in (Role.INPUT, Role.UPDATED)

    @property
    def written(self) -> bool:
        """Whether a kernel writes it."""
        return self.role in (Role.OUTPUT, Role.UPDATED)

    @property
    def strided_axes(self) -> range:
        """The axes whose strides the kernel takes as parameters."""
        return range(len(self.dims) - (self.strided != "all") if self.strided else 0)

    def required(self, problem: Any) -> bool:
        """Return whether the scalar must come from the call; `problem` is a Problem or its type."""
        has_value = self.default is not None or self.name in problem.__dataclass_fields__ or hasattr(problem, self.name)
        return self.role is Role.SCALAR and not has_value

    def dtype_of(self, problem: Any) -> DType:
        dtype = getattr(problem, self.dtype) if isinstance(self.dtype, str) else self.dtype
        if not isinstance(dtype, DType):
            raise TemplateError(f"argument {self.name}: {self.dtype!r} is not a Problem field that holds a dtype")
        return dtype

    def shape(self, problem: Any) -> tuple[int, ...]:
        return tuple(getattr(problem, dim) for dim in self.dims)

    def nbytes(self, problem: Any) -> int:
        """Return the size in bytes of the dense tensor."""
        return self.dtype_of(problem).itemsize * prod(self.shape(problem))

    def array_from(self, problem: Any, arrays: Mapping[str, Any]) -> npt.NDArray[Any]:
        """Return the tensor's array from `arrays`; a tensor without elements may be missing.

        Raises InputError if it is missing, or if its shape or dtype does not match the problem.
        """
        dtype, shape = self.dtype_of(problem).numpy, self.shape(problem)
        if self.name not in arrays:
            if 0 not in shape:
                raise InputError(f"{self.name} is missing: the problem takes {dtype}{list(shape)}")
            return np.empty(shape, dtype)
        array = np.asarray(arrays[self.name])
        if array.shape != shape or array.dtype != dtype:
            raise InputError(f"{self.name} is {array.dtype}{list(array.shape)}, the problem says {dtype}{list(shape)}")
        return array

    def addressable(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the array as a kernel can address it: with its own strides if the kernel takes them, dense
        otherwise.
        """
        rows = self.strided and array.ndim and array.strides[-1] == array.itemsize
        keeps = (rows or self.strided == "all") and min(array.strides) >= 0
        return array if keeps else np.ascontiguousarray(array)

    def parameters(self, problem: Any) -> list[Parameter]:
        """Return the kernel parameters of this argument: a scalar, or a pointer and its strides."""
        dtype = self.dtype_of(problem)
        if self.constant:
            return []
        if self.role is Role.SCALAR:
            return [Parameter(f"{dtype.cuda} {self.name}", self.name, dtype)]
        const = " const" if self.role is Role.INPUT else ""
        pointer = f"{dtype.cuda}{const}* __restrict__ {self.name}"
        parameters = [Parameter(pointer, self.name, dtype, pointer=True)]
        for axis in self.strided_axes:
            declaration = f"long long {self.name}_{self.dims[axis]}_stride"
            parameters.append(Parameter(declaration, self.name, DType.INT64, axis=axis))
        return parameters


def within(value: Any, low: float, high: float) -> bool:
    """Return whether a scalar of a call is a number in [low, high]; False for strings and arrays."""
    try:
        return bool(low < value < high)
    except (TypeError, ValueError):
        return False
