"""Control flow: indexed branches, exit, sleep and traps."""

from collections.abc import Mapping

import numpy as np

from tuner.backends.ptx.instructions import tmem
from tuner.backends.ptx.instructions.barrier import ClusterState
from tuner.backends.ptx.state.machine import Decoder, Step
from tuner.backends.ptx.state.memory import FaultError
from tuner.backends.ptx.state.values import Mask, UnsupportedError
from tuner.backends.ptx.state.wave import LEFT, MEETS, Wave
from tuner.backends.ptx.text.parse import Instruction


def _leave(wave: Wave, _: Instruction, __: int) -> Step:
    def left(mask: Mask) -> Mask:
        wave.state[wave.index(mask)] = LEFT
        if ClusterState in wave.parts:
            wave.part(ClusterState).complete()
        tmem.leave(wave)
        wave.release(wave.state == MEETS)  # lanes at a collective may have waited for those that exited
        return np.zeros(wave.lanes, bool)

    return left


def _sleep(wave: Wave, _: Instruction, at: int) -> Step:
    """Execute nanosleep: all other lanes run first."""

    def slept(mask: Mask) -> Mask:
        lanes = wave.running(mask)
        wave.pc[lanes], wave.slept[lanes] = at + 1, True
        return np.zeros(wave.lanes, bool)

    return slept


def _jump(wave: Wave, instruction: Instruction, _: int) -> Step:
    """Decode brx.idx: jump to the label that each lane's index selects from a list."""
    index, labels = wave.registers.read(instruction.word(0), "u32"), wave.registers.entry.labels
    targets = np.array([labels[name] for name in instruction.words(1)])

    def jumped(mask: Mask) -> Mask:
        lanes = wave.running(mask)
        chosen = np.broadcast_to(index, wave.lanes)[lanes]
        if (chosen >= len(targets)).any():
            raise FaultError(f"brx.idx to number {int(chosen.max())} of {len(targets)} labels")
        wave.pc[lanes] = targets[chosen]
        return np.zeros(wave.lanes, bool)

    return jumped


def _trap(_: Wave, __: Instruction, ___: int) -> Step:
    def trapped(_: Mask) -> Mask:
        raise FaultError("the kernel executed trap")

    return trapped


def _call(_: Wave, instruction: Instruction, __: int) -> Step:
    """Decode a call of a function without a body in the module: known system functions, which print nothing."""
    if "vprintf" in instruction.operands:
        return lambda _: None
    if "__assertfail" not in instruction.operands:
        raise UnsupportedError(f"{instruction.text}: the module has no body of this function")

    def failed(_: Mask) -> Mask:
        raise FaultError("an assertion of the kernel failed")

    return failed


def _nothing(_: Wave, __: Instruction, ___: int) -> Step:
    return lambda _: None


DECODERS: Mapping[str, Decoder] = {
    "brx": _jump,
    "ret": _leave,
    "exit": _leave,
    "trap": _trap,
    "call": _call,
    "nanosleep": _sleep,
    "membar": _nothing,  # the interpreter's memory is sequentially consistent
    "prefetch": _nothing,
    "setmaxnreg": _nothing,
    "griddepcontrol": _nothing,
    "discard": _nothing,
    "applypriority": _nothing,
}
