"""A plan on the CPU emulator, behind the call that `GpuKernel` has: the same strides, pointers and scalars."""

import os
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tuner.dispatcher.arrays import CPU, Framework
from tuner.dispatcher.binding import Binding, Tensor
from tuner.errors import MachineError, TemplateError
from tuner.machines import emulator
from tuner.machines.emulator import Buffer, Mode
from tuner.spec.argument import Located, Role
from tuner.spec.dtype import DType
from tuner.spec.operator import Operator
from tuner.spec.parameters import parameters, scalars
from tuner.spec.plan import Plan
from tuner.spec.problem import Array


class EmulatedKernel:
    """Call it with arrays that fit `binding` and the scalars that the caller gives.

    The arrays and the outputs, in the operator's order, are of `framework`, in CPU memory; arrays that are updated in
    place are the caller's own. Calls from several threads take turns. Raises TemplateError when the emulator finds the
    kernel at fault; nothing is updated then. Raises MachineError in a process that was forked in the middle of a call.
    """

    def __init__(
        self, operator: Operator[Any], binding: Binding, plan: Plan, kernel: emulator.Kernel, framework: Framework
    ) -> None:
        self._operator, self._binding, self._plan = operator, binding, plan
        self._kernel, self._framework = kernel, framework
        self._scalars = scalars(operator, binding.problem)
        self._parameters = [parameters(operator, binding.problem, plan, launch) for launch in plan.launches]

    def __call__(self, arrays: Mapping[str, Any], given: Mapping[str, float]) -> tuple[Any, ...]:
        if os.getpid() in _TORN:
            raise MachineError(
                "this process was forked while a thread ran a kernel on the emulator, and has half of its state: "
                "fork before or after a call, or start processes by spawn"
            )
        with _ONE_CALL, ExitStack() as stack:
            device = self._inputs(arrays, stack) | self._outputs(stack) | self._workspaces(stack)
            self._launch({**self._scalars, **given}, device)
            self._update(arrays, device)
            return tuple(self._fetched(argument.name, device) for argument in self._operator.outputs)

    def _inputs(self, arrays: Mapping[str, Any], stack: ExitStack) -> "dict[str, _Placed]":
        placed = {}
        for name, array in arrays.items():
            tensor, seen = self._binding.tensors[name], self._framework.numpy(array)
            updated = self._operator.argument(name).role is Role.UPDATED
            placed[name] = _place(name, tensor, seen.dtype, stack, writable=updated, initialized=True)
            placed[name].view[...] = seen.transpose(tensor.axes)
        return placed

    def _outputs(self, stack: ExitStack) -> "dict[str, _Placed]":
        placed = {}
        for argument in self._operator.outputs:
            dtype = argument.dtype_of(self._binding.problem).numpy
            tensor = self._binding.tensors[argument.name]
            placed[argument.name] = _place(argument.name, tensor, dtype, stack, writable=True, initialized=False)
        return placed

    def _workspaces(self, stack: ExitStack) -> "dict[str, _Placed]":
        placed = {}
        for space in self._plan.workspaces:
            buffer = stack.enter_context(Buffer(space.name, space.nbytes, writable=True, initialized=False))
            placed[space.name] = _Placed(Located(buffer.address), buffer.view(space.dtype.numpy, space.shape))
        return placed

    def _launch(self, values: Mapping[str, float], device: "Mapping[str, _Placed]") -> None:
        absent = {argument.name: Located(0) for argument in self._operator.arguments}
        tensors = absent | {name: each.located for name, each in device.items()}
        for launch, taken in zip(self._plan.launches, self._parameters, strict=True):
            run = self._kernel.run(launch, [each.value(tensors, values) for each in taken], Mode())
            if run.findings:
                raise TemplateError(f"{self._operator.name}: {launch.entry} failed on the emulator: {run.findings[0]}")

    def _update(self, arrays: Mapping[str, Any], device: "Mapping[str, _Placed]") -> None:
        for name in {each.name for each in self._operator.updated} & arrays.keys():
            seen = self._framework.numpy(arrays[name])
            seen.transpose(self._binding.tensors[name].axes)[...] = device[name].view

    def _fetched(self, name: str, device: "Mapping[str, _Placed]") -> Any:
        tensor, view = self._binding.tensors[name], device[name].view
        dtype = DType.of(view.dtype)
        assert dtype is not None, "outputs are made with dtypes of ours"
        result = self._framework.empty(tensor.caller_shape, dtype, CPU)
        self._framework.numpy(result).transpose(tensor.axes)[...] = view
        return result


_ONE_CALL = threading.Lock()  # the emulator's memory is the process's, and a launch watches all of it
_TORN: set[int] = set()  # this process, where it was forked in the middle of a call: nobody would end that here


def _after_fork() -> None:
    if _ONE_CALL.locked():
        _TORN.add(os.getpid())


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)


class _Placed(NamedTuple):
    """A tensor in the emulator's memory."""

    located: Located
    view: Array


def _place(
    name: str, tensor: Tensor, dtype: "np.dtype[Any]", stack: ExitStack, *, writable: bool, initialized: bool
) -> _Placed:
    """Memory for a tensor with its strides, which may be 0 or negative, until `stack` closes."""
    reach = [(max(size, 1) - 1) * stride for size, stride in zip(tensor.shape, tensor.strides, strict=True)]
    before = -sum(min(0, each) for each in reach)  # elements that lie before the first
    elements = before + sum(max(0, each) for each in reach) + 1
    nbytes = elements * dtype.itemsize
    buffer = stack.enter_context(Buffer(name, nbytes, writable=writable, initialized=initialized))
    steps = [stride * dtype.itemsize for stride in tensor.strides]
    view = as_strided(buffer.view(dtype, (elements,))[before:], tensor.shape, steps)
    return _Placed(Located(buffer.address + before * dtype.itemsize, tensor.shape, tensor.strides), view)
