"""Launches of an entry over its grid, with several small blocks executed together."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tuner.backends.ptx.decode import decoder
from tuner.backends.ptx.instructions import bulk_group
from tuner.backends.ptx.instructions.wgmma import GROUP
from tuner.backends.ptx.state.machine import Interpreter
from tuner.backends.ptx.state.memory import SHARED_BASE, FaultError, Global, Parameters, Shared
from tuner.backends.ptx.state.proxy import Unfenced
from tuner.backends.ptx.state.races import Races, ordered_by_barriers
from tuner.backends.ptx.state.values import Array, Registers, UnsupportedError
from tuner.backends.ptx.state.wave import WARP, Order, Wave
from tuner.backends.ptx.text.module import Entry
from tuner.backends.ptx.text.parse import Variable
from tuner.errors import InputError
from tuner.spec.tensor_map import MappedTensor

_LANES = 2048  # lanes executed together if blocks are small
Grid = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a launch; a cluster has `cluster` blocks along x."""

    grid: Grid
    threads: int | Grid
    smem_bytes: int
    cluster: int = 1

    @property
    def block(self) -> Grid:
        return (self.threads, 1, 1) if isinstance(self.threads, int) else self.threads


# An address, a scalar of exactly the parameter's type, a tensor map, or the bytes of a struct.
Value = int | np.generic | MappedTensor | bytes


def launch(
    entry: Entry,
    shape: Shape,
    memory: Global,
    values: Sequence[Value],
    *,
    order: Order = "together",
    strict: bool = True,
    races: bool = False,
    most_seconds: float = math.inf,
    blocks: Sequence[int] | None = None,
) -> int:
    """Run a kernel on buffers of `memory`, and return the number of executed warp instructions.

    Unless `strict`, an mbarrier may count copies without a fence after its mbarrier.init, and cells of tensor memory
    may be used without tcgen05.wait. The ISA requires both; Triton omits the former within a block, CUTLASS the latter.

    With `races`, races in shared memory are detected in kernels that use only block barriers for synchronization.

    If `blocks` is given, only these blocks are run (grid index, x fastest), as whole clusters.

    Raises FaultError, with the line, for violations of the PTX ISA, deadlocks, and exceeding `most_seconds` of CPU
    time; InputError for a wrong number of values.
    """
    if entry.cluster not in (0, shape.cluster):
        raise FaultError(f"{entry.name} is launched in clusters of {shape.cluster}, but compiled for {entry.cluster}")
    memory.begin_launch()
    every = np.arange(math.prod(shape.grid)) if blocks is None else np.array(_clusters(blocks, shape.cluster))
    side = Side.of(entry, shape, len(every))
    wave = _wave(entry, shape, side, memory, _parameters(entry, values))
    wave.order, wave.strict = order, strict
    wave.races = Races(wave) if races and ordered_by_barriers(entry) else None
    with np.errstate(all="ignore"):
        program = Interpreter(entry, wave, decoder(entry), most_seconds)
        for first in range(0, len(every), side.blocks):
            numbers = np.resize(every[first : first + side.blocks], side.blocks)
            place_blocks(wave.registers.special, shape, side, numbers)
            in_grid = first + wave.block_of < len(every)
            wave.start(in_grid & (np.arange(wave.lanes) % side.lanes < side.threads))
            program.run()
            bulk_group.leave(wave)
    return program.total


def begin(entry: Entry, shape: Shape, side: "Side", memory: Global, values: Sequence[Value]) -> Wave:
    """Create the wave; the caller places and starts its blocks."""
    return _wave(entry, shape, side, memory, _parameters(entry, values))


@dataclass(frozen=True, slots=True)
class Side:
    """The number of blocks that run together, and their padding to whole warps, or to warpgroups if these compute
    together.
    """

    blocks: int
    lanes: int  # lanes per block
    threads: int  # number of these lanes that are threads

    @classmethod
    def of(cls, entry: Entry, shape: Shape, every: int) -> "Side":
        threads, together = math.prod(shape.block), GROUP if _uses(entry, "wgmma") else WARP
        lanes = -(-threads // together) * together
        blocks = max(_LANES // lanes // shape.cluster, 1) * shape.cluster
        return cls(min(every, blocks), lanes, threads)

    @classmethod
    def one(cls, entry: Entry, shape: Shape) -> "Side":
        """Return the shape for a single block, or a single cluster."""
        return replace(cls.of(entry, shape, shape.cluster), blocks=shape.cluster)


def _clusters(blocks: Sequence[int], cluster: int) -> list[int]:
    """Return all blocks of the clusters that contain the given blocks, each once."""
    firsts = sorted({block // cluster * cluster for block in blocks})
    return [first + rank for first in firsts for rank in range(cluster)]


def _uses(entry: Entry, family: str, qualifier: str = "") -> bool:
    return any(
        instruction.opcode[0] == family and (not qualifier or instruction.has(qualifier)) for instruction in entry.code
    )


def _wave(entry: Entry, shape: Shape, side: Side, memory: Global, parameters: Parameters) -> Wave:
    symbols, nbytes = _symbols(entry.shared, shape.smem_bytes)
    own, own_bytes = _symbols(entry.local, 0)

    symbol_addresses = parameters.addresses | symbols | own | {"WARP_SZ": WARP}
    symbol_addresses |= {table.name: memory.address(table.key) for table in entry.tables if memory.holds(table.key)}

    def symbol(name: str) -> int:
        if name not in symbol_addresses:
            raise UnsupportedError(f"{name}, which is neither a parameter nor a symbol")
        return symbol_addresses[name]

    lanes = side.blocks * side.lanes
    registers = Registers(entry, lanes, _special(shape, side), symbol)
    shared = Shared(nbytes, side.blocks, shape.cluster, side.lanes)
    local = Shared(own_bytes, lanes if entry.local else 1, 1, 1)
    asynchronous = _uses(entry, "wgmma") or _uses(entry, "tcgen05") or _uses(entry, "cp", "bulk")
    unfenced = Unfenced(len(shared.data)) if asynchronous else None
    memories = memory, shared, local, parameters
    warps = -(-side.threads // WARP)
    return Wave(
        side.blocks, side.lanes, warps, shape.cluster, registers, *memories, unfenced=unfenced, arch=entry.target
    )


def _parameters(entry: Entry, values: Sequence[Value]) -> Parameters:
    if len(values) != len(entry.parameters):
        raise InputError(f"{entry.name} takes {len(entry.parameters)} arguments, not {len(values)}")
    data, maps = {}, {}
    for parameter, value in zip(entry.parameters, values, strict=True):
        if isinstance(value, MappedTensor):
            data[parameter.name], maps[parameter.name] = bytes(parameter.nbytes), value
        else:
            number = np.uint64(value) if isinstance(value, int) else value
            data[parameter.name] = number if isinstance(number, bytes) else number.tobytes()
        if len(data[parameter.name]) != parameter.nbytes:
            size = len(data[parameter.name])
            raise InputError(f"{parameter.name} has {parameter.nbytes} bytes, the value {value!r} {size}")
    return Parameters(data, maps)


def _symbols(variables: tuple[Variable, ...], dynamic: int) -> tuple[dict[str, int], int]:
    """Return the address of each symbol and the total size; dynamically sized symbols come last and overlap."""
    end, addresses = SHARED_BASE, {}
    for variable in sorted(variables, key=lambda variable: variable.nbytes == 0):
        end = -(-end // variable.align) * variable.align
        addresses[variable.name] = end
        end += variable.nbytes
    return addresses, end - SHARED_BASE + dynamic


def _special(shape: Shape, side: Side) -> dict[str, Array]:
    """Return the special registers of all lanes; those for the block index are filled in for each wave."""
    thread = np.tile(np.arange(side.lanes, dtype=np.uint32), side.blocks)
    block, count = shape.block, len(thread)
    registers = {
        "%tid.x": thread % block[0],
        "%tid.y": thread // block[0] % block[1],
        "%tid.z": thread // (block[0] * block[1]),
        "%laneid": thread % WARP,
        "%warpid": thread // WARP,
        "%nwarpid": np.full(count, -(-math.prod(block) // WARP)),
        "%clock": np.zeros(count),
        "%clock64": np.zeros(count, np.uint64),
        "%smid": np.zeros(count),
        "%nsmid": np.ones(count),
        "%gridid": np.zeros(count, np.uint64),
        "%globaltimer": np.zeros(count, np.uint64),
        "%dynamic_smem_size": np.full(count, shape.smem_bytes),
    }
    one = np.uint64(1) << (thread % WARP).astype(np.uint64)
    masks = {"eq": one, "lt": one - 1, "le": 2 * one - 1, "ge": 2**32 - one, "gt": 2**32 - 2 * one}
    registers |= {f"%lanemask_{name}": mask for name, mask in masks.items()}
    names = ("x", "y", "z")
    registers |= {f"%ntid.{name}": np.full(count, n) for name, n in zip(names, block, strict=True)}
    registers |= {f"%nctaid.{name}": np.full(count, n) for name, n in zip(names, shape.grid, strict=True)}
    registers |= {f"%ctaid.{name}": np.zeros(count) for name in names}
    registers |= {f"%cluster_ctaid.{name}": np.zeros(count) for name in names}
    registers |= {
        f"%cluster_nctaid.{name}": np.full(count, n) for name, n in zip(names, (shape.cluster, 1, 1), strict=True)
    }
    registers |= {"%cluster_nctarank": np.full(count, shape.cluster), "%cluster_ctarank": np.zeros(count)}
    wide = ("%clock64", "%gridid", "%globaltimer")
    return {name: register if name in wide else register.astype(np.uint32) for name, register in registers.items()}


def place_blocks(special: Mapping[str, Array], shape: Shape, side: Side, numbers: Array) -> None:
    """Assign the blocks with these indices to the lanes."""
    number = np.repeat(numbers, side.lanes)
    x, y, _ = shape.grid
    special["%ctaid.x"][...] = number % x
    special["%ctaid.y"][...] = number // x % y
    special["%ctaid.z"][...] = number // (x * y)
    special["%cluster_ctarank"][...] = special["%cluster_ctaid.x"][...] = number % x % shape.cluster
