"""A plan on the PTX interpreter, callable like `GpuKernel`, for kernels that the emulator does not compile."""

from collections.abc import Mapping
from typing import Any

from tuner.backends import ptx
from tuner.dispatcher.arrays import CPU, Framework
from tuner.dispatcher.binding import Binding
from tuner.errors import TemplateError
from tuner.spec.instance import Instance
from tuner.spec.problem import Array


class PtxKernel:
    """A callable for arrays that fit `binding`, whose problem is the instance's, and the caller's scalars.

    Arrays, outputs and the TemplateError for a faulty kernel are as for `EmulatedKernel`.
    """

    def __init__(
        self, instance: Instance, binding: Binding, entries: Mapping[str, ptx.Entry], framework: Framework
    ) -> None:
        self._instance, self._binding = instance, binding
        self._entries, self._framework = entries, framework

    def __call__(self, arrays: Mapping[str, Any], values: Mapping[str, float]) -> tuple[Any, ...]:
        operator = self._instance.operator
        outputs, run = ptx.run(self._instance, self._entries, {**self._views(arrays), **values})
        if run.fault:
            raise TemplateError(f"{operator.name} failed on the PTX interpreter: {run.fault}")
        for name in {argument.name for argument in operator.updated} & arrays.keys():
            self._views(arrays)[name][...] = outputs[name]
        return tuple(self._fetched(argument.name, outputs[argument.name]) for argument in operator.outputs)

    def _views(self, arrays: Mapping[str, Any]) -> dict[str, Array]:
        """Return the caller's arrays with their argument's order of dims."""
        tensors, numpy = self._binding.tensors, self._framework.numpy
        return {name: numpy(array).transpose(tensors[name].axes) for name, array in arrays.items()}

    def _fetched(self, name: str, output: Array) -> Any:
        tensor, argument = self._binding.tensors[name], self._instance.operator.argument(name)
        result = self._framework.empty(tensor.caller_shape, argument.dtype_of(self._instance.problem), CPU)
        self._framework.numpy(result).transpose(tensor.axes)[...] = output
        return result
