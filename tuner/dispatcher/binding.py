"""The binding of a call to its operator: the Problem that its arrays imply, and every tensor as kernels address it."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from tuner.compiler.standalone.sizes import remembers
from tuner.dispatcher.arrays import ALIGNMENT, FRAMEWORKS, Facts
from tuner.errors import InputError, TemplateError, UsageError
from tuner.spec.argument import Argument, Role, dense_strides
from tuner.spec.dtype import DType
from tuner.spec.operator import Operator, Request
from tuner.spec.shapes import InferredProblem, infer_problem


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor with its argument's order of dims; strides are in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    axes: tuple[int, ...]  # axis of the caller's array for each dim

    @property
    def caller_shape(self) -> tuple[int, ...]:
        return tuple(self.shape[self.axes.index(axis)] for axis in range(len(self.axes)))


@dataclass(frozen=True, slots=True)
class Binding:
    """The Problem and tensors of a call, which are the same for all calls with equal facts."""

    problem: Any  # for an empty call, with 1 in place of sizes of 0
    tensors: Mapping[str, Tensor]  # by argument: the caller's arrays and outputs; only outputs for an empty call
    empty_dims: Mapping[str, int] = field(default_factory=dict)  # the sizes of 0, for which there is nothing to compute
    fill: Mapping[str, float | str] = field(default_factory=dict)  # values of outputs with elements in that case


def bind(operator: Operator[Any], request: Request, facts: Mapping[str, Facts]) -> Binding:
    """Return the Problem of a call and its tensors; outputs are dense in the caller's order of dims.

    Inputs without elements are not passed. Raises InputError for arrays or values that do not fit, with the argument,
    its value and what is accepted.
    """
    inputs = {argument.name: argument for argument in operator.arguments if argument.supplied}
    passed = [argument for name, argument in inputs.items() if name in facts]
    views = [_View(argument, facts[argument.name], request.axes.get(argument.name)) for argument in passed]
    shapes = _outline(operator, request, views)
    problem = shapes.problem
    absent = {name for name in inputs.keys() - facts.keys() if 0 not in inputs[name].shape(problem)}
    if disagreed := absent | (facts.keys() - inputs.keys()):
        names = ", ".join(sorted(disagreed))
        raise TemplateError(f"{operator.name}: call() and the arguments it passes disagree about {names}")
    required = {argument.name for argument in operator.arguments if argument.required(problem)}
    if missing := required - {name for name, value in request.scalars.items() if value is not None}:
        raise TemplateError(f"{operator.name}: call() gives no value for the scalar {', '.join(sorted(missing))}")
    outputs = {
        argument.name: _output(argument, shapes.shape(argument), request.axes.get(argument.name))
        for argument in operator.outputs
    }
    if shapes.empty_dims:
        return Binding(problem, outputs, shapes.empty_dims, dict(_fill(operator, shapes, views)))
    return Binding(problem, {view.argument.name: view.tensor() for view in views} | outputs)


def _fill(operator: Operator[Any], shapes: InferredProblem, views: "list[_View]") -> Iterator[tuple[str, float | str]]:
    """Yield the values of outputs that have elements although there is nothing to compute. Raises InputError if
    undeclared.
    """
    for output in operator.outputs:
        if 0 in shapes.shape(output):
            continue
        values = [value for dim, value in output.without.items() if dim in shapes.empty_dims]
        if not values:
            dim = next(iter(shapes.empty_dims))
            view = next(view for view in views if dim in view.argument.dims)
            raise InputError(f"{view}: {dim} must be {shapes.empty_dims[dim] + 1} or more")
        yield output.name, values[0]


class _View:
    """A caller's array with its argument's order of dims."""

    def __init__(self, argument: Argument, facts: Facts, axes: tuple[int, ...] | None) -> None:
        self.argument, self.facts = argument, facts
        self.axes = axes or tuple(range(len(argument.dims)))
        self.dims = ", ".join(argument.dims[self.axes.index(axis)] for axis in range(len(self.axes)))
        if len(facts.shape) != len(argument.dims):
            raise InputError(
                f"{argument.name} has {len(facts.shape)} dims {facts.shape}: it takes {len(argument.dims)}, "
                f"[{self.dims}]"
            )
        self.shape = tuple(facts.shape[axis] for axis in self.axes)

    def __str__(self) -> str:
        return f"{self.argument.name} [{self.dims}] = {self.facts.shape}"

    @property
    def dtype(self) -> DType | None:
        return FRAMEWORKS[self.facts.framework].dtype(self.facts)

    def tensor(self) -> Tensor:
        """Return the tensor. Raises InputError for strides or an address that kernels cannot use."""
        dtype = self.dtype
        assert dtype is not None, "dtypes are checked before strides"
        byte_strides = FRAMEWORKS[self.facts.framework].byte_strides(self.facts)
        dense = dense_strides(self.shape)
        # The stride of a dim of size 1 is unused, and frameworks set it arbitrarily.
        strides = tuple(
            byte_strides[axis] if size > 1 else step * dtype.itemsize
            for axis, size, step in zip(self.axes, self.shape, dense, strict=True)
        )
        if self.argument.role is Role.UPDATED:
            self._check_writable(strides)
        if self.argument.strided == "all":
            pass  # its kernels load single elements
        elif self.argument.strided:
            self._check_rows(strides, dtype.itemsize)
        elif strides != tuple(step * dtype.itemsize for step in dense):
            raise InputError(f"{self._where(strides)}: it must be contiguous; pass a copy in C order")
        if off := self.facts.misalignment % self._widest(dtype.itemsize):
            raise InputError(
                f"{self.argument.name} starts {off} bytes past a multiple of {self._widest(dtype.itemsize)}: "
                "kernels load that many at once; pass a copy"
            )
        return Tensor(self.shape, tuple(stride // dtype.itemsize for stride in strides), self.axes)

    def _check_writable(self, strides: tuple[int, ...]) -> None:
        name = self.argument.name
        if not self.facts.writable:
            raise InputError(f"{name} is read-only, and it is updated in place: pass an array that can be written")
        if any(stride == 0 and size > 1 for stride, size in zip(strides, self.shape, strict=True)):
            raise InputError(f"{self._where(strides)}: elements share memory, and it is updated in place; pass a copy")

    def _check_rows(self, strides: tuple[int, ...], itemsize: int) -> None:
        if strides[-1] != itemsize:
            raise InputError(f"{self._where(strides)}: dim {self.argument.dims[-1]} must be contiguous; pass a copy")
        widest = self._widest(itemsize)
        if odd := [dim for dim, stride in zip(self.argument.dims, strides[:-1], strict=False) if stride % widest]:
            raise InputError(
                f"{self._where(strides)}: the stride of {odd[0]} must be a multiple of {widest} bytes, "
                f"so that every row can be loaded {widest} bytes at once; pass a copy"
            )

    def _widest(self, itemsize: int) -> int:
        """Return the number of bytes that a kernel may load at once, to which rows of a dense tensor are aligned."""
        if self.argument.strided == "all":
            return itemsize
        return math.gcd(ALIGNMENT, self.shape[-1] * itemsize) if self.argument.strided else ALIGNMENT

    def _where(self, strides: tuple[int, ...]) -> str:
        return f"{self.argument.name} [{self.dims}] has strides of {self._in_order(strides)} bytes"

    def _in_order(self, strides: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(strides[self.axes.index(axis)] for axis in range(len(self.axes)))


def _outline(operator: Operator[Any], request: Request, views: list[_View]) -> InferredProblem:
    types = {field.name: field.type for field in fields(operator.problem)}
    sizes, dtypes = _sizes(views), dict(_dtypes(operator, views))
    chosen = {name: _coerced(name, value, types[name]) for name, value in request.statics.items()}
    # Symbolic values from `follow`, which are not parsed.
    followed = {name: value for name, value in chosen.items() if remembers(value)}
    parsed = {name: value for name, value in chosen.items() if name not in followed}
    try:
        shapes = infer_problem(operator, {**sizes, **followed}, {**dtypes, **parsed})
    except InputError:
        raise
    except (UsageError, ValueError) as error:  # the Problem or its field refuses it
        raise InputError(str(error)) from error
    for name, size in sizes.items():  # a Problem may interpret 0 as "the same as another field"
        if shapes.size(name) != size:
            raise InputError(f"{name} {size}: {operator.name} takes {shapes.size(name)} here")
    for name, dtype in dtypes.items():  # or derive it from another dtype
        if (wanted := getattr(shapes.problem, name)) is not dtype:
            view = next(view for view in views if view.argument.dtype == name)
            raise InputError(f"{view.argument.name} is {dtype.value}: {operator.name} takes {wanted.value} here")
    return shapes


def _sizes(views: list[_View]) -> dict[str, int]:
    """Return dim → size. Raises InputError if two arrays disagree."""
    first: dict[str, _View] = {}
    sizes: dict[str, int] = {}
    for view in views:
        for dim, size in zip(view.argument.dims, view.shape, strict=True):
            other = first.setdefault(dim, view)
            if sizes.setdefault(dim, size) != size:
                raise InputError(f"{view}: {dim} is {size}, but {sizes[dim]} in {other}")
    return sizes


def _dtypes(operator: Operator[Any], views: list[_View]) -> Iterator[tuple[str, DType]]:
    """Yield (Problem field, dtype) from the arrays. Raises InputError for dtypes that are not accepted or not equal."""
    choices = {field.name: field.metadata["choices"] for field in fields(operator.problem)}
    first: dict[str, _View] = {}
    for view in views:
        wanted, name, dtype = view.argument.dtype, view.argument.name, view.dtype
        accepted = (wanted,) if isinstance(wanted, DType) else choices[wanted] or tuple(DType)
        if dtype is None or dtype not in accepted:
            raise InputError(
                f"{name} is {_dtype_name(view)}: it takes {', '.join(choice.value for choice in accepted)}"
            )
        if isinstance(wanted, str):
            other = first.setdefault(wanted, view)
            if other.dtype is not dtype:
                raise InputError(f"{name} is {_dtype_name(view)}, but {other.argument.name} is {_dtype_name(other)}")
            if other is view:
                yield wanted, dtype


def _dtype_name(view: _View) -> str:
    return view.dtype.value if view.dtype else str(view.facts.dtype).removeprefix("torch.")


def _coerced(name: str, value: Any, kind: Any) -> Any:
    """Convert a static value to its field's type, e.g. a NumPy bool or 1 to True, so that equal values share a key."""
    if isinstance(value, kind) and (type(value) is kind or remembers(value)):
        return value
    try:
        converted = kind(value)
    except (TypeError, ValueError) as error:
        accepted = ", ".join(str(member.value) for member in kind) if issubclass(kind, Enum) else kind.__name__
        raise InputError(f"{name} {value!r}: it takes {accepted}") from error
    if not issubclass(kind, Enum) and converted != value:
        raise InputError(f"{name} {value!r}: it takes {kind.__name__}")
    return converted


def _output(argument: Argument, shape: tuple[int, ...], axes: tuple[int, ...] | None) -> Tensor:
    order = axes or tuple(range(len(shape)))
    tensor = Tensor(shape, (), order)
    steps = dense_strides(tensor.caller_shape)
    strides = tuple(steps[axis] for axis in order)
    if not argument.strided and strides != dense_strides(shape):
        raise TemplateError(f"output {argument.name} has axes of its own, but its kernel takes no strides")
    return Tensor(shape, strides, order)
