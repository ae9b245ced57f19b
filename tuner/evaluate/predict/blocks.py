"""A config's launches, each by blocks of it that are executed on the PTX machine: counts, kept by PTX and problem."""

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
from tuner.backends.ptx.counting import Counts, LoopCount, Sketch, count
from tuner.base.cache import Cache, Entry, key_of
from tuner.compiler import nvrtc
from tuner.compiler.cubin import Cubin
from tuner.compiler.render import render
from tuner.compiler.usage import occupancy
from tuner.errors import UsageError
from tuner.spec.argument import DeviceTensor, Role, dense_strides
from tuner.spec.instance import Instance
from tuner.spec.layout import workspaces
from tuner.spec.operator import Operator
from tuner.spec.parameters import parameters, scalars
from tuner.spec.plan import Launch
from tuner.spec.problem import canonical

_VERSION = "counts/2"
_DRAWN = 1 << 20  # bytes of a tensor that are drawn, where what it holds decides anything


@dataclass(frozen=True, slots=True)
class Uncounted:
    """Why a launch could not be counted."""

    reason: str


def counts_of(instance: Instance, cubin: Cubin, gpu: GPU) -> tuple[Counts | Uncounted, ...]:
    """What a block of each launch does, in the plan's order."""
    text = cubin.ptx or nvrtc.ptx(render(instance), cubin.options, Cache.of("ptx"))
    if not isinstance(text, str):
        return tuple(Uncounted(text.reason) for _ in instance.plan().launches)
    try:
        entries = ptx.parse(text)
    except UsageError as error:
        return tuple(Uncounted(str(error)) for _ in instance.plan().launches)
    digest = sha256(text.encode()).hexdigest()
    return tuple(_of_launch(instance, launch, entries, cubin, gpu, digest) for launch in instance.plan().launches)


def _of_launch(
    instance: Instance, launch: Launch, entries: Mapping[str, ptx.Entry], cubin: Cubin, gpu: GPU, digest: str
) -> Counts | Uncounted:
    entry, l1_bytes = entries[launch.entry], _l1_bytes(launch, cubin, gpu)
    drawn = sha256((instance.operator.folder / "operator.py").read_bytes()).hexdigest()  # whose inputs may decide
    about = repr(launch), canonical(instance.problem), instance.operator.name, str(l1_bytes), drawn
    key, cache = key_of(_VERSION, digest, *about), Cache.of("counts")
    if known := cache.get(key):
        return _read(known, entry)
    try:
        found = _counted(instance, launch, entry, l1_bytes)
    except (FaultError, UsageError) as error:
        return Uncounted(str(error))
    cache.put(key, _entry(found))
    return found


def _counted(instance: Instance, launch: Launch, entry: ptx.Entry, l1_bytes: int) -> Counts:
    operator, problem, plan = instance.operator, instance.problem, instance.plan()
    tensors = {each.name: each for each in operator.arguments if each.role is not Role.SCALAR}
    constants = {each.name for each in operator.constants}
    sizes = {name: each.nbytes(problem) for name, each in tensors.items()}
    sizes |= {each.name: each.nbytes for each in workspaces(plan)} | {each.key: len(each.data) for each in entry.tables}

    def drawn() -> Mapping[str, Any]:
        held = _drawn(operator.inputs, operator.input_kinds[0], problem)
        tables = {each.key: np.frombuffer(each.data, np.uint8) for each in entry.tables}
        filled = {each.key: held[each.name] for each in entry.tables if each.name in constants}
        return {name: each for name, each in held.items() if name in sizes} | tables | filled

    memory = Sketch(sizes, drawn)
    located = {name: DeviceTensor(memory.address(name), each.shape(problem)) for name, each in tensors.items()}
    located = {
        name: DeviceTensor(each.address, each.shape, dense_strides(each.shape)) for name, each in located.items()
    }
    located |= {each.name: each.located(memory.address(each.name)) for each in workspaces(plan)}
    taken = parameters(operator, problem, plan, launch)
    given = scalars(operator, problem, _free(operator, problem))
    values = [each.value(located, given) for each in taken]
    shape = ptx.Shape(launch.grid, launch.block, launch.smem_bytes, launch.cluster)
    return count(entry, shape, memory, values, l1_bytes)


def _free(operator: Operator[Any], problem: Any) -> Mapping[str, Any]:
    """The scalars that only a call can say, as they are drawn."""
    if not any(each.required(problem) for each in operator.arguments):
        return {}
    return operator.inputs(problem, np.random.default_rng(0), operator.input_kinds[0])


@lru_cache(maxsize=2)
def _drawn(inputs: Callable[..., Mapping[str, Any]], kind: str, problem: Any) -> Mapping[str, Any]:
    """The first bytes of what an operator draws, which takes seconds for large tensors."""
    found = inputs(problem, np.random.default_rng(0), kind)
    tensors = {name: np.asarray(each) for name, each in found.items() if np.ndim(each)}
    return {
        name: np.frombuffer(np.ascontiguousarray(each.reshape(-1)[:_DRAWN]).tobytes(), np.uint8)
        for name, each in tensors.items()
    }


def _l1_bytes(launch: Launch, cubin: Cubin, gpu: GPU) -> int:
    """A block's share of what its SM's shared memory leaves of L1."""
    usage = cubin.entries[launch.entry]
    resident = max(1, occupancy(usage, launch, gpu.arch).ctas)
    shared = launch.smem_bytes + usage.static_shared + (gpu.arch.smem_reserved if launch.smem_bytes else 0)
    return max(gpu.arch.l1_bytes // resident - shared, 1024)


def _entry(counts: Counts) -> Entry:
    file = BytesIO()
    np.savez_compressed(file, tally=counts.tally)
    about = {"loops": [asdict(each) for each in counts.loops], "warps": counts.warps}
    return Entry(file.getvalue(), {"about": json.dumps({**about, "longest": counts.longest, "unsure": counts.unsure})})


def _read(known: Entry, entry: ptx.Entry) -> Counts:
    about = json.loads(str(known.metadata["about"]))
    loops = tuple(LoopCount(**each) for each in about["loops"])
    tally = np.load(BytesIO(known.data))["tally"]
    return Counts(entry, about["warps"], tally, loops, about["longest"], about["unsure"])
