"""Warp collectives: shuffles, votes, reductions and warp synchronization."""

from collections.abc import Callable, Mapping
from functools import reduce

import numpy as np

from tuner.backends.ptx.instructions.arithmetic import MAXIMUM, MAXIMUM_NAN, MINIMUM, MINIMUM_NAN
from tuner.backends.ptx.state.machine import Decoder, Step
from tuner.backends.ptx.state.values import DTYPES, JOINED, Array, Mask, UnsupportedError, assign
from tuner.backends.ptx.state.wave import WARP, Wave
from tuner.backends.ptx.text.parse import Instruction


def together(wave: Wave, at: int, width: int, body: Callable[[Mask], None], members: Array | None = None) -> Step:
    """Return a step that groups of `width` lanes, or the lanes in each lane's `members` bits, execute together."""

    def step(mask: Mask) -> Mask:
        partners = None if members is None or bool((members == np.uint32(0xFFFFFFFF)).all()) else members
        ready = wave.meet(mask, at, width, partners)
        if ready is None:
            body(mask)
            return None
        if ready.any():
            body(ready)
        return ready

    return step


def _members(wave: Wave, name: str) -> Array:
    return np.broadcast_to(wave.registers.read(name, "u32"), wave.lanes)


def _shuffle(wave: Wave, instruction: Instruction, at: int) -> Step:
    """Decode shfl.sync: `c` holds the last readable lane, and from bit 8 on the segment mask (PTX ISA, shfl.sync)."""
    mode, registers = instruction.opcode[2], wave.registers
    names = instruction.word(0).split("|")
    target = registers.write(names[0], "b32")
    valid = registers.array(names[1]) if len(names) > 1 else np.zeros(wave.lanes, bool)
    a, b, c = (registers.read(instruction.word(i), "u32") for i in (1, 2, 3))
    lane = np.arange(wave.lanes, dtype=np.int64) % WARP
    warp = np.arange(wave.lanes, dtype=np.int64) - lane

    def shuffled(mask: Mask) -> None:
        by, clamp, segment = (b & 31).astype(np.int64), (c & 31).astype(np.int64), (c >> 8 & 31).astype(np.int64)
        last = (lane & segment) | (clamp & ~segment)
        if mode == "up":
            source = lane - by
            inside = source >= last
        elif mode == "idx":
            source = (lane & segment) | (by & ~segment)
            inside = source <= last
        else:
            source = lane + by if mode == "down" else lane ^ by
            inside = source <= last
        source_lane = warp + np.where(inside, source, lane)
        # The value of a lane that does not participate is undefined.
        there = True if mask is None else mask[source_lane]
        assign(target, np.where(there, np.broadcast_to(a, wave.lanes)[source_lane], np.uint32(0xFFFFFFFF)), mask)
        assign(valid, inside, mask)

    return together(wave, at, WARP, shuffled, _members(wave, instruction.word(4)))


def _bits(lanes: Array) -> Array:
    """Return, for each lane, the set lanes of its warp as bits."""
    words = np.packbits(lanes.reshape(-1, WARP), axis=1, bitorder="little").view(np.uint32)
    return np.repeat(words[:, 0], WARP)


def _vote(wave: Wave, instruction: Instruction, at: int) -> Step:
    mode, registers = instruction.opcode[2], wave.registers
    source = instruction.word(1)
    ballot = mode == "ballot"
    target = registers.write(instruction.word(0), "b32") if ballot else registers.array(instruction.word(0))
    members = _members(wave, instruction.word(2))

    def voted(mask: Mask) -> None:
        votes = _bits(registers.condition(source) & wave.running(mask)) & members
        results = {
            "ballot": votes,
            "any": votes != 0,
            "all": votes == members,
            "uni": (votes == 0) | (votes == members),
        }
        assign(target, results[mode], mask)

    return together(wave, at, WARP, voted, members)


def _reduce(wave: Wave, instruction: Instruction, at: int) -> Step:
    """Decode redux.sync. For floats and their magnitudes, NaN results if all are NaN or, with `.NaN`, if any is."""
    kind, name, prevails = instruction.type, instruction.opcode[2], instruction.has("NaN")
    supported = (name, prevails) in _REDUCED_FLOATS if kind == "f32" else name in JOINED
    if not supported:
        raise UnsupportedError(instruction.name)
    function, neutral = _REDUCED_FLOATS[name, prevails] if kind == "f32" else (JOINED[name], _neutral(name, kind))
    target = wave.registers.write(instruction.word(0), kind)
    value = np.broadcast_to(wave.registers.read(instruction.word(1), kind), wave.lanes)
    members, sizes = _members(wave, instruction.word(2)), instruction.has("abs")

    def reduced(mask: Mask) -> None:
        taking = (members[:, None] >> np.arange(WARP, dtype=np.uint32) & np.uint32(1)).astype(bool)
        warps = np.repeat((np.abs(value) if sizes else value).reshape(-1, WARP), WARP, axis=0)
        assign(target, reduce(function, np.where(taking, warps, neutral).T), mask)

    return together(wave, at, WARP, reduced, members)


# By operation and NaN mode: the function, and the value of lanes that do not participate.
_REDUCED_FLOATS: Mapping[tuple[str, bool], tuple[Callable[[Array, Array], Array], float]] = {
    ("min", False): (MINIMUM, np.nan),
    ("max", False): (MAXIMUM, np.nan),
    ("min", True): (MINIMUM_NAN, np.inf),
    ("max", True): (MAXIMUM_NAN, -np.inf),
}


def _neutral(name: str, kind: str) -> int:
    """Return the neutral element of a reduction."""
    limits = np.iinfo(DTYPES[kind])
    ones = -1 if limits.min else limits.max
    return {"min": limits.max, "max": limits.min, "and": ones}.get(name, 0)


def _active(wave: Wave, instruction: Instruction, _: int) -> Step:
    target = wave.registers.write(instruction.word(0), "b32")

    def asked(mask: Mask) -> None:
        assign(target, _bits(wave.running(mask)), mask)

    return asked


def _elect(wave: Wave, instruction: Instruction, at: int) -> Step:
    """Decode elect.sync: elects the lowest lane of a warp, although PTX permits any."""
    names = instruction.word(0).split("|")
    target, chosen = wave.registers.write(names[0], "b32"), wave.registers.array(names[1])
    lane = np.arange(wave.lanes) % WARP

    members = _members(wave, instruction.word(1))

    def elected(mask: Mask) -> None:
        lowest = members & (~members + np.uint32(1))
        assign(target, np.log2(lowest).astype(np.uint32), mask)
        assign(chosen, lowest == np.uint32(1) << lane.astype(np.uint32), mask)

    return together(wave, at, WARP, elected, members)


def _match(wave: Wave, instruction: Instruction, at: int) -> Step:
    """Decode match.sync: the members with the same value (`any`), or all of them if they agree (`all`)."""
    names = instruction.word(0).split("|")
    target, agree = wave.registers.write(names[0], "b32"), wave.registers.array(names[1]) if len(names) > 1 else None
    value = np.broadcast_to(wave.registers.read(instruction.word(1), instruction.type), wave.lanes)
    members, everybody = _members(wave, instruction.word(2)), instruction.has("all")

    def matched(mask: Mask) -> None:
        warps = np.repeat(value.reshape(-1, WARP), WARP, axis=0)  # [lanes, lanes of the warp]
        equal = np.packbits(warps == value[:, None], axis=1, bitorder="little").view(np.uint32)[:, 0] & members
        same = equal == members
        assign(target, np.where(same, members, 0) if everybody else equal, mask)
        if agree is not None:
            assign(agree, same, mask)

    return together(wave, at, WARP, matched, members)


def _nothing(_: Mask) -> None:
    """Do nothing: the interpreter's memory is sequentially consistent."""


def sync_warp(wave: Wave, instruction: Instruction, at: int) -> Step:
    return together(wave, at, WARP, _nothing, _members(wave, instruction.word(0)))


DECODERS: Mapping[str, Decoder] = {
    "shfl": _shuffle,
    "vote": _vote,
    "redux": _reduce,
    "activemask": _active,
    "elect": _elect,
    "match": _match,
}
