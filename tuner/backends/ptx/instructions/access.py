"""Loads, stores and atomics, by state space, and address conversions."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from tuner.backends.ptx.instructions.halves import TYPES as HALVED
from tuner.backends.ptx.instructions.halves import added as halves_added
from tuner.backends.ptx.state.machine import Decoder, Step
from tuner.backends.ptx.state.memory import LOCAL_WINDOW, PARAMETER_WINDOW, RANK, SHARED_BASE, SHARED_WINDOW, FaultError
from tuner.backends.ptx.state.values import DTYPES, JOINED, Array, Mask, UnsupportedError, assign
from tuner.backends.ptx.state.wave import Wave
from tuner.backends.ptx.text.parse import BYTES, Address, Instruction

Locate = Callable[[Array, Any, int, bool], tuple[Mapping[int, Array], Array]]  # → (memory views by width, offsets)


def space_of(instruction: Instruction) -> str:
    """Return global, shared, param or, if the opcode names none, generic."""
    spaces = ("global", "shared::cluster", "shared::cta", "shared", "param", "local", "const")
    space = next((space for space in spaces if space in instruction.opcode), "generic")
    return space.partition("::")[0]


def addresses(wave: Wave, address: Address, space: str) -> Callable[[Any], Array]:
    """Return the address of each lane; arithmetic wraps at the width of the register."""
    kind = "u32" if space == "shared" else "u64"
    base = wave.registers.read(address.base, kind)
    step = np.array(address.offset).astype(DTYPES["s" + kind[1:]]).view(base.dtype)
    if base.ndim == 0:
        fixed = np.full(wave.lanes, base + step)
        return lambda lanes: fixed[lanes]
    return lambda lanes: base[lanes] + step


def locator(wave: Wave, space: str) -> Locate:
    def in_global(at: Array, _: Any, nbytes: int, write: bool) -> tuple[Mapping[int, Array], Array]:
        return wave.memory.views, wave.memory.locate(at, nbytes, write)

    def in_shared(at: Array, lanes: Any, nbytes: int, write: bool) -> tuple[Mapping[int, Array], Array]:
        offsets = wave.shared.locate(at, lanes, nbytes)
        if wave.races:
            (wave.races.writes if write else wave.races.reads)(offsets, lanes, nbytes)
        return wave.shared.views, offsets

    def in_local(at: Array, lanes: Any, nbytes: int, _: bool) -> tuple[Mapping[int, Array], Array]:
        return wave.local.views, wave.local.locate(at, lanes, nbytes)

    def generic(at: Array, lanes: Any, nbytes: int, write: bool) -> tuple[Mapping[int, Array], Array]:
        for window, within in ((SHARED_WINDOW, in_shared), (LOCAL_WINDOW, in_local)):
            there = (at >= window) & (at < window + (1 << 32))
            if there.all():
                return within(at - np.uint64(window), lanes, nbytes, write)
            if there.any():
                raise FaultError("unsupported: one warp access to two state spaces")
        return in_global(at, lanes, nbytes, write)

    locators: dict[str, Locate] = {
        "global": in_global,
        "const": in_global,
        "shared": in_shared,
        "local": in_local,
        "generic": generic,
    }
    if space not in locators:
        raise UnsupportedError(f"accesses to .{space}")
    return locators[space]


def _load(wave: Wave, instruction: Instruction, _: int) -> Step:
    space, kind, targets = space_of(instruction), instruction.type, instruction.words(0)
    if space == "param":
        return _load_parameter(wave, instruction)
    size, locate = BYTES[kind], locator(wave, space)
    to = [wave.registers.write(target, kind) for target in targets]
    at = addresses(wave, instruction.address(1), space)
    dtype, width = DTYPES[kind], size * len(targets)
    constant = instruction.has("nc")

    def loaded(mask: Mask) -> None:
        lanes = wave.index(mask)
        memory, offsets = locate(at(lanes), lanes, width, False)
        if constant:
            wave.memory.read_constant(offsets, width)
        indices, cells = offsets // size, memory[size]
        for i, register in enumerate(to):
            register[lanes] = cells[indices + i].view(dtype)

    return loaded


def _load_parameter(wave: Wave, instruction: Instruction) -> Step:
    """Load a parameter by its name, or by an address that is the same for all lanes."""
    kind, address, parameters = instruction.type, instruction.address(1), wave.parameters
    dtype, count = DTYPES[kind], len(instruction.words(0))
    to = [wave.registers.write(word, kind) for word in instruction.words(0)]
    at = addresses(wave, address, "param")

    def loaded(mask: Mask) -> None:
        indices = at(wave.index(mask))
        if (indices != indices[0]).any():
            raise FaultError("unsupported: lanes read parameters at different addresses")
        values = np.frombuffer(parameters.read(int(indices[0]), dtype.itemsize * count), dtype)
        for target, value in zip(to, values, strict=True):
            assign(target, value, mask)

    return loaded


def _store(wave: Wave, instruction: Instruction, _: int) -> Step:
    space, kind, sources = space_of(instruction), instruction.type, instruction.words(1)
    size, locate = BYTES[kind], locator(wave, space)
    values = [np.broadcast_to(wave.registers.read(source, f"b{8 * size}"), wave.lanes) for source in sources]
    to = addresses(wave, instruction.address(0), space)
    width = size * len(sources)

    def stored(mask: Mask) -> None:
        lanes = wave.index(mask)
        memory, offsets = locate(to(lanes), lanes, width, True)
        indices, cells = offsets // size, memory[size]
        for i, value in enumerate(values):
            cells[indices + i] = value[lanes]
        if wave.unfenced and memory is wave.shared.views:
            wave.unfenced.wrote(offsets, np.arange(wave.lanes)[lanes])

    return stored


_ATOMS: Mapping[str, Callable[[Any, Any], Any]] = {
    **JOINED,
    "exch": lambda _, value: value,
    "inc": lambda old, value: old.dtype.type(0) if old >= value else old + old.dtype.type(1),
    "dec": lambda old, value: value if old == 0 or old > value else old - old.dtype.type(1),
}


def _atomic(wave: Wave, instruction: Instruction, _: int) -> Step:
    """Execute atom and red: one lane at a time, and element by element for vectors."""
    returns, space, kind = instruction.opcode[0] == "atom", space_of(instruction), instruction.type
    name = next((operation for operation in (*_ATOMS, "cas") if instruction.has(operation)), "")
    join = _ATOMS.get(name)
    if kind in HALVED:
        join = partial(halves_added, kind) if name == "add" else None
        kind = "b32" if kind.endswith("x2") else "b16"
    if join is None and name != "cas":
        raise UnsupportedError(instruction.name)
    first, size, locate = 1 if returns else 0, BYTES[kind], locator(wave, space)
    at, count = addresses(wave, instruction.address(first), space), len(instruction.words(-1))
    vectors = [instruction.words(i) for i in range(first + 1, len(instruction.operands))]
    inputs = [[np.broadcast_to(wave.registers.read(name, kind), wave.lanes) for name in names] for names in vectors]
    names = instruction.words(0) if returns else ("_",) * count
    to = [wave.registers.write(name, kind) for name in names]

    def updated(mask: Mask) -> None:
        lanes = wave.index(mask)
        memory, offsets = locate(at(lanes), lanes, size * count, True)
        cells = memory[size].view(DTYPES[kind])
        for lane, index in zip(np.arange(wave.lanes)[lanes], offsets // size, strict=True):
            for i, target in enumerate(to):
                old, operands = cells[index + i], [input[i][lane] for input in inputs]
                new = (operands[1] if old == operands[0] else old) if join is None else join(old, operands[0])
                cells[index + i], target[lane] = new, old

    return updated


_WINDOWS = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": PARAMETER_WINDOW}


def _address(wave: Wave, instruction: Instruction, _: int) -> Step:
    """Execute cvta: generic addresses of global memory are global addresses; the other state spaces have windows."""
    target = wave.registers.write(instruction.word(0), instruction.type)
    value = wave.registers.read(instruction.word(1), instruction.type)
    window = np.uint64(_WINDOWS.get(space_of(instruction), 0))
    back = instruction.has("to")
    return lambda mask: assign(target, value - window if back else value + window, mask)


def _map_rank(wave: Wave, instruction: Instruction, _: int) -> Step:
    """Execute mapa: the same shared address in another block of the cluster."""
    if not instruction.has("shared::cluster"):
        raise UnsupportedError(instruction.name)
    target = wave.registers.write(instruction.word(0), "u32")
    address, rank = (wave.registers.read(instruction.word(i), "u32") for i in (1, 2))

    def mapped(mask: Mask) -> None:
        own = address & np.uint32((1 << RANK) - 1)
        assign(target, own | (rank + np.uint32(1)) << np.uint32(RANK), mask)

    return mapped


assert SHARED_BASE + (227 << 10) < 1 << 18, "a wgmma descriptor holds 18 address bits"

DECODERS: Mapping[str, Decoder] = {
    "ld": _load,
    "ldu": _load,
    "st": _store,
    "atom": _atomic,
    "red": _atomic,
    "cvta": _address,
    "mapa": _map_rank,
}
