"""cp.async.bulk.tensor: copies of tensor boxes to shared memory, back, or added to the tensor."""

from collections.abc import Callable

import numpy as np

from tuner.backends.ptx.instructions.access import addresses
from tuner.backends.ptx.instructions.bulk_group import BulkStore, take
from tuner.backends.ptx.instructions.bulk_target import fences, kind_of, of_lane, targets_of
from tuner.backends.ptx.instructions.mbarrier import Barriers
from tuner.backends.ptx.instructions.tensor import Box, box_of
from tuner.backends.ptx.instructions.tensormap import mapped
from tuner.backends.ptx.state.machine import Step
from tuner.backends.ptx.state.values import Array, Mask, UnsupportedError
from tuner.backends.ptx.state.wave import Wave
from tuner.backends.ptx.text.parse import Instruction


def decode(wave: Wave, instruction: Instruction) -> Step:
    """Decode a tensor copy.

    Loads have [to], [map, {coordinates}], [barrier] and the blocks of a multicast. Stores and reductions have [map,
    {…}], [from]. Raises UnsupportedError for unsupported forms.
    """
    kind = kind_of(instruction)
    supported = kind != "between" and (instruction.has("add") or not instruction.has("reduce"))
    if not supported or any(part.startswith(("im2col", "tile::")) for part in instruction.opcode):
        raise UnsupportedError(instruction.name)
    loads = kind == "load"
    tensor = instruction.address(1 if loads else 0)
    dims = instruction.opcode[instruction.opcode.index("tensor") + 1]
    if int(dims[0]) != len(tensor.coordinates):
        raise UnsupportedError(f"{dims} with {len(tensor.coordinates)} coordinates")
    pointer = wave.registers.read(tensor.base, "u64")
    coordinates = [wave.registers.read(coordinate, "s32") for coordinate in tensor.coordinates]

    def box(lane: int) -> Box:
        at = tuple(of_lane(coordinate, lane) for coordinate in coordinates)
        return box_of(mapped(wave, of_lane(pointer, lane)), at)

    return _tensor_load(wave, instruction, box) if loads else _tensor_store(wave, instruction, box)


def _tensor_load(wave: Wave, instruction: Instruction, box: Callable[[int], Box]) -> Step:
    targets = targets_of(wave, instruction, 2)

    def issued(mask: Mask) -> None:
        for lane in map(int, wave.numbers(mask)):
            copied = box(lane)
            for offset, barrier in targets.of(lane, copied.nbytes):
                wave.land(_box_load(wave, copied, offset, barrier))

    return issued


def _box_load(wave: Wave, box: Box, offset: int, barrier: int) -> Callable[[], None]:
    def land() -> None:
        box.load(wave.memory, wave.shared, offset)
        fences(wave).landed(offset, box.nbytes)
        wave.part(Barriers).complete(barrier, box.nbytes)

    return land


def _tensor_store(wave: Wave, instruction: Instruction, box: Callable[[int], Box]) -> Step:
    source, adds = addresses(wave, instruction.address(1), "shared"), instruction.has("add")

    def issued(mask: Mask) -> None:
        for lane in map(int, wave.numbers(mask)):
            copied, one = box(lane), np.array([lane])
            wave.shared.locate(source(one) + np.uint32(copied.nbytes - 1), one, 1)
            offset = int(wave.shared.locate(source(one), one, 1)[0])
            take(wave, lane, _box_store(wave, copied, offset, adds))

    return issued


def _box_store(wave: Wave, box: Box, offset: int, adds: bool) -> BulkStore:
    def read() -> Array:
        fences(wave).check(np.arange(offset, offset + box.nbytes, 16))
        return box.taken(wave.shared, offset)

    put = box.add if adds else box.put
    return BulkStore(read, lambda values: put(wave.memory, values))
