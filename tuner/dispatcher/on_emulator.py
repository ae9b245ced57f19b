"""A plan on the CPU emulator, callable like `GpuKernel`, with the same strides, pointers and scalars."""

from collections.abc import Iterator, Mapping
from typing import Any

from tuner.backends import emulator
from tuner.backends.emulator import Mode
from tuner.base.fork import ForkGuard
from tuner.dispatcher.arrays import CPU, Framework
from tuner.dispatcher.binding import Binding
from tuner.errors import TemplateError
from tuner.spec.argument import Argument
from tuner.spec.layout import Layout, Region, workspaces
from tuner.spec.operator import Operator
from tuner.spec.parameters import scalars
from tuner.spec.plan import Plan
from tuner.spec.problem import Array


class EmulatedKernel:
    """A callable for arrays that fit `binding` and the caller's scalars.

    The arrays and the outputs, in the operator's order, belong to `framework` and are in CPU memory; arrays that are
    updated in place are the caller's own. Concurrent calls are serialized. Raises TemplateError if the emulator reports
    a finding, in which case nothing is updated, and MachineError in a child that was forked during a launch.
    """

    def __init__(
        self,
        operator: Operator[Any],
        binding: Binding,
        plan: Plan,
        kernel: emulator.Kernel,
        framework: Framework,
        arch: str,
    ) -> None:
        self._operator, self._binding, self._plan = operator, binding, plan
        self._kernel, self._framework, self._arch = kernel, framework, arch

    def __call__(self, arrays: Mapping[str, Any], passed_scalars: Mapping[str, float]) -> tuple[Any, ...]:
        operator, plan = self._operator, self._plan
        values = {**scalars(operator, self._binding.problem), **passed_scalars}
        layout = Layout(operator, self._binding.problem, tuple(self._regions(arrays)), values)
        with _ONE_CALL, emulator.placed((*layout.tensors, *workspaces(plan))) as memory:
            for launch, passed in layout.launches(plan, {name: tensor.address for name, tensor in memory.items()}):
                run = self._kernel.run(launch, passed, Mode(), arch=self._arch)
                if run.findings:
                    raise TemplateError(f"{operator.name}: {launch.entry} failed on the emulator: {run.findings[0]}")
            for name in {argument.name for argument in operator.updated} & arrays.keys():
                self._view(name, arrays[name])[...] = memory[name].array
            return tuple(self._fetched(output, memory[output.name].array) for output in operator.outputs)

    def _regions(self, arrays: Mapping[str, Any]) -> Iterator[Region]:
        """Yield the caller's arrays, with their strides, and the outputs."""
        for argument in self._operator.arguments:
            name, tensor = argument.name, self._binding.tensors.get(argument.name)
            if tensor is not None:
                dtype = argument.dtype_of(self._binding.problem).numpy
                strides = tuple(stride * dtype.itemsize for stride in tensor.strides)
                array = self._view(name, arrays[name]) if argument.supplied else None
                yield Region(name, dtype, tensor.shape, strides, array, argument.written)

    def _view(self, name: str, array: Any) -> Array:
        """Return a caller's array in its argument's order of dims."""
        return self._framework.numpy(array).transpose(self._binding.tensors[name].axes)

    def _fetched(self, argument: Argument, array: Array) -> Any:
        """Return an output as an array of the caller's framework."""
        shape, dtype = self._binding.tensors[argument.name].caller_shape, argument.dtype_of(self._binding.problem)
        result = self._framework.empty(shape, dtype, CPU)
        self._view(argument.name, result)[...] = array
        return result


_ONE_CALL = ForkGuard("ran a kernel on the emulator")  # its memory is the process's, and a launch watches all of it
