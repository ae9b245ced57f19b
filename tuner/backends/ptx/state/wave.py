"""Blocks that run side by side: which lanes run, wait or have exited, and what releases them."""

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

# Who executes next. All warps that stand at the lowest instruction; or one warp until it waits: the first that can run,
# and copies land at once, or the last, and the newest copy lands first. What no barrier orders comes in three orders.
Order = Literal["together", "first", "last"]
ORDERS: tuple[Order, ...] = get_args(Order)

RUNS, LEFT, MEETS, BARRIER, PHASE, CLUSTER = range(6)  # a lane's state; what it waits for
_WHY = {
    MEETS: "for the other lanes of a collective",
    BARRIER: "at a block's barrier",
    PHASE: "for an mbarrier",
    CLUSTER: "for the cluster",
}
WARP = 32
_WAKES = 5_000  # rounds in which all that runs only polls


@dataclass
class Wave:
    """All that the steps of instructions share. Lanes count through blocks; a block has whole warps."""

    blocks: int
    lanes_of_block: int  # whole warps, or whole warpgroups where these compute together
    warps: int  # of a block
    cluster: int
    registers: Registers
    memory: Global
    shared: Shared
    local: Shared
    parameters: Parameters
    pc: Array = field(init=False)
    state: Array = field(init=False)
    slept: Array = field(init=False)
    key: Array = field(init=False)  # of what a lane waits for
    late: deque[Callable[[], None]] = field(
        default_factory=deque
    )  # copies that can only be waited for by an mbarrier's phase
    parts: dict[Any, Any] = field(default_factory=dict)  # see `part`
    order: Order = "together"
    strict: bool = True  # whether what the ISA asks for is asked for where others leave it out
    unfenced: Unfenced | None = None  # where the entry uses wgmma or the copy engine
    races: "Races | None" = None  # where they are looked for
    alone: bool = False  # no other lane can run
    arch: str = ""  # whose tensor cores compute
    stuck: int = -1  # where the first lane of a deadlock stands

    def __post_init__(self) -> None:
        self.lanes = self.blocks * self.lanes_of_block
        self.pc = np.zeros(self.lanes, np.int64)
        self.state = np.zeros(self.lanes, np.int8)
        self.slept = np.zeros(self.lanes, bool)
        self.key = np.zeros(self.lanes, np.int64)
        self.warp_of = np.arange(self.lanes) // WARP
        self.block_of = np.arange(self.lanes) // self.lanes_of_block
        self._whole: tuple[Mask, int] = None, 0  # the lanes that were last found complete, in groups of how many
        self._wakes = 0

    def start(self, present: Array) -> None:
        """Begin with the lanes of `present`; others never are."""
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
        """What a family of instructions remembers: `kind(wave)`, made when it is first asked for."""
        if kind not in self.parts:
            self.parts[kind] = kind(self)
        part: K = self.parts[kind]
        return part

    def next(self) -> tuple[int, Mask] | None:
        """(instruction, its lanes): the lowest that any awake lane stands at; None when all have left.

        Where warps run one by one, that of the first or last warp that can run.
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
        """Take in a copy that only an mbarrier's phase waits for: it lands at once, or as late as the order says."""
        if self.order == "first":
            copy()
        else:
            self.late.append(copy)

    def _progress(self) -> bool:
        """Nobody runs: copies land, one at a time, then those wake that gave way to others."""
        if self.late:
            (self.late.pop if self.order == "last" else self.late.popleft)()()
        elif self.slept.any():
            self.slept[...] = False
            self._wakes += 1
            if self._wakes > _WAKES:
                raise FaultError("livelock: all lanes poll for what nobody does")
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
        """Let lanes go on where they stand."""
        self.state[lanes] = RUNS
        self.alone = False

    def running(self, mask: Mask) -> Array:
        return np.ones(self.lanes, bool) if mask is None else mask

    def index(self, mask: Mask) -> Any:
        """Of the lanes of `mask`, for arrays of one element a lane."""
        return slice(None) if mask is None else np.flatnonzero(mask)

    def numbers(self, mask: Mask) -> Array:
        """The lanes of `mask` by their number."""
        lanes: Array = np.arange(self.lanes)[self.index(mask)]
        return lanes

    def meet(self, mask: Mask, pc: int, width: int, partners: Array | None = None) -> Array | None:
        """Of lanes at an instruction that groups of `width` execute together, those that may: None for just these.

        `partners` are the lanes that each waits for, as bits of its warp, where not all take part.
        Others wait for theirs; those that waited here come along.
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
