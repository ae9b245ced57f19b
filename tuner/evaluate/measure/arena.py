"""An operator's arguments in device memory: inputs as drawn, outputs poisoned, and a guard zone around each."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from types import TracebackType
from typing import Any, Self

import numpy as np

from tuner.evaluate.measure.device import POISON, Bytes, Call, Device, Step
from tuner.spec.argument import Argument, Located, Role
from tuner.spec.operator import Operator
from tuner.spec.parameters import parameters, scalars
from tuner.spec.plan import Launch, Plan
from tuner.spec.problem import Array
from tuner.spec.tensor_map import MappedTensor

_GUARD = 64 << 10  # bytes before and after each tensor; keeps the device's own alignment of 256


@dataclass(frozen=True, slots=True)
class _Place:
    """A tensor between its guards."""

    begin: int  # of the first guard
    nbytes: int  # of the tensor

    @property
    def address(self) -> int:
        return self.begin + _GUARD


class Arena:
    """The memory that runs of one problem share. Tensors are dense; `close` gives the memory back.

    What runs update in place goes on from run to run, until `poison` puts the drawn contents back.
    """

    def __init__(self, device: Device, operator: Operator[Any], problem: Any, arrays: Mapping[str, Any]) -> None:
        self._device, self._operator, self.problem = device, operator, problem
        self._scalars = scalars(operator, problem, arrays)
        self._tensors = [each for each in operator.arguments if each.role is not Role.SCALAR]
        self._places: dict[str, _Place] = {}
        self._spaces: dict[tuple[str, int], _Place] = {}  # by name and size: plans that agree share them
        self._inputs: dict[str, Bytes] = {}
        try:
            for argument in self._tensors:
                self._put(argument, arrays)
        except BaseException:  # what was allocated must not be lost
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self.release()
        for place in self._places.values():
            self._device.free(place.begin)
        self._places.clear()

    def release(self) -> None:
        """Give back the workspaces of all calls made so far."""
        for place in self._spaces.values():
            self._device.free(place.begin)
        self._spaces.clear()

    def call(self, plan: Plan) -> Call:
        """The launches of a plan on these tensors. Its workspaces live until `release`."""
        for space in plan.workspaces:
            if (space.name, space.nbytes) not in self._spaces:
                self._spaces[space.name, space.nbytes] = self._allocated(space.nbytes)
        tensors = self._located(plan)
        return Call(self.problem, tuple(self._step(plan, launch, tensors) for launch in plan.launches))

    def poison(self) -> None:
        """Forget what earlier runs wrote: outputs, updates, workspaces and guards."""
        written = [self._places[argument.name] for argument in self._operator.written]
        for place in (*written, *self._spaces.values()):
            self._device.fill(place.begin, place.nbytes + 2 * _GUARD)
        for argument in self._operator.updated:
            self._device.write(self._places[argument.name].address, self._inputs[argument.name])

    def outputs(self) -> dict[str, Array]:
        """Every output, and every argument updated in place, by name, copied from the device."""
        found = {}
        for argument in self._operator.written:
            place, dtype = self._places[argument.name], argument.dtype_of(self.problem).numpy
            data = self._device.read(place.address, place.nbytes)
            found[argument.name] = data.view(dtype).reshape(argument.shape(self.problem))
        return found

    def damage(self, *, inputs: bool) -> str:
        """What the last runs wrote where they must not; empty for nothing. With `inputs`, these are compared whole."""
        spaces = ((name, place) for (name, _), place in self._spaces.items())
        for name, place in (*self._places.items(), *spaces):
            before = self._device.read(place.begin, _GUARD)
            after = self._device.read(place.address + place.nbytes, _GUARD)
            if (before != POISON).any():
                return f"wrote before the first element of {name}"
            if (after != POISON).any():
                return f"wrote {int(np.flatnonzero(after != POISON)[0])} bytes past the end of {name}"
        kept = [each.name for each in self._tensors if each.role is Role.INPUT] if inputs else []
        changed = [name for name in kept if not self._holds(name, self._inputs[name])]
        return f"wrote to the input {changed[0]}" if changed else ""

    def _put(self, argument: Argument, arrays: Mapping[str, Any]) -> None:
        place = self._places[argument.name] = self._allocated(argument.nbytes(self.problem))
        if argument.given:
            data = self._inputs[argument.name] = _bytes(argument.drawn(self.problem, arrays))
            self._device.write(place.address, data)

    def _holds(self, name: str, data: Bytes) -> bool:
        return bool(np.array_equal(self._device.read(self._places[name].address, data.nbytes), data))

    def _allocated(self, nbytes: int) -> _Place:
        place = _Place(self._device.allocate(nbytes + 2 * _GUARD), nbytes)
        self._device.fill(place.begin, nbytes + 2 * _GUARD)
        return place

    def _located(self, plan: Plan) -> dict[str, Located]:
        """All tensors, which are dense, and the plan's workspaces."""
        found = {}
        for argument in self._tensors:
            place, shape = self._places[argument.name], argument.shape(self.problem)
            absent = argument.name in self._inputs and not place.nbytes  # an input without elements is a null pointer
            strides = tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
            found[argument.name] = Located(0 if absent else place.address, shape, strides)
        for space in plan.workspaces:
            found[space.name] = Located(self._spaces[space.name, space.nbytes].address)
        return found

    def _step(self, plan: Plan, launch: Launch, tensors: Mapping[str, Located]) -> Step:
        taken = parameters(self._operator, self.problem, plan, launch)
        values = (parameter.value(tensors, self._scalars) for parameter in taken)
        return Step(launch, tuple(self._encoded(value) for value in values))

    def _encoded(self, value: np.generic | MappedTensor) -> np.generic:
        return self._device.tensor_map(value) if isinstance(value, MappedTensor) else value


def _bytes(array: Array) -> Bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
