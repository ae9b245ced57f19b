"""Which module knows an instruction."""

from tuner.ptx import access, arithmetic, barrier, bits, bulk, convert, cp_async, exchange, matrix, mbarrier, wgmma
from tuner.ptx.machine import Decoder, Step
from tuner.ptx.parse import Instruction
from tuner.ptx.values import UnsupportedError
from tuner.ptx.wave import Wave

_KNOWN: dict[str, Decoder] = {}
for _family in (arithmetic, bits, convert, access, exchange, barrier, matrix, mbarrier, wgmma):
    _KNOWN |= _family.DECODERS


def decode(wave: Wave, instruction: Instruction, at: int) -> Step:
    """The step of instruction number `at`. Raises UnsupportedError, with its name, for one that nobody knows."""
    name = instruction.opcode[0]
    if instruction.opcode[:3] == ("cp", "async", "bulk"):
        return bulk.decode(wave, instruction, at)
    if name == "cp":
        return cp_async.decode(wave, instruction, at)
    if instruction.opcode[:2] == ("st", "async"):
        return mbarrier.decode(wave, instruction, at)
    if name not in _KNOWN:
        raise UnsupportedError(".".join(instruction.opcode))
    return _KNOWN[name](wave, instruction, at)
