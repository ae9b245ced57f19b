"""Dispatch of an instruction to the module that decodes it."""

from tuner.backends.ptx.instructions import (
    access,
    arithmetic,
    barrier,
    bits,
    bulk,
    control,
    convert,
    cp_async,
    exchange,
    halves,
    integers,
    matrix,
    mbarrier,
    selection,
    tcgen05,
    tensormap,
    wgmma,
    wmma,
)
from tuner.backends.ptx.state.machine import Decoder, Step
from tuner.backends.ptx.state.values import UnsupportedError
from tuner.backends.ptx.state.wave import Wave
from tuner.backends.ptx.text.module import Entry
from tuner.backends.ptx.text.parse import Address, Instruction

_KNOWN: dict[str, Decoder] = {}
_FAMILIES = (arithmetic, integers, bits, selection, convert, access, exchange, barrier, control, matrix, wmma, mbarrier)
for _family in (*_FAMILIES, tcgen05, tensormap, wgmma):
    _KNOWN |= _family.DECODERS


def decoder(entry: Entry) -> Decoder:
    """Return `decode` for an entry's instructions, with checks of the registers that wgmma uses."""
    watched = wgmma.registers_of(entry)

    def decode_watched(wave: Wave, instruction: Instruction, at: int) -> Step:
        step = decode(wave, instruction, at)
        written = instruction.operands and not isinstance(instruction.operands[0], Address)
        if not written or instruction.opcode[0] == "wgmma" or watched.isdisjoint(instruction.words(0)):
            return step
        return wgmma.watched(step, wave)

    return decode_watched if watched else decode


def decode(wave: Wave, instruction: Instruction, at: int) -> Step:
    """Decode instruction number `at` into a step. Raises UnsupportedError, with its name, if no module supports it."""
    name = instruction.opcode[0]
    if instruction.opcode[:3] == ("cp", "async", "bulk"):
        return bulk.decode(wave, instruction, at)
    if instruction.opcode[:4] == ("cp", "reduce", "async", "bulk"):
        return bulk.decode_reduce(wave, instruction, at)
    if name == "cp":
        return cp_async.decode(wave, instruction, at)
    if instruction.opcode[:2] == ("st", "async"):
        return mbarrier.decode(wave, instruction, at)
    if instruction.type in ("s16x2", "u16x2"):
        return integers.decode_packed(wave, instruction)
    if instruction.has("cc") and name in ("add", "sub", "mad"):
        return integers.carried(wave, instruction, at)
    if instruction.type == "f32x2":
        return arithmetic.decode_pairs(wave, instruction)
    if name in halves.KNOWN and instruction.type in halves.TYPES:
        return halves.decode(wave, instruction, at)
    if name not in _KNOWN:
        raise UnsupportedError(instruction.name)
    return _KNOWN[name](wave, instruction, at)
