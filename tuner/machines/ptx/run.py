"""A config's plan on the machine: every launch of it, on the PTX that the compiler makes for an arch."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import numpy as np

from tuner.machines.ptx.launch import Shape, launch
from tuner.machines.ptx.state.memory import FaultError, Global
from tuner.machines.ptx.state.values import Array
from tuner.machines.ptx.state.wave import Order
from tuner.machines.ptx.text.module import Entry
from tuner.machines.ptx.text.tables import Table
from tuner.spec.instance import Instance
from tuner.spec.layout import Layout, Region, workspaces


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
    plan, layout = instance.plan(), Layout.of(instance.operator, instance.problem, arrays)
    tables = {table.key: table for entry in entries.values() for table in entry.tables}
    memory, views = _placed((*layout.tensors, *workspaces(plan)), tuple(tables.values()))
    begin = partial(launch, order=order, races=races, most_seconds=most_seconds)
    executed, fault = 0, ""
    for step, values in layout.passed(plan, {name: memory.address(name) for name in views}):
        shape = Shape(step.grid, step.threads, step.smem_bytes, step.cluster)
        try:
            executed += begin(entries[step.entry], shape, memory, values)
        except FaultError as error:
            fault = str(error)
            break
    outputs = {argument.name: views[argument.name].copy() for argument in instance.operator.written}
    return outputs, Execution(executed, fault)


def _placed(regions: tuple[Region, ...], tables: tuple[Table, ...]) -> tuple[Global, dict[str, Array]]:
    """Memory with all of them, and a view of each region: what is given has been copied."""
    sizes = {each.name: each.nbytes for each in regions} | {table.key: len(table.data) for table in tables}
    writable = {each.name for each in regions if each.writable} | {each.key for each in tables if not each.constant}
    memory = Global(sizes, frozenset(writable))
    for table in tables:
        memory.view(table.key, np.uint8, (len(table.data),))[...] = np.frombuffer(table.data, np.uint8)
    views = {each.name: each.view(memory.view(each.name, np.uint8, (each.nbytes,))) for each in regions}
    for each in regions:
        if each.given is not None:
            views[each.name][...] = each.given
    return memory, views
