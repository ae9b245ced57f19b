"""A config's plan on the machine: every launch of it, on the PTX that the compiler makes for an arch."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import inf, prod
from typing import Any

import numpy as np

from tuner.machines.ptx.launch import Shape, launch
from tuner.machines.ptx.state.memory import FaultError, Global
from tuner.machines.ptx.state.values import Array
from tuner.machines.ptx.state.wave import Order
from tuner.machines.ptx.text.module import Entry
from tuner.machines.ptx.text.tables import Table
from tuner.spec.argument import Located, Role, span
from tuner.spec.instance import Instance
from tuner.spec.operator import Operator
from tuner.spec.parameters import parameters, scalars
from tuner.spec.plan import Plan


@dataclass(frozen=True, slots=True)
class Execution:
    """What the launches of a plan did; `fault` is what PTX forbids, or empty."""

    instructions: int  # of warps
    fault: str = ""


def run(
    instance: Instance,
    entries: Mapping[str, Entry],
    arrays: Mapping[str, Any],
    *,
    order: Order = "together",
    races: bool = False,
    most_seconds: float = inf,
) -> tuple[dict[str, Array], Execution]:
    """Run a config on a problem, as `emulator.run` does: (every output by name, what happened).

    `entries` is the parsed PTX of the config's source. Launches after a fault are skipped; outputs that nobody wrote
    are NaN. With `races`, those of shared memory are looked for; see `launch`. One that is still running after
    `most_seconds` of CPU time is a fault.
    """
    operator, problem, plan = instance.operator, instance.problem, instance.plan()
    tables = {table.key: table for entry in entries.values() for table in entry.tables}
    device = _Device.of(operator, problem, plan, arrays, tuple(tables.values()))
    given, tensors = scalars(operator, problem, arrays), device.located()
    begin = partial(launch, order=order, races=races, most_seconds=most_seconds)
    executed, fault = 0, ""
    for step in plan.launches:
        values = [each.value(tensors, given) for each in parameters(operator, problem, plan, step)]
        shape = Shape(step.grid, step.threads, step.smem_bytes, step.cluster)
        try:
            executed += begin(entries[step.entry], shape, device.memory, values)
        except FaultError as error:
            fault = str(error)
            break
    outputs = {argument.name: device.views[argument.name].copy() for argument in operator.written}
    return outputs, Execution(executed, fault)


@dataclass(frozen=True)
class _Device:
    """Memory with all tensors and workspaces of a plan, and a view of each: what is given has been copied."""

    memory: Global
    views: Mapping[str, Array]

    @classmethod
    def of(
        cls, operator: Operator[Any], problem: Any, plan: Plan, arrays: Mapping[str, Any], tables: tuple[Table, ...]
    ) -> "_Device":
        tensors = [each for each in operator.arguments if each.role is not Role.SCALAR]
        given = {each.name: each.laid_out(each.drawn(problem, arrays)) for each in tensors if each.given}
        free = {each.name: (each.dtype_of(problem).numpy, each.shape(problem)) for each in tensors if not each.given}
        free |= {space.name: (space.dtype.numpy, space.shape) for space in plan.workspaces}
        sizes = {name: span(array) for name, array in given.items()}
        sizes |= {name: dtype.itemsize * prod(shape) for name, (dtype, shape) in free.items()}
        writable = {each.name for each in tensors if each.written} | {space.name for space in plan.workspaces}
        sizes |= {table.key: len(table.data) for table in tables}
        writable |= {table.key for table in tables if not table.constant}
        memory = Global(sizes, frozenset(writable))
        for table in tables:
            memory.view(table.key, np.uint8, (len(table.data),))[...] = np.frombuffer(table.data, np.uint8)
        views = {name: memory.view(name, dtype, shape) for name, (dtype, shape) in free.items()}
        for name, array in given.items():
            views[name] = memory.view(name, array.dtype, array.shape, array.strides)
            views[name][...] = array
        return cls(memory, views)

    def located(self) -> dict[str, Located]:
        """Where each lies."""
        return {name: Located.of(self.memory.address(name), array) for name, array in self.views.items()}
