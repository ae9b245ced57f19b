"""cp.async.bulk: copies of the copy engine, plain, between blocks or of a tensor's boxes, as late as somebody waits."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tuner.ptx.access import addresses
from tuner.ptx.machine import Step
from tuner.ptx.mbarrier import barriers
from tuner.ptx.memory import FaultError
from tuner.ptx.parse import Instruction
from tuner.ptx.proxy import Unfenced
from tuner.ptx.tensor import Box, box_of
from tuner.ptx.values import Array, Mask, UnsupportedError
from tuner.ptx.wave import Wave


@dataclass
class Store:
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

    open: list[Store] = field(default_factory=list)
    committed: list[list[Store]] = field(default_factory=list)

    def wait(self, newest: int) -> None:
        while len(self.committed) > newest:
            for store in self.committed.pop(0):
                store.lands()

    def wait_read(self, newest: int) -> None:
        for group in self.committed[: max(len(self.committed) - newest, 0)]:
            for store in group:
                store.reads()


def _groups(wave: Wave, lane: int) -> Groups:
    found: dict[int, Groups] = wave.extra.setdefault("bulk", {})
    return found.setdefault(lane, Groups())


def decode(wave: Wave, instruction: Instruction, _: int) -> Step:
    """cp.async.bulk. Raises UnsupportedError for what the machine does not know."""
    kind = instruction.opcode[3]
    if kind == "commit_group":
        return _each(wave, _commit)
    if kind == "wait_group":
        newest, reads = int(instruction.word(0)), instruction.has("read")
        wait = Groups.wait_read if reads else Groups.wait
        return _each(wave, lambda wave, lane: wait(_groups(wave, lane), newest))
    if kind == "prefetch":
        return lambda _: None
    copy = _tensor if kind == "tensor" else _plain
    return copy(wave, instruction)


def decode_reduce(wave: Wave, instruction: Instruction, _: int) -> Step:
    """cp.reduce.async.bulk: sums of fp32 in global memory. Raises UnsupportedError for other types and operations."""
    if not instruction.has("add") or instruction.type != "f32" or _kind(instruction) != "store":
        raise UnsupportedError(".".join(instruction.opcode))
    return _plain_store(wave, instruction, wave.registers.read(instruction.word(2), "u32"))


def _fences(wave: Wave) -> Unfenced:
    assert wave.unfenced, "a launch makes it for an entry that uses the copy engine"
    return wave.unfenced


def _each(wave: Wave, act: Callable[[Wave, int], None]) -> Step:
    def acted(mask: Mask) -> None:
        for lane in np.arange(wave.lanes)[wave.index(mask)]:
            act(wave, int(lane))

    return acted


def leave(wave: Wave) -> None:
    """All lanes have left: what was only known to be read arrives."""
    for groups in wave.extra.pop("bulk", {}).values():
        for store in (each for group in groups.committed for each in group if each.data is not None):
            store.lands()


def _take(wave: Wave, lane: int, store: Store) -> None:
    """A store lands at once, or as late as it is waited for, as the order of warps says."""
    if wave.order == "first":
        store.lands()
    else:
        _groups(wave, lane).open.append(store)


def _commit(wave: Wave, lane: int) -> None:
    groups = _groups(wave, lane)
    groups.committed.append(groups.open)
    groups.open = []


def _one(value: Array, lane: int) -> int:
    return int(value if value.ndim == 0 else value[lane])


Kind = Literal["load", "store", "between"]


def _kind(instruction: Instruction) -> Kind:
    """From global memory to shared memory of a cluster, the other way in a group, or from a block's to a cluster's."""
    if instruction.has("shared::cluster") and instruction.has("mbarrier::complete_tx::bytes"):
        return "between" if instruction.has("shared::cta") else "load"
    if instruction.has("global") and instruction.has("shared::cta") and instruction.has("bulk_group"):
        return "store"
    raise UnsupportedError(".".join(instruction.opcode))


def _targets(wave: Wave, instruction: Instruction, address: int, barrier: int, blocks: str) -> "Targets":
    read = wave.registers.read
    multicast = instruction.has("multicast::cluster")
    return Targets(
        wave,
        addresses(wave, instruction.address(address), "shared"),
        addresses(wave, instruction.address(barrier), "shared"),
        read(blocks, "u16") if multicast else None,
    )


@dataclass(frozen=True)
class Targets:
    """Where a load goes: a place and a barrier in a block, or at the same addresses in all blocks of `blocks`."""

    wave: Wave
    place: Callable[[object], Array]
    barrier: Callable[[object], Array]
    blocks: Array | None

    def of(self, lane: int, nbytes: int) -> Iterator[tuple[int, int]]:
        """(offset of the place, offset of the barrier) in shared memory."""
        shared, lanes = self.wave.shared, np.array([lane])
        place, barrier = self.place(lanes), self.barrier(lanes)
        ends = place + np.uint32(nbytes - 1)
        if (place & 15).any():
            raise FaultError("a bulk copy to a shared address that is no multiple of 16")
        ranks = [0] if self.blocks is None else self._ranks(_one(self.blocks, lane))
        for rank in ranks:
            moved = np.uint32(rank << 24)
            shared.locate(ends | moved, lanes, 1)
            yield int(shared.locate(place | moved, lanes, 1)[0]), int(shared.locate(barrier | moved, lanes, 8)[0])

    def _ranks(self, bits: int) -> list[int]:
        if bits >> self.wave.cluster:
            raise FaultError(f"a multicast to blocks {bits:#x}: the cluster has {self.wave.cluster}")
        return [rank + 1 for rank in range(self.wave.cluster) if bits >> rank & 1]


def _plain(wave: Wave, instruction: Instruction) -> Step:
    """[to], [from], bytes and, but for a store, [barrier]; of a load also the blocks of a multicast."""
    kind = _kind(instruction)
    size = wave.registers.read(instruction.word(2), "u32")
    if kind != "load":
        return (_plain_store if kind == "store" else _between)(wave, instruction, size)
    source = addresses(wave, instruction.address(1), "global")
    targets = _targets(wave, instruction, 0, 3, instruction.operands[-1] if len(instruction.operands) > 4 else "0")  # type: ignore[arg-type]

    def issued(mask: Mask) -> None:
        for lane in map(int, np.arange(wave.lanes)[wave.index(mask)]):
            nbytes = _one(size, lane)
            start = _span(wave, source(np.array([lane])), nbytes, False)
            for place, barrier in targets.of(lane, nbytes):
                wave.land(_load(wave, start, place, nbytes, barrier))

    return issued


def _span(wave: Wave, address: Array, nbytes: int, write: bool) -> int:
    """The offset of a span of global memory, of which both ends lie in one buffer."""
    if nbytes % 16 or int(address[0]) % 16:
        raise FaultError(f"a bulk copy of {nbytes} bytes at {int(address[0]):#x}: both are to be multiples of 16")
    wave.memory.locate(address + np.uint64(max(nbytes - 1, 0)), 1, write)
    return int(wave.memory.locate(address, 1, write)[0])


def _load(wave: Wave, start: int, place: int, nbytes: int, barrier: int) -> Callable[[], None]:
    def land() -> None:
        wave.shared.data[place : place + nbytes] = wave.memory.data[start : start + nbytes]
        _fences(wave).landed(place, nbytes)
        barriers(wave).complete(barrier, nbytes)

    return land


def _plain_store(wave: Wave, instruction: Instruction, size: Array) -> Step:
    to, source = addresses(wave, instruction.address(0), "global"), addresses(wave, instruction.address(1), "shared")
    store = _sum if instruction.has("reduce") else _store

    def issued(mask: Mask) -> None:
        for lane in map(int, np.arange(wave.lanes)[wave.index(mask)]):
            one, nbytes = np.array([lane]), _one(size, lane)
            start = _span(wave, to(one), nbytes, True)
            place = int(wave.shared.locate(source(one), one, 16)[0])
            _take(wave, lane, store(wave, start, place, nbytes))

    return issued


def _store(wave: Wave, start: int, place: int, nbytes: int) -> Store:
    def write(data: Array) -> None:
        wave.memory.data[start : start + nbytes] = data

    return Store(lambda: _read(wave, place, nbytes), write)


def _sum(wave: Wave, start: int, place: int, nbytes: int) -> Store:
    def write(data: Array) -> None:
        sums = wave.memory.data[start : start + nbytes].view(np.float32)
        sums += data.view(np.float32)

    return Store(lambda: _read(wave, place, nbytes), write)


def _read(wave: Wave, place: int, nbytes: int) -> Array:
    _fences(wave).check(np.arange(place, place + nbytes, 16))
    return wave.shared.data[place : place + nbytes].copy()


def _between(wave: Wave, instruction: Instruction, size: Array) -> Step:
    """From the shared memory of the lane's block to a block of the cluster, whose barrier counts the bytes."""
    source, targets = addresses(wave, instruction.address(1), "shared"), _targets(wave, instruction, 0, 3, "0")

    def issued(mask: Mask) -> None:
        for lane in map(int, np.arange(wave.lanes)[wave.index(mask)]):
            one, nbytes = np.array([lane]), _one(size, lane)
            start = _own_span(wave, source(one), one, nbytes)
            for place, barrier in targets.of(lane, nbytes):
                if wave.shared.block(place) != wave.shared.block(barrier):
                    raise FaultError("a bulk copy to one block, and its barrier in another")
                wave.land(_carried(wave, start, place, nbytes, barrier))

    return issued


def _own_span(wave: Wave, address: Array, lane: Array, nbytes: int) -> int:
    """The offset of a span of shared memory, of which both ends are to lie there."""
    if nbytes % 16 or int(address[0]) % 16:
        raise FaultError(f"a bulk copy of {nbytes} bytes at {int(address[0]):#x}: both are to be multiples of 16")
    wave.shared.locate(address + np.uint32(max(nbytes - 1, 0)), lane, 1)
    return int(wave.shared.locate(address, lane, 1)[0])


def _carried(wave: Wave, start: int, place: int, nbytes: int, barrier: int) -> Callable[[], None]:
    def land() -> None:
        _fences(wave).check(np.arange(start, start + nbytes, 16))
        wave.shared.data[place : place + nbytes] = wave.shared.data[start : start + nbytes]
        _fences(wave).landed(place, nbytes)
        barriers(wave).complete(barrier, nbytes)

    return land


def _tensor(wave: Wave, instruction: Instruction) -> Step:
    """Loads: [to], [map, {coordinates}], [barrier] and the blocks of a multicast. Stores: [map, {…}], [from]."""
    if not instruction.has("tile") or instruction.has("im2col"):
        raise UnsupportedError(".".join(instruction.opcode))
    kind = _kind(instruction)
    if kind == "between":
        raise UnsupportedError(".".join(instruction.opcode))
    loads = kind == "load"
    mapped = instruction.address(1 if loads else 0)
    if int(instruction.opcode[4][0]) != len(mapped.coordinates):
        raise UnsupportedError(f"{instruction.opcode[4]} with {len(mapped.coordinates)} coordinates")
    pointer = wave.registers.read(mapped.base, "u64")
    coordinates = [wave.registers.read(each, "s32") for each in mapped.coordinates]

    def box(lane: int) -> Box:
        at = tuple(_one(each, lane) for each in coordinates)
        return box_of(wave.parameters.mapped(_one(pointer, lane)), at)

    return _tensor_load(wave, instruction, box) if loads else _tensor_store(wave, instruction, box)


def _tensor_load(wave: Wave, instruction: Instruction, box: Callable[[int], Box]) -> Step:
    targets = _targets(wave, instruction, 0, 2, instruction.operands[-1] if len(instruction.operands) > 3 else "0")  # type: ignore[arg-type]

    def issued(mask: Mask) -> None:
        for lane in map(int, np.arange(wave.lanes)[wave.index(mask)]):
            copied = box(lane)
            for place, barrier in targets.of(lane, copied.nbytes):
                wave.land(_box_load(wave, copied, place, barrier))

    return issued


def _box_load(wave: Wave, box: Box, place: int, barrier: int) -> Callable[[], None]:
    def land() -> None:
        box.load(wave.memory, wave.shared, place)
        _fences(wave).landed(place, box.nbytes)
        barriers(wave).complete(barrier, box.nbytes)

    return land


def _tensor_store(wave: Wave, instruction: Instruction, box: Callable[[int], Box]) -> Step:
    source = addresses(wave, instruction.address(1), "shared")

    def issued(mask: Mask) -> None:
        for lane in map(int, np.arange(wave.lanes)[wave.index(mask)]):
            copied, one = box(lane), np.array([lane])
            wave.shared.locate(source(one) + np.uint32(copied.nbytes - 1), one, 1)
            place = int(wave.shared.locate(source(one), one, 1)[0])
            _take(wave, lane, _box_store(wave, copied, place))

    return issued


def _box_store(wave: Wave, box: Box, place: int) -> Store:
    def read() -> Array:
        _fences(wave).check(np.arange(place, place + box.nbytes, 16))
        return box.taken(wave.shared, place)

    return Store(read, lambda found: box.put(wave.memory, found))
