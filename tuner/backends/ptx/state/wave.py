"""Blocks that run together: which lanes run, wait or have exited, and what releases them."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import numpy as np

from tuner.backends.ptx.state.memory import FaultError, Global, Parameters, Shared
from tuner.backends.ptx.state.proxy import Unfenced
from tuner.backends.ptx.state.values import Array, Mask, Registers

if TYPE_CHECKING:
    from tuner.backends.ptx.state.races import Races

K = TypeVar("K")

# Which lanes execute next: all warps at the lowest instruction; or one warp until it waits. The first runnable warp is
# combined with copies that land at once; the last one with copies of which the newest lands first. Operations that no
# barrier orders thus run in three orders.
Order = Literal["together", "first", "last"]
ORDERS: tuple[Order, ...] = get_args(Order)

RUNS, LEFT, MEETS, BARRIER, PHASE, CLUSTER = range(6)  # states of a lane: running, exited, or what it waits for
_WHY = {
    MEETS: "for the other lanes of a collective",
    BARRIER: "at a block's barrier",
    PHASE: "for an mbarrier",
    CLUSTER: "for the cluster",
}
WARP = 32
_WAKES = 5_000  # rounds in which every running lane only polls


@dataclass
class Wave:
    """The shared state of all steps. Lanes are numbered across blocks; a block is padded to whole warps."""

    blocks: int
    lanes_of_block: int  # padded to whole warps, or to whole warpgroups if these compute together
    warps: int  # warps per block
    cluster: int
    registers: Registers
    memory: Global
    shared: Shared
    local: Shared
    parameters: Parameters
    pc: Array = field(init=False)
    state: Array = field(init=False)
    slept: Array = field(init=False)
    key: Array = field(init=False)  # identifies the object that a lane waits for
    late: deque[Callable[[], None]] = field(default_factory=deque)  # copies that only an mbarrier's phase can wait for
    parts: dict[Any, Any] = field(default_factory=dict)  # see `part`
    order: Order = "together"
    strict: bool = True  # whether to enforce ISA rules that other compilers ignore; see `launch`
    unfenced: Unfenced | None = None  # set if the entry uses wgmma or bulk copies
    races: "Races | None" = None  # set if races are checked
    alone: bool = False  # no other lane can run
    arch: str = ""  # arch whose tensor-core rounding is used
    stuck: int = -1  # instruction index of the first deadlocked lane

    def __post_init__(self) -> None:
        self.lanes = self.blocks * self.lanes_of_block
        self.pc = np.zeros(self.lanes, np.int64)
        self.state = np.zeros(self.lanes, np.int8)
        self.slept = np.zeros(self.lanes, bool)
        self.key = np.zeros(self.lanes, np.int64)
        self.warp_of = np.arange(self.lanes) // WARP
        self.block_of = np.arange(self.lanes) // self.lanes_of_block
        self._whole: tuple[Mask, int] = None, 0  # the lanes that were last complete, and their group size
        self._wakes = 0

    def start(self, present: Array) -> None:
        """Start the lanes of `present`; the others never run."""
        self.pc[...], self.slept[...], self._wakes, self.stuck = 0, False, 0, -1
        self.state[...] = np.where(present, RUNS, LEFT)
        self.late.clear()
        self.parts.clear()
        self.shared.clear()
        self.local.clear()
        if self.unfenced:
            self.unfenced.clear()
        if self.races:
            self.races.begin()

    def part(self, kind: "Callable[[Wave], K]") -> K:
        """Return the state of an instruction family: `kind(wave)`, created on first use."""
        if kind not in self.parts:
            self.parts[kind] = kind(self)
        part: K = self.parts[kind]
        return part

    def next(self) -> tuple[int, Mask] | None:
        """Return (instruction, its lanes) for the lowest instruction of any runnable lane; None if all have exited.

        If warps run one at a time, the first or last runnable warp is selected.
        """
        while True:
            awake = (self.state == RUNS) & ~self.slept
            if awake.any():
                one_by_one = self.order != "together"
                if one_by_one:
                    awake &= self.warp_of == self.warp_of[awake][0 if self.order == "first" else -1]
                lowest = int(np.where(awake, self.pc, np.iinfo(np.int64).max).min())
                mask = awake & (self.pc == lowest)
                others = awake if one_by_one else self.state == RUNS
                self.alone = int(mask.sum()) == int(others.sum())
                return lowest, None if mask.all() else mask
            if not self._progress():
                return None

    def land(self, copy: Callable[[], None]) -> None:
        """Issue a copy that only an mbarrier's phase waits for; it lands at once, or as late as the order permits."""
        if self.order == "first":
            copy()
        else:
            self.late.append(copy)

    def _progress(self) -> bool:
        """Make progress if no lane runs: land one copy, else wake the lanes that yielded. Return whether that
        helped.
        """
        if self.late:
            (self.late.pop if self.order == "last" else self.late.popleft)()()
        elif self.slept.any():
            self.slept[...] = False
            self._wakes += 1
            if self._wakes > _WAKES:
                raise FaultError("livelock: all lanes poll for something that never happens")
        elif (self.state == LEFT).all():
            return False
        else:
            raise FaultError(self._deadlock())
        return True

    def _deadlock(self) -> str:
        waiting = np.flatnonzero(self.state != LEFT)
        lane = int(waiting[0])
        block, thread = divmod(lane, self.lanes_of_block)
        why, self.stuck = _WHY[int(self.state[lane])], int(self.pc[lane]) - (self.state[lane] == BARRIER)
        return f"deadlock: {len(waiting)} lanes wait, thread {thread} of block {block} {why}"

    def park(self, lanes: Array, pc: int, state: int) -> None:
        self.pc[lanes], self.state[lanes] = pc, state

    def release(self, lanes: Array) -> None:
        """Let the lanes continue at their current instruction."""
        self.state[lanes] = RUNS
        self.alone = False

    def running(self, mask: Mask) -> Array:
        return np.ones(self.lanes, bool) if mask is None else mask

    def index(self, mask: Mask) -> Any:
        """Return an index for the lanes of `mask` into arrays of one element per lane."""
        return slice(None) if mask is None else np.flatnonzero(mask)

    def numbers(self, mask: Mask) -> Array:
        """Return the numbers of the lanes of `mask`."""
        lanes: Array = np.arange(self.lanes)[self.index(mask)]
        return lanes

    def meet(self, mask: Mask, pc: int, width: int, partners: Array | None = None) -> Array | None:
        """Return the lanes that may execute an instruction together in groups of `width`; None if these are exactly
        `mask`.

        `partners` are the lanes that each lane waits for, as bits of its warp, if not all participate. Incomplete
        groups wait; lanes that waited here are included once their group is complete.
        """
        if partners is None and (mask is None or (mask is self._whole[0] and width == self._whole[1])):
            return None
        here = self.running(mask)
        with_waiting = here | ((self.state == MEETS) & (self.pc == pc))
        ready: Array = with_waiting & self._complete(with_waiting, width, partners)
        if np.array_equal(ready, here):
            self._whole = (mask, width) if partners is None else self._whole
            return None
        self.park(here & ~ready, pc, MEETS)
        self.release(ready & ~here)
        return ready

    def _complete(self, here: Array, width: int, partners: Array | None) -> Array:
        present = here | (self.state == LEFT)
        if partners is None:
            groups: Array = np.repeat(present.reshape(-1, width).all(1), width)
            return groups
        bits = np.packbits(present.reshape(-1, WARP), axis=1, bitorder="little").view(np.uint32)
        complete: Array = (partners & ~np.repeat(bits.reshape(-1), WARP)) == 0
        return complete
