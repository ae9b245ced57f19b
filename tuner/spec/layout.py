"""Where a plan's tensors and workspaces lie in memory, and what its launches are told of it: machines only allocate."""

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
    """The memory of a tensor or a workspace: `nbytes` in a row, from the lowest element to the end of the highest."""

    name: str
    dtype: "np.dtype[Any]"
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in bytes; of what is given they may be 0 or negative
    initial: Array | None = field(default=None, compare=False)  # what it holds at first; None: nothing that may be read
    writable: bool = True  # by kernels

    @property
    def before(self) -> int:
        """Bytes that lie before the first element."""
        return -int(sum(step for step in self._reach if step < 0)) if prod(self.shape) else 0

    @property
    def nbytes(self) -> int:
        reach = sum(step for step in self._reach if step > 0)
        return int(self.before + reach + self.dtype.itemsize) if prod(self.shape) else 0

    @property
    def _reach(self) -> tuple[int, ...]:
        return tuple((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))

    def view(self, memory: Array) -> Array:
        """The region's bytes as the array that they hold."""
        return np.ndarray(self.shape, self.dtype, memory, self.before, self.strides)

    def located(self, address: int) -> DeviceTensor:
        """At an address of its memory."""
        return DeviceTensor(
            address + self.before, self.shape, tuple(stride // self.dtype.itemsize for stride in self.strides)
        )


@dataclass(frozen=True)
class Layout:
    """The arguments of one call of an operator: its tensors, in order, and the values of its scalars."""

    operator: Operator[Any]
    problem: Any
    tensors: tuple[Region, ...]
    scalars: Mapping[str, float]

    @classmethod
    def of(cls, operator: Operator[Any], problem: Any, arrays: Mapping[str, Any], *, dense: bool = False) -> "Layout":
        """Of what `arrays` holds: every input by name, with its own strides where a kernel takes them and not `dense`,
        and scalars that are not to take their default.
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
        """Every launch with the values of its parameters; tensor maps are yet to be encoded.

        What has no address is an input that is not given: a null pointer.
        """
        tensors = {argument.name: DeviceTensor(0) for argument in self.operator.arguments}
        regions = (workspace for workspace in (*self.tensors, *workspaces(plan)) if workspace.name in addresses)
        tensors |= {region.name: region.located(addresses[region.name]) for region in regions}
        for launch in plan.launches:
            taken = parameters(self.operator, self.problem, plan, launch)
            yield launch, [parameter.value(tensors, self.scalars) for parameter in taken]


def workspaces(plan: Plan) -> tuple[Region, ...]:
    """The memory that the launches of a plan share."""
    return tuple(_dense(workspace.name, workspace.dtype.numpy, workspace.shape) for workspace in plan.workspaces)


def _dense(name: str, dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> Region:
    return Region(name, dtype, shape, tuple(dtype.itemsize * int(size) for size in dense_strides(shape)))
