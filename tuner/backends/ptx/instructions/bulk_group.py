"""Groups of the copy engine's stores: what a thread has issued, committed and waits for."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from tuner.backends.ptx.state.machine import Step
from tuner.backends.ptx.state.values import Array, Mask
from tuner.backends.ptx.state.wave import Wave
from tuner.backends.ptx.text.parse import Instruction


@dataclass
class BulkStore:
    """A copy out of shared memory: `read` takes what lies there, and `write` puts it where it belongs."""

    read: Callable[[], Array]
    write: Callable[[Array], None]
    data: Array | None = None

    def reads(self) -> Array:
        if self.data is None:
            self.data = self.read()
        return self.data

    def lands(self) -> None:
        self.write(self.reads())


@dataclass
class Groups:
    """The stores of one thread: those of the open group, and the committed groups, oldest first."""

    open: list[BulkStore] = field(default_factory=list)
    committed: list[list[BulkStore]] = field(default_factory=list)

    def wait(self, newest: int) -> None:
        while len(self.committed) > newest:
            for store in self.committed.pop(0):
                store.lands()

    def wait_read(self, newest: int) -> None:
        for group in self.committed[: max(len(self.committed) - newest, 0)]:
            for store in group:
                store.reads()


def _groups(_: Wave) -> defaultdict[int, Groups]:
    """By the number of a lane."""
    return defaultdict(Groups)


def decode(wave: Wave, instruction: Instruction) -> Step:
    """cp.async.bulk.commit_group and cp.async.bulk.wait_group."""
    if instruction.opcode[3] == "commit_group":
        return _each(wave, _commit)
    newest, reads = int(instruction.word(0), 0), instruction.has("read")
    wait = Groups.wait_read if reads else Groups.wait
    return _each(wave, lambda wave, lane: wait(wave.part(_groups)[lane], newest))


def _each(wave: Wave, act: Callable[[Wave, int], None]) -> Step:
    def acted(mask: Mask) -> None:
        for lane in wave.numbers(mask):
            act(wave, int(lane))

    return acted


def leave(wave: Wave) -> None:
    """All lanes have exited: stores that were only known to have been read are written."""
    for groups in wave.part(_groups).values():
        for store in (operation for group in groups.committed for operation in group if operation.data is not None):
            store.lands()


def take(wave: Wave, lane: int, store: BulkStore) -> None:
    """A store lands at once, or as late as it is waited for, as the order of warps says."""
    if wave.order == "first":
        store.lands()
    else:
        wave.part(_groups)[lane].open.append(store)


def _commit(wave: Wave, lane: int) -> None:
    groups = wave.part(_groups)[lane]
    groups.committed.append(groups.open)
    groups.open = []
