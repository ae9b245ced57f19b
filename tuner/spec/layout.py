"""The memory layout of a plan's tensors and workspaces, and the arguments of its launches. Backends only allocate."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from tuner.spec.argument import DeviceTensor, Role, dense_strides
from tuner.spec.operator import Operator
from tuner.spec.parameters import parameters, scalars
from tuner.spec.plan import Launch, Plan
from tuner.spec.problem import Array
from tuner.spec.tensor_map import MappedTensor


@dataclass(frozen=True)
class Region:
    """A contiguous memory range of `nbytes` for a tensor or a workspace, from its lowest to its highest element."""

    name: str
    dtype: "np.dtype[Any]"
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in bytes; 0 or negative strides are possible for inputs
    initial: Array | None = field(default=None, compare=False)  # initial contents; None: uninitialised
    writable: bool = True  # whether kernels may write it

    @property
    def before(self) -> int:
        """Bytes before the first element."""
        return -int(sum(step for step in self._reach if step < 0)) if prod(self.shape) else 0

    @property
    def nbytes(self) -> int:
        reach = sum(step for step in self._reach if step > 0)
        return int(self.before + reach + self.dtype.itemsize) if prod(self.shape) else 0

    @property
    def _reach(self) -> tuple[int, ...]:
        return tuple((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))

    def view(self, memory: Array) -> Array:
        """Return the region's bytes as an array with the region's shape and strides."""
        return np.ndarray(self.shape, self.dtype, memory, self.before, self.strides)

    def located(self, address: int) -> DeviceTensor:
        """Return the region at an address in device memory."""
        return DeviceTensor(
            address + self.before, self.shape, tuple(stride // self.dtype.itemsize for stride in self.strides)
        )


@dataclass(frozen=True)
class Layout:
    """The arguments of one call of an operator: its tensors, in order, and its scalar values."""

    operator: Operator[Any]
    problem: Any
    tensors: tuple[Region, ...]
    scalars: Mapping[str, float]

    @classmethod
    def of(cls, operator: Operator[Any], problem: Any, arrays: Mapping[str, Any], *, dense: bool = False) -> "Layout":
        """Lay out the arguments in `arrays`: every input by name, and scalars that do not use their default.

        Inputs keep their own strides if a kernel takes them and `dense` is False.
        """
        tensors = []
        for argument in operator.arguments:
            if argument.supplied:
                array = argument.array_from(problem, arrays)
                array = np.ascontiguousarray(array) if dense else argument.addressable(array)
                tensors.append(Region(argument.name, array.dtype, array.shape, array.strides, array, argument.written))
            elif argument.role is not Role.SCALAR:
                tensors.append(_dense(argument.name, argument.dtype_of(problem).numpy, argument.shape(problem)))
        return cls(operator, problem, tuple(tensors), scalars(operator, problem, arrays))

    def launches(
        self, plan: Plan, addresses: Mapping[str, int]
    ) -> Iterator[tuple[Launch, list[np.generic | MappedTensor]]]:
        """Yield every launch with its parameter values; tensor maps are not encoded yet.

        A tensor without an address is an absent input: a null pointer.
        """
        tensors = {argument.name: DeviceTensor(0) for argument in self.operator.arguments}
        regions = (workspace for workspace in (*self.tensors, *workspaces(plan)) if workspace.name in addresses)
        tensors |= {region.name: region.located(addresses[region.name]) for region in regions}
        for launch in plan.launches:
            taken = parameters(self.operator, self.problem, plan, launch)
            yield launch, [parameter.value(tensors, self.scalars) for parameter in taken]


def workspaces(plan: Plan) -> tuple[Region, ...]:
    """Return the memory that the launches of a plan share."""
    return tuple(_dense(workspace.name, workspace.dtype.numpy, workspace.shape) for workspace in plan.workspaces)


def _dense(name: str, dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> Region:
    return Region(name, dtype, shape, tuple(dtype.itemsize * int(size) for size in dense_strides(shape)))
