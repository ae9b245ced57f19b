"""Bulk groups of asynchronous stores: issue, commit and wait per thread."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from tuner.backends.ptx.state.machine import Step
from tuner.backends.ptx.state.values import Array, Mask
from tuner.backends.ptx.state.wave import Wave
from tuner.backends.ptx.text.parse import Instruction


@dataclass
class BulkStore:
    """A copy out of shared memory: `read` returns the data, and `write` stores it at its destination."""

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
    """Return the groups by lane number."""
    return defaultdict(Groups)


def decode(wave: Wave, instruction: Instruction) -> Step:
    """Decode cp.async.bulk.commit_group and cp.async.bulk.wait_group."""
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
    """Write the stores that have been read but not waited for, after all lanes have exited."""
    for groups in wave.part(_groups).values():
        for store in (operation for group in groups.committed for operation in group if operation.data is not None):
            store.lands()


def take(wave: Wave, lane: int, store: BulkStore) -> None:
    """Issue a store: it lands at once, or as late as its wait allows, depending on the warp order."""
    if wave.order == "first":
        store.lands()
    else:
        wave.part(_groups)[lane].open.append(store)


def _commit(wave: Wave, lane: int) -> None:
    groups = wave.part(_groups)[lane]
    groups.committed.append(groups.open)
    groups.open = []
