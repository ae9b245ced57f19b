"""An operator's arguments in device memory: inputs, poisoned outputs, and guard zones around each tensor."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.base.self_closing import Closing
from tuner.evaluate.measure.device import POISON, Bytes, Call, Device, Step
from tuner.spec.layout import Layout, Region, workspaces
from tuner.spec.operator import Operator
from tuner.spec.plan import Plan
from tuner.spec.problem import Array
from tuner.spec.tensor_map import MappedTensor

_GUARD = 64 << 10  # bytes before and after each tensor; preserves the device's alignment of 256


@dataclass(frozen=True, slots=True)
class _Allocation:
    """A region with its guard zones."""

    begin: int  # start of the first guard zone
    region: Region

    @property
    def address(self) -> int:
        return self.begin + _GUARD

    @property
    def absent(self) -> bool:
        """Whether the input has no elements, so that it is a null pointer."""
        return self.region.initial is not None and not self.region.nbytes

    @property
    def given(self) -> Bytes:
        """The initial contents."""
        assert self.region.initial is not None, "only inputs and updated arguments have contents"
        return self.region.initial.reshape(-1).view(np.uint8)


class Arena(Closing):
    """The memory shared by all runs of one problem. Tensors are dense; `close` frees the memory.

    Arguments updated in place accumulate over runs until `poison` restores the initial contents.
    """

    def __init__(self, device: Device, operator: Operator[Any], problem: Any, arrays: Mapping[str, Any]) -> None:
        self._device, self._operator, self.problem = device, operator, problem
        self._layout = Layout.of(operator, problem, arrays, dense=True)
        self._arguments: dict[str, _Allocation] = {}
        self._workspaces: dict[tuple[str, int], _Allocation] = {}  # by name and size, so that plans share them
        try:
            for tensor in self._layout.tensors:
                self._arguments[tensor.name] = allocation = self._allocated(tensor)
                self._fill(allocation)
        except BaseException:  # do not leak earlier allocations
            self.close()
            raise

    def close(self) -> None:
        self.release()
        for allocation in self._arguments.values():
            self._device.free(allocation.begin)
        self._arguments.clear()

    def release(self) -> None:
        """Free the workspaces of all calls made so far."""
        for allocation in self._workspaces.values():
            self._device.free(allocation.begin)
        self._workspaces.clear()

    def call(self, plan: Plan) -> Call:
        """Return the launches of a plan on these tensors. Its workspaces are valid until `release`."""
        keys = {workspace.name: (workspace.name, workspace.nbytes) for workspace in workspaces(plan)}
        for workspace in workspaces(plan):
            if keys[workspace.name] not in self._workspaces:
                self._workspaces[keys[workspace.name]] = allocation = self._allocated(workspace)
                self._fill(allocation)
        addresses = {name: allocation.address for name, allocation in self._arguments.items() if not allocation.absent}
        addresses |= {name: self._workspaces[key].address for name, key in keys.items()}
        steps = tuple(Step(launch, self._encoded(values)) for launch, values in self._layout.launches(plan, addresses))
        return Call(steps, self._layout, addresses)

    def poison(self) -> None:
        """Reset everything that earlier runs wrote: outputs, updates, workspaces and guard zones."""
        for allocation in (*self._arguments.values(), *self._workspaces.values()):
            if allocation.region.writable:
                self._fill(allocation)

    def outputs(self) -> dict[str, Array]:
        """Copy every output, and every argument updated in place, from the device, by name."""
        written = (self._arguments[argument.name] for argument in self._operator.written)
        return {allocation.region.name: allocation.region.view(self._read(allocation)) for allocation in written}

    def damage(self, *, inputs: bool) -> str:
        """Return the first invalid write of the last runs, or an empty string. With `inputs`, these are compared as a
        whole.
        """
        for allocation in (*self._arguments.values(), *self._workspaces.values()):
            name = allocation.region.name
            before = self._device.read(allocation.begin, _GUARD)
            after = self._device.read(allocation.address + allocation.region.nbytes, _GUARD)
            if (before != POISON).any():
                return f"wrote before the first element of {name}"
            if (after != POISON).any():
                return f"wrote {int(np.flatnonzero(after != POISON)[0])} bytes past the end of {name}"
        kept = [region for region in self._arguments.values() if not region.region.writable] if inputs else []
        changed = [region.region.name for region in kept if not np.array_equal(self._read(region), region.given)]
        return f"wrote to the input {changed[0]}" if changed else ""

    def _read(self, allocation: _Allocation) -> Bytes:
        return self._device.read(allocation.address, allocation.region.nbytes)

    def _allocated(self, region: Region) -> _Allocation:
        return _Allocation(self._device.allocate(region.nbytes + 2 * _GUARD), region)

    def _fill(self, allocation: _Allocation) -> None:
        """Fill with poison and the initial contents."""
        self._device.fill(allocation.begin, allocation.region.nbytes + 2 * _GUARD)
        if allocation.region.initial is not None:
            self._device.write(allocation.address, allocation.given)

    def _encoded(self, values: Iterable[np.generic | MappedTensor]) -> tuple[np.generic, ...]:
        return tuple(self._device.tensor_map(value) if isinstance(value, MappedTensor) else value for value in values)
