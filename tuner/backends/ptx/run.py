"""Runs a config's plan on the PTX interpreter: every launch, on the PTX that the compiler generates for an arch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import numpy as np

from tuner.backends.ptx.launch import Shape, launch
from tuner.backends.ptx.state.memory import FaultError, Global
from tuner.backends.ptx.state.values import Array
from tuner.backends.ptx.state.wave import Order
from tuner.backends.ptx.text.module import Entry
from tuner.backends.ptx.text.tables import ModuleTable
from tuner.errors import InputError
from tuner.spec.instance import Instance
from tuner.spec.layout import Layout, Region, workspaces


@dataclass(frozen=True, slots=True)
class Execution:
    """The result of a plan's launches; `fault` describes a violation of the PTX ISA, or is empty."""

    instructions: int  # executed warp instructions
    fault: str = ""


def run(
    instance: Instance,
    entries: Mapping[str, Entry],
    arrays: Mapping[str, Any],
    *,
    order: Order = "together",
    races: bool = False,
    most_seconds: float = inf,
    sampled: bool = False,
) -> tuple[dict[str, Array], Execution]:
    """Run a config on a problem like `emulator.run`, and return every output by name and an `Execution`.

    `entries` is the parsed PTX of the config's source. Launches after a fault are skipped; outputs that no kernel wrote
    are NaN. With `races`, races in shared memory are detected; see `launch`. Exceeding `most_seconds` of CPU time is a
    fault. If `sampled`, only the blocks in the sample of a launch are run, if it has one, and unwritten output elements
    are masked.
    """
    plan, layout = instance.plan(), Layout.of(instance.operator, instance.problem, arrays)
    tables = {table.key: table for entry in entries.values() for table in entry.tables}
    memory, views = _placed((*layout.tensors, *workspaces(plan)), tuple(tables.values()))
    _fill_symbols(memory, instance, tables.values(), views)
    begin = partial(launch, order=order, races=races, most_seconds=most_seconds)
    executed, fault = 0, ""
    for step, values in layout.launches(plan, {name: memory.address(name) for name in views}):
        shape = Shape(step.grid, step.block, step.smem_bytes, step.cluster)
        try:
            executed += begin(entries[step.entry], shape, memory, values, blocks=step.sample if sampled else None)
        except FaultError as error:
            fault = str(error)
            break
    outputs = {argument.name: views[argument.name].copy() for argument in instance.operator.written}
    if sampled and any(step.sample is not None for step in plan.launches):
        outputs = {
            name: np.ma.masked_array(output, ~_elements(memory, name, output)) for name, output in outputs.items()
        }
    return outputs, Execution(executed, fault)


def _elements(memory: Global, name: str, output: Array) -> Array:
    """Return which elements of a dense output were written by a kernel."""
    return np.asarray(memory.written(name).reshape(*output.shape, output.itemsize).all(-1))


def _fill_symbols(
    memory: Global, instance: Instance, tables: Iterable[ModuleTable], views: Mapping[str, Array]
) -> None:
    """Fill `__constant__` symbols from arguments; symbols that no kernel reads do not exist."""
    symbols = {table.name: table for table in tables if table.constant}
    for argument in instance.operator.constants:
        data = np.ascontiguousarray(views[argument.name]).reshape(-1).view(np.uint8)
        if (table := symbols.get(argument.name)) is None:
            continue
        if len(data) > len(table.data):
            raise InputError(f"__constant__ {argument.name} has {len(table.data)} bytes, the argument {len(data)}")
        memory.view(table.key, np.uint8, (len(data),))[...] = data


def _placed(regions: tuple[Region, ...], tables: tuple[ModuleTable, ...]) -> tuple[Global, dict[str, Array]]:
    """Return memory for all regions and tables, and a view of each region with its initial contents."""
    sizes = {region.name: region.nbytes for region in regions} | {table.key: len(table.data) for table in tables}
    writable = {region.name for region in regions if region.writable} | {
        table.key for table in tables if not table.constant
    }
    memory = Global(sizes, frozenset(writable))
    for table in tables:
        memory.view(table.key, np.uint8, (len(table.data),))[...] = np.frombuffer(table.data, np.uint8)
    views = {region.name: region.view(memory.view(region.name, np.uint8, (region.nbytes,))) for region in regions}
    for region in regions:
        if region.initial is not None:
            views[region.name][...] = region.initial
    return memory, views
