"""The state of an SM in a replay: blocks, warpgroups, contexts of lanes that run together, barriers, and the trace."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tuner.compiler.sass.cta.registers import LANES, WARP, Mask, Registers, Words

Tile = tuple[str, tuple[int, ...]]  # a tensor, and the coordinates of a box
Missing = Mapping[
    tuple[int, str], float
]  # by turn of an SM and tensor: the fraction of the loaded bytes that comes from DRAM
COUNTERS = 6  # scoreboards of a warp


@dataclass(slots=True, eq=False)
class Barrier:
    """An mbarrier."""

    count: int
    pending: int  # arrivals that its phase still needs
    phase: int = 0
    expected: int = 0  # bytes of copies that its phase still needs
    waiters: list[tuple["Context", int]] = field(default_factory=list)  # with the parity that each waits for


@dataclass(slots=True, eq=False)
class Context:
    """Lanes of one warpgroup that execute the same instructions."""

    group: "Group"
    mask: Mask
    position: int
    ready: float  # when its stall count lets it issue
    counters: list[float] = field(default_factory=lambda: [0.0] * COUNTERS)  # when each scoreboard becomes zero
    time: float = 0.0  # earliest time of its next instruction, without pipes
    cause: str = "fixed latencies"  # cause of its wait until then
    groups: list[float] = field(default_factory=list)  # when groups of HGMMA in flight have their results
    open_group: float = 0.0  # of HGMMA that are not in a group yet
    converge: dict[str, Mask] = field(default_factory=dict)  # lanes that BSYNC waits for, by barrier register
    suspended: list["Context"] = field(default_factory=list)  # other lanes of its warps
    whole: bool = True  # all lanes of the warpgroup

    def split(self, mask: Mask) -> "Context":
        """Create a separate context for some lanes."""
        other = Context(self.group, mask, self.position, self.ready, list(self.counters), groups=list(self.groups))
        other.converge, other.whole = dict(self.converge), False
        self.mask, self.whole = self.mask & ~mask, False
        return other

    def merge(self, others: list["Context"], time: float) -> None:
        """Merge the lanes of contexts at the same instruction."""
        for other in others:
            self.counters = [max(pair) for pair in zip(self.counters, other.counters, strict=True)]
            self.ready = max(self.ready, other.ready)
            self.groups = max(self.groups, other.groups, key=len)
            self.mask = self.mask | other.mask
        self.whole, self.ready = bool(self.mask.all()), max(self.ready, time + 1)


@dataclass(slots=True, eq=False)
class Group:
    """A warpgroup of a CTA, or the remaining warps of the last one."""

    cta: "Cta"
    registers: Registers
    alive: Mask
    local: dict[int, Words | None] = field(default_factory=dict)  # words of local memory by address
    waiting: dict[int, list[Context]] = field(
        default_factory=dict
    )  # contexts that wait for other lanes, by position in the code


@dataclass(slots=True, eq=False)
class Cta:
    """One block."""

    number: int
    barriers: dict[int, Barrier] = field(default_factory=dict)  # by offset in shared memory
    shared: dict[int, int] = field(default_factory=dict)  # known words of shared memory
    named: dict[int, tuple[int, list[Context]]] = field(default_factory=dict)  # lanes that arrived, waiting contexts
    groups: list[Group] = field(default_factory=list)
    tickets: int = 0


@dataclass(slots=True)
class Trace:
    """The trace of one SM."""

    end: float = 0.0  # cycles
    blocks: int = 0
    issued: int = 0  # instructions; those of a warpgroup's warps count once
    products: float = 0.0  # cycles of the tensor cores
    tickets: list[float] = field(default_factory=list)  # start times of blocks
    loaded: dict[str, float] = field(default_factory=dict)  # bytes by tensor
    loads: list[tuple[int, Tile, int]] = field(default_factory=list)  # turn, tile and bytes of each load
    loaders: set[int] = field(default_factory=set)  # warpgroups that load
    stalls: dict[tuple[int, str], float] = field(default_factory=dict)  # cycles by position in the code and cause


def whole_warps(mask: Mask) -> Mask:
    """Return all lanes of the warps that have any."""
    return np.repeat(mask.reshape(-1, WARP).any(1), WARP)


def full(value: int) -> Words:
    """Return the same 32 bits for all lanes."""
    return np.full(LANES, value & 0xFFFFFFFF, np.uint32)
