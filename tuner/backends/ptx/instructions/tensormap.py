"""tensormap.*: tensor maps that a kernel modifies field by field in shared memory and copies to global memory.

The layout of the 128 bytes is opaque in the PTX ISA ("Tensor-map"); the interpreter uses `_FIELDS`.
"""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from tuner.backends.ptx.instructions.access import addresses
from tuner.backends.ptx.instructions.exchange import together
from tuner.backends.ptx.state.machine import Decoder, Step
from tuner.backends.ptx.state.memory import GLOBAL, PARAMETER_WINDOW, FaultError
from tuner.backends.ptx.state.values import Mask, UnsupportedError
from tuner.backends.ptx.state.wave import WARP, Wave
from tuner.backends.ptx.text.parse import Instruction
from tuner.spec.dtype import DType
from tuner.spec.tensor_map import MappedTensor

_BYTES = 128
_FIELDS: Mapping[str, tuple[int, str, int]] = {  # byte offset, type, and number of values for fields with one per dim
    "global_address": (0, "u8", 1),
    "global_stride": (8, "u8", 4),
    "global_dim": (40, "u4", 5),
    "box_dim": (60, "u4", 5),
    "element_stride": (80, "u4", 5),
    "rank": (100, "u1", 1),
    "elemtype": (101, "u1", 1),
    "interleave_layout": (102, "u1", 1),
    "swizzle_mode": (103, "u1", 1),
    "fill_mode": (104, "u1", 1),
}
_ELEMENTS = {3: DType.INT32, 5: DType.INT64, 6: DType.FP16, 7: DType.FP32, 10: DType.BF16}  # codes of .elemtype
_SWIZZLES = {0: 0, 1: 32, 2: 64, 3: 128}


def mapped(wave: Wave, address: int) -> MappedTensor:
    """Return the map at a generic address: a parameter, or 128 bytes of a parameter or of global memory.

    Raises FaultError for unsupported maps.
    """
    if (mapped := wave.parameters.mapped(address)) is not None:
        return mapped
    if address < GLOBAL:
        return _decoded(wave.parameters.read(address - PARAMETER_WINDOW, _BYTES))
    begin = int(wave.memory.locate(np.array([address], np.uint64), _BYTES)[0])
    return _decoded(wave.memory.data[begin : begin + _BYTES].tobytes())


@lru_cache
def _decoded(data: bytes) -> MappedTensor:
    """Decode the 128 bytes according to `_FIELDS`."""
    fields = {name: np.frombuffer(data, kind, n, byte).tolist() for name, (byte, kind, n) in _FIELDS.items()}
    rank = fields["rank"][0] + 1
    dtype, swizzle = _ELEMENTS.get(fields["elemtype"][0]), _SWIZZLES.get(fields["swizzle_mode"][0])
    plain = fields["interleave_layout"] == fields["fill_mode"] == [0] and set(fields["element_stride"][:rank]) == {1}
    if dtype is None or swizzle is None or not plain:
        raise FaultError(f"unsupported: a tensor map with {fields}")
    dims = fields["global_dim"][:rank], [dtype.itemsize, *fields["global_stride"][: rank - 1]], fields["box_dim"][:rank]
    shape, strides, box = (tuple(reversed(dim)) for dim in dims)  # outermost first
    return MappedTensor("a map that the kernel wrote", fields["global_address"][0], dtype, shape, strides, box, swizzle)


def _replace(wave: Wave, instruction: Instruction, _: int) -> Step:
    """Decode tensormap.replace: one field of a map in shared memory; operand 1 selects the dim of a per-dim field."""
    if instruction.opcode[2] != "tile" or instruction.opcode[3] not in _FIELDS or not instruction.has("shared::cta"):
        raise UnsupportedError(instruction.name)
    byte, kind, count = _FIELDS[instruction.opcode[3]]
    axis = int(instruction.word(1), 0) if count > 1 else 0
    at, first = addresses(wave, instruction.address(0), "shared"), byte + axis * np.dtype(kind).itemsize
    value = np.broadcast_to(wave.registers.read(instruction.word(-1), instruction.type), wave.lanes)

    def replaced(mask: Mask) -> None:
        lanes = wave.numbers(mask)
        bits = value[lanes].astype(kind).reshape(-1, 1).view(np.uint8)
        for offset, bit in zip(wave.shared.locate(at(lanes), lanes, 8) + first, bits, strict=True):
            wave.shared.data[offset : offset + bit.size] = bit

    return replaced


def _publish(wave: Wave, instruction: Instruction, at: int) -> Step:
    """Decode tensormap.cp_fenceproxy: a warp copies the 128 bytes from shared to global memory."""
    to = addresses(wave, instruction.address(0), "global")
    source = addresses(wave, instruction.address(1), "shared")

    def copied(mask: Mask) -> None:
        for lane in wave.numbers(mask)[::WARP]:
            one = np.array([lane])
            begin = int(wave.shared.locate(source(one), one, _BYTES)[0])
            target = int(wave.memory.locate(to(one), _BYTES, write=True)[0])
            wave.memory.data[target : target + _BYTES] = wave.shared.data[begin : begin + _BYTES]

    return together(wave, at, WARP, copied)


def decode(wave: Wave, instruction: Instruction, at: int) -> Step:
    """Decode tensormap.replace and tensormap.cp_fenceproxy. Raises UnsupportedError for other instructions."""
    return (_replace if instruction.opcode[1] == "replace" else _publish)(wave, instruction, at)


DECODERS: Mapping[str, Decoder] = {"tensormap": decode}
