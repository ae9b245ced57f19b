"""An operator's arguments in device memory: inputs as drawn, outputs poisoned, and a guard zone around each."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.base.closing import Closing
from tuner.evaluate.measure.device import POISON, Bytes, Call, Device, Step
from tuner.spec.layout import Layout, Region, workspaces
from tuner.spec.operator import Operator
from tuner.spec.plan import Plan
from tuner.spec.problem import Array
from tuner.spec.tensor_map import MappedTensor

_GUARD = 64 << 10  # bytes before and after each tensor; keeps the device's own alignment of 256


@dataclass(frozen=True, slots=True)
class _Place:
    """A region between its guards."""

    begin: int  # of the first guard
    region: Region

    @property
    def address(self) -> int:
        return self.begin + _GUARD

    @property
    def absent(self) -> bool:
        """An input without elements is a null pointer."""
        return self.region.initial is not None and not self.region.nbytes

    @property
    def given(self) -> Bytes:
        """What it holds at first."""
        assert self.region.initial is not None, "asked of inputs and updates alone"
        return self.region.initial.reshape(-1).view(np.uint8)


class Arena(Closing):
    """The memory that runs of one problem share. Tensors are dense; `close` gives the memory back.

    What runs update in place goes on from run to run, until `poison` puts the drawn contents back.
    """

    def __init__(self, device: Device, operator: Operator[Any], problem: Any, arrays: Mapping[str, Any]) -> None:
        self._device, self._operator, self.problem = device, operator, problem
        self._layout = Layout.of(operator, problem, arrays, dense=True)
        self._places: dict[str, _Place] = {}
        self._spaces: dict[tuple[str, int], _Place] = {}  # by name and size: plans that agree share them
        try:
            for tensor in self._layout.tensors:
                self._places[tensor.name] = place = self._allocated(tensor)
                self._fill(place)
        except BaseException:  # what was allocated must not be lost
            self.close()
            raise

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
        spaces = {each.name: (each.name, each.nbytes) for each in workspaces(plan)}
        for each in workspaces(plan):
            if spaces[each.name] not in self._spaces:
                self._spaces[spaces[each.name]] = place = self._allocated(each)
                self._fill(place)
        addresses = {name: place.address for name, place in self._places.items() if not place.absent}
        addresses |= {name: self._spaces[key].address for name, key in spaces.items()}
        steps = tuple(Step(launch, self._encoded(values)) for launch, values in self._layout.launches(plan, addresses))
        return Call(steps, self._layout, addresses)

    def poison(self) -> None:
        """Forget what earlier runs wrote: outputs, updates, workspaces and guards."""
        for place in (*self._places.values(), *self._spaces.values()):
            if place.region.writable:
                self._fill(place)

    def outputs(self) -> dict[str, Array]:
        """Every output, and every argument updated in place, by name, copied from the device."""
        written = (self._places[argument.name] for argument in self._operator.written)
        return {each.region.name: each.region.view(self._read(each)) for each in written}

    def damage(self, *, inputs: bool) -> str:
        """What the last runs wrote where they must not; empty for nothing. With `inputs`, these are compared whole."""
        for place in (*self._places.values(), *self._spaces.values()):
            name = place.region.name
            before = self._device.read(place.begin, _GUARD)
            after = self._device.read(place.address + place.region.nbytes, _GUARD)
            if (before != POISON).any():
                return f"wrote before the first element of {name}"
            if (after != POISON).any():
                return f"wrote {int(np.flatnonzero(after != POISON)[0])} bytes past the end of {name}"
        kept = [each for each in self._places.values() if not each.region.writable] if inputs else []
        changed = [each.region.name for each in kept if not np.array_equal(self._read(each), each.given)]
        return f"wrote to the input {changed[0]}" if changed else ""

    def _read(self, place: _Place) -> Bytes:
        return self._device.read(place.address, place.region.nbytes)

    def _allocated(self, region: Region) -> _Place:
        return _Place(self._device.allocate(region.nbytes + 2 * _GUARD), region)

    def _fill(self, place: _Place) -> None:
        """Poison, and in it what is given."""
        self._device.fill(place.begin, place.region.nbytes + 2 * _GUARD)
        if place.region.initial is not None:
            self._device.write(place.address, place.given)

    def _encoded(self, values: Iterable[np.generic | MappedTensor]) -> tuple[np.generic, ...]:
        return tuple(self._device.tensor_map(each) if isinstance(each, MappedTensor) else each for each in values)
