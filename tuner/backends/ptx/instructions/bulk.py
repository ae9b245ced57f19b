"""cp.async.bulk: bulk copies, plain or between blocks, performed when a thread waits for them."""

from collections.abc import Callable
from functools import partial

import numpy as np

from tuner.backends.ptx.instructions import bulk_group, bulk_tensor
from tuner.backends.ptx.instructions.access import addresses
from tuner.backends.ptx.instructions.bulk_group import BulkStore, take
from tuner.backends.ptx.instructions.bulk_target import fences, kind_of, of_lane, targets_of
from tuner.backends.ptx.instructions.mbarrier import Barriers
from tuner.backends.ptx.state.machine import Step
from tuner.backends.ptx.state.memory import FaultError
from tuner.backends.ptx.state.values import Array, Mask, UnsupportedError
from tuner.backends.ptx.state.wave import Wave
from tuner.backends.ptx.text.parse import Instruction


def decode(wave: Wave, instruction: Instruction, _: int) -> Step:
    """Decode cp.async.bulk. Raises UnsupportedError for unsupported forms."""
    kind = instruction.opcode[3]
    if kind in ("commit_group", "wait_group"):
        return bulk_group.decode(wave, instruction)
    if kind == "prefetch":
        return lambda _: None
    return bulk_tensor.decode(wave, instruction) if kind == "tensor" else _plain(wave, instruction)


def decode_reduce(wave: Wave, instruction: Instruction, _: int) -> Step:
    """Decode cp.reduce.async.bulk: fp32 sums in global memory. Raises UnsupportedError for other types and
    operations.
    """
    if instruction.has("tensor"):
        return bulk_tensor.decode(wave, instruction)
    if not instruction.has("add") or instruction.type != "f32" or kind_of(instruction) != "store":
        raise UnsupportedError(instruction.name)
    return _plain_store(wave, instruction, wave.registers.read(instruction.word(2), "u32"))


def _plain(wave: Wave, instruction: Instruction) -> Step:
    """Operands: [to], [from], bytes and, for loads, [barrier], then the blocks of a multicast."""
    kind = kind_of(instruction)
    size = wave.registers.read(instruction.word(2), "u32")
    if kind != "load":
        return (_plain_store if kind == "store" else _between)(wave, instruction, size)
    source = addresses(wave, instruction.address(1), "global")
    targets = targets_of(wave, instruction, 3)

    def issued(mask: Mask) -> None:
        for lane in map(int, wave.numbers(mask)):
            nbytes = of_lane(size, lane)
            start = _span(wave, source(np.array([lane])), nbytes, False)
            data = partial(_loaded, wave, start, nbytes)
            for offset, barrier in targets.of(lane, nbytes):
                wave.land(partial(_land, wave, data, offset, barrier))

    return issued


def _span(wave: Wave, address: Array, nbytes: int, write: bool) -> int:
    """Return the offset of a span of global memory; both ends must lie in one buffer."""
    _check(address, nbytes)
    wave.memory.locate(address + np.uint64(max(nbytes - 1, 0)), 1, write)
    return int(wave.memory.locate(address, 1, write)[0])


def _check(address: Array, nbytes: int) -> None:
    if nbytes % 16 or int(address[0]) % 16:
        raise FaultError(f"a bulk copy of {nbytes} bytes at {int(address[0]):#x}: both must be multiples of 16")


def _loaded(wave: Wave, start: int, nbytes: int) -> Array:
    return wave.memory.data[start : start + nbytes]


def _land(wave: Wave, data: Callable[[], Array], offset: int, barrier: int) -> None:
    """Write the data to shared memory and complete its bytes on the barrier."""
    landed = data()
    wave.shared.data[offset : offset + len(landed)] = landed
    fences(wave).landed(offset, len(landed))
    wave.part(Barriers).complete(barrier, len(landed))


def _plain_store(wave: Wave, instruction: Instruction, size: Array) -> Step:
    to, source = addresses(wave, instruction.address(0), "global"), addresses(wave, instruction.address(1), "shared")
    store = _sum if instruction.has("reduce") else _store

    def issued(mask: Mask) -> None:
        for lane in map(int, wave.numbers(mask)):
            one, nbytes = np.array([lane]), of_lane(size, lane)
            start = _span(wave, to(one), nbytes, True)
            offset = int(wave.shared.locate(source(one), one, 16)[0])
            take(wave, lane, store(wave, start, offset, nbytes))

    return issued


def _store(wave: Wave, start: int, offset: int, nbytes: int) -> BulkStore:
    def write(data: Array) -> None:
        wave.memory.data[start : start + nbytes] = data

    return BulkStore(partial(_read, wave, offset, nbytes), write)


def _sum(wave: Wave, start: int, offset: int, nbytes: int) -> BulkStore:
    def write(data: Array) -> None:
        sums = wave.memory.data[start : start + nbytes].view(np.float32)
        sums += data.view(np.float32)

    return BulkStore(partial(_read, wave, offset, nbytes), write)


def _read(wave: Wave, offset: int, nbytes: int) -> Array:
    """Return the contents of shared memory; raise FaultError if a thread's store is not fenced."""
    fences(wave).check(np.arange(offset, offset + nbytes, 16))
    return wave.shared.data[offset : offset + nbytes].copy()


def _between(wave: Wave, instruction: Instruction, size: Array) -> Step:
    """Decode a copy from shared memory of the lane's block to another block of the cluster, whose barrier counts the
    bytes.
    """
    source, targets = addresses(wave, instruction.address(1), "shared"), targets_of(wave, instruction, 3)

    def issued(mask: Mask) -> None:
        for lane in map(int, wave.numbers(mask)):
            one, nbytes = np.array([lane]), of_lane(size, lane)
            data = partial(_read, wave, _own_span(wave, source(one), one, nbytes), nbytes)
            for offset, barrier in targets.of(lane, nbytes):
                if wave.shared.block(offset) != wave.shared.block(barrier):
                    raise FaultError("a bulk copy and its barrier are in different blocks")
                wave.land(partial(_land, wave, data, offset, barrier))

    return issued


def _own_span(wave: Wave, address: Array, lane: Array, nbytes: int) -> int:
    """Return the offset of a span of shared memory; both ends must lie in it."""
    _check(address, nbytes)
    wave.shared.locate(address + np.uint32(max(nbytes - 1, 0)), lane, 1)
    return int(wave.shared.locate(address, lane, 1)[0])
