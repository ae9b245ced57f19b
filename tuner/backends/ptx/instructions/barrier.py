"""Barriers of a block, with and without reductions, and of a cluster."""

from collections.abc import Callable, Mapping

import numpy as np

from tuner.backends.ptx.instructions.exchange import sync_warp
from tuner.backends.ptx.state.machine import Decoder, Step
from tuner.backends.ptx.state.memory import FaultError
from tuner.backends.ptx.state.values import Array, Mask, UnsupportedError, assign
from tuner.backends.ptx.state.wave import BARRIER, CLUSTER, LEFT, WARP, Wave
from tuner.backends.ptx.text.parse import Instruction

_NAMES = 16  # barriers per block


def _arrivals(wave: Wave) -> Array:
    """Return [blocks · 16] arrived threads per barrier, counted in whole warps."""
    return np.zeros(wave.blocks * _NAMES, np.int64)


def _block_barrier(wave: Wave, instruction: Instruction, at: int) -> Step:
    """Decode bar.sync, .arrive and .red: a barrier number and a number of threads (default: the block's)."""
    opcode = tuple(part for part in instruction.opcode if part not in ("cta", "aligned"))
    if opcode[1] == "warp":
        return sync_warp(wave, instruction, at)
    if opcode[1] == "cluster":
        return _cluster_barrier(wave, instruction, at)
    reduces = opcode[1] == "red"
    if (len(opcode) != 2 or opcode[1] not in ("sync", "arrive")) and not reduces:
        raise UnsupportedError(instruction.name)
    waits, registers = opcode[1] != "arrive", wave.registers
    # Without the destination and the predicate.
    operands = instruction.operands[1:-1] if reduces else instruction.operands
    number = np.broadcast_to(registers.read(str(operands[0]), "u32"), wave.lanes)
    count = np.array(WARP * wave.warps) if len(operands) == 1 else registers.read(str(operands[1]), "u32")
    needed = np.broadcast_to(count, wave.lanes)
    vote = _vote(wave, instruction) if reduces else None

    def arrived(mask: Mask) -> Mask:
        ready, alone = wave.meet(mask, at, WARP), wave.alone
        lanes = wave.running(mask) if ready is None else ready
        if not lanes.any():
            return lanes
        keys = wave.block_of * _NAMES + number
        _check(number[lanes], needed[lanes])
        arrivals = wave.part(_arrivals)
        arrivals += WARP * np.bincount(keys[lanes & (np.arange(wave.lanes) % WARP == 0)], minlength=len(arrivals))
        if waits:
            wave.key[lanes] = keys[lanes]
            wave.park(lanes, at + 1, BARRIER)
        if vote:
            vote(lanes)
        free = _complete(wave, keys[lanes & (arrivals[keys] >= needed)])
        if not waits:
            return lanes
        if np.array_equal(free, wave.running(mask)):
            wave.alone = alone  # no other lane was released
            return None
        return np.zeros(wave.lanes, bool)

    return arrived


def _complete(wave: Wave, keys: Array) -> Array:
    """Complete a phase of these barriers, and return the released lanes."""
    arrivals = wave.part(_arrivals)
    done = np.zeros(len(arrivals), bool)
    done[keys] = True
    arrivals[done] = 0
    waiting = wave.state == BARRIER
    free: Array = waiting & done[np.where(waiting, wave.key, 0)]
    if len(keys):
        if wave.races:
            wave.races.barrier(np.unique(keys // _NAMES))
        wave.part(_Votes).settle(wave, free)
        wave.release(free)
    return free


class _Votes:
    """The predicates of waiting lanes and the destinations of their results: (lanes, target)."""

    def __init__(self, wave: Wave) -> None:
        self.said = np.zeros(wave.lanes, bool)
        self.pending: list[tuple[Array, Callable[[Array, Array, Array], None]]] = []

    def settle(self, wave: Wave, free: Array) -> None:
        """Write the number of true predicates and of participants for the released lanes."""
        if not self.pending:
            return
        size = wave.blocks * _NAMES
        yes, all_ = (np.bincount(wave.key[free & lanes], minlength=size)[wave.key] for lanes in (self.said, free))
        for lanes, write in self.pending:
            write(lanes & free, yes, all_)
        self.pending = [(lanes & ~free, write) for lanes, write in self.pending if (lanes & ~free).any()]


def _vote(wave: Wave, instruction: Instruction) -> Callable[[Array], None]:
    """Return the reduction of bar.red: popc counts the lanes with a true predicate; `and` and `or` combine all
    of them.
    """
    name, predicate = instruction.word(0), instruction.word(-1)
    target = wave.registers.write(name, "u32") if instruction.has("popc") else wave.registers.array(name)

    def write(lanes: Array, yes: Array, all_: Array) -> None:
        assign(target, yes if instruction.has("popc") else yes == all_ if instruction.has("and") else yes > 0, lanes)

    def voted(lanes: Array) -> None:
        votes = wave.part(_Votes)
        votes.said[lanes] = wave.registers.condition(predicate)[lanes]
        votes.pending.append((lanes.copy(), write))

    return voted


def _check(number: Array, needed: Array) -> None:
    if (number >= _NAMES).any():
        raise FaultError(f"barrier {int(number.max())}: a block has {_NAMES}")
    if (needed % WARP).any():
        raise FaultError(
            f"a barrier of {int(needed[needed % WARP != 0][0])} threads: it must be a multiple of the warp size"
        )


def _cluster_barrier(wave: Wave, instruction: Instruction, at: int) -> Step:
    """Decode barrier.cluster: arrive counts the lanes of a cluster, wait blocks until all have arrived."""
    arrives = instruction.has("arrive")

    def arrived(mask: Mask) -> Mask:
        state = wave.part(ClusterState)
        lanes = wave.running(mask)
        if (state.arrived & lanes).any():
            raise FaultError("barrier.cluster.arrive twice without a wait")
        state.arrived |= lanes
        state.complete()
        return None

    def waited(mask: Mask) -> Mask:
        state = wave.part(ClusterState)
        lanes = wave.running(mask)
        if (~state.arrived & ~state.passed & lanes).any():
            raise FaultError("barrier.cluster.wait without an arrive")
        stay = lanes & ~state.passed
        state.passed &= ~lanes | stay
        if not stay.any():
            return None
        wave.park(stay, at, CLUSTER)
        return lanes & ~stay

    return arrived if arrives else waited


class ClusterState:
    """The lanes that have arrived at the cluster's barrier, and those that may pass it."""

    def __init__(self, wave: Wave) -> None:
        self._wave = wave
        self.arrived, self.passed = np.zeros(wave.lanes, bool), np.zeros(wave.lanes, bool)

    def complete(self) -> None:
        """Release the clusters in which every lane has arrived or exited."""
        width = self._wave.lanes_of_block * self._wave.cluster
        left = self._wave.state == LEFT
        all_there = np.repeat((self.arrived | left).reshape(-1, width).all(1), width) & ~left
        self.passed |= all_there
        self.arrived &= ~all_there
        self._wave.release((self._wave.state == CLUSTER) & all_there)


DECODERS: Mapping[str, Decoder] = {"bar": _block_barrier, "barrier": _block_barrier}
