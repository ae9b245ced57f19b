"""Counts of a config's launches, from blocks executed by the PTX interpreter; cached by PTX and problem."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from hashlib import sha256
from io import BytesIO
from typing import Any

import numpy as np

from tuner.arch import GPU
from tuner.backends import ptx
from tuner.backends.ptx import FaultError
from tuner.backends.ptx.counting import Budget, Counts, LoopCount, Sketch, count
from tuner.base.cache import Cache, CacheEntry, key_of
from tuner.compiler.cubin import Cubin
from tuner.compiler.usage import occupancy
from tuner.errors import UsageError
from tuner.spec.argument import DeviceTensor, Role, dense_strides
from tuner.spec.instance import Instance
from tuner.spec.layout import workspaces
from tuner.spec.operator import Operator
from tuner.spec.parameters import parameters, scalars
from tuner.spec.plan import Launch
from tuner.spec.problem import canonical

_VERSION = "counts/4"
_BUDGET = Budget(seconds=4.0)  # CPU time per block; most take a tenth of a second
_DRAWN = 1 << 20  # bytes drawn per tensor, for kernels whose addresses or branches depend on values


@dataclass(frozen=True, slots=True)
class NotCounted:
    """Why a launch could not be counted."""

    reason: str


def block_counts(instance: Instance, cubin: Cubin, gpu: GPU) -> tuple[Counts | NotCounted, ...]:
    """Return the counts of a block of each launch, in the plan's order."""
    launches = instance.plan().launches
    if not cubin.ptx:
        return (NotCounted("the cubin was kept without its PTX"),) * len(launches)
    try:
        entries = ptx.parse(cubin.ptx)
        return tuple(_launch_counts(instance, launch, entries[launch.entry], cubin, gpu) for launch in launches)
    except UsageError as error:
        return (NotCounted(str(error)),) * len(launches)


def _launch_counts(instance: Instance, launch: Launch, entry: ptx.Entry, cubin: Cubin, gpu: GPU) -> Counts | NotCounted:
    l1_bytes = _l1_bytes(launch, cubin, gpu)
    inputs = sha256((instance.operator.folder / "operator.py").read_bytes()).hexdigest()  # branches may depend on them
    parts = repr(launch), canonical(instance.problem), instance.operator.name, str(l1_bytes), inputs
    key, cache = key_of(_VERSION, sha256(cubin.ptx.encode()).hexdigest(), *parts), Cache.of("counts")
    if cached := cache.get(key):
        return _read(cached, entry)
    try:
        counts = _counted(instance, launch, entry, l1_bytes)
    except (FaultError, UsageError) as error:
        return NotCounted(str(error))
    if not counts.unsure:  # it may be the load of this machine that cut counting short
        cache.put(key, _entry(counts))
    return counts


def _counted(instance: Instance, launch: Launch, entry: ptx.Entry, l1_bytes: int) -> Counts:
    operator, problem, plan = instance.operator, instance.problem, instance.plan()
    shapes = {x.name: x.shape(problem) for x in operator.arguments if x.role is not Role.SCALAR}
    spaces = workspaces(plan)
    sizes = {name: operator.argument(name).nbytes(problem) for name in shapes}
    sizes |= {space.name: space.nbytes for space in spaces} | {table.key: len(table.data) for table in entry.tables}

    def draw() -> Mapping[str, Any]:
        tensors = _drawn(operator.inputs, operator.input_kinds[0], problem)
        constants = {argument.name for argument in operator.constants}
        tables = {table.key: np.frombuffer(table.data, np.uint8) for table in entry.tables}
        filled = {table.key: tensors[table.name] for table in entry.tables if table.name in constants}
        return {name: data for name, data in tensors.items() if name in sizes} | tables | filled

    memory = Sketch(sizes, draw)
    located = {name: DeviceTensor(memory.address(name), shape, dense_strides(shape)) for name, shape in shapes.items()}
    located |= {space.name: space.located(memory.address(space.name)) for space in spaces}
    scalar_values = scalars(operator, problem, _free_scalars(operator, problem))
    values = [x.value(located, scalar_values) for x in parameters(operator, problem, plan, launch)]
    shape = ptx.Shape(launch.grid, launch.block, launch.smem_bytes, launch.cluster)
    return count(entry, shape, memory, values, l1_bytes, _BUDGET)


def _free_scalars(operator: Operator[Any], problem: Any) -> Mapping[str, Any]:
    """Drawn values of scalars that only a call determines."""
    if not any(argument.required(problem) for argument in operator.arguments):
        return {}
    return operator.inputs(problem, np.random.default_rng(0), operator.input_kinds[0])


@lru_cache(maxsize=2)
def _drawn(inputs: Callable[..., Mapping[str, Any]], kind: str, problem: Any) -> Mapping[str, Any]:
    """The first bytes of the inputs that an operator draws; drawing takes seconds for large tensors."""
    tensors = {name: np.asarray(value) for name, value in inputs(problem, np.random.default_rng(0), kind).items()}
    starts = {name: np.ascontiguousarray(x.reshape(-1)[:_DRAWN]) for name, x in tensors.items() if x.ndim}
    return {name: np.frombuffer(start.tobytes(), np.uint8) for name, start in starts.items()}


def _l1_bytes(launch: Launch, cubin: Cubin, gpu: GPU) -> int:
    """A block's share of the L1 capacity that shared memory leaves."""
    usage = cubin.entries[launch.entry]
    resident = max(1, occupancy(usage, launch, gpu.arch).ctas)
    shared = launch.smem_bytes + usage.static_shared + (gpu.arch.smem_reserved if launch.smem_bytes else 0)
    return max(gpu.arch.l1_bytes // resident - shared, 1024)


def _entry(counts: Counts) -> CacheEntry:
    file = BytesIO()
    np.savez_compressed(file, tally=counts.tally)
    about = {"loops": [asdict(loop) for loop in counts.loops], "warps": counts.warps}
    return CacheEntry(
        file.getvalue(), {"about": json.dumps({**about, "longest": counts.longest, "unsure": counts.unsure})}
    )


def _read(cached: CacheEntry, entry: ptx.Entry) -> Counts:
    about = json.loads(str(cached.metadata["about"]))
    loops = tuple(LoopCount(**fields) for fields in about["loops"])
    tally = np.load(BytesIO(cached.data))["tally"]
    return Counts(entry, about["warps"], tally, loops, about["longest"], about["unsure"])
