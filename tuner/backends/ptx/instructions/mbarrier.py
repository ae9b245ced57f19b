"""mbarrier: phases of arrivals and transaction bytes in shared memory; and st.async, whose bytes an mbarrier counts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tuner.backends.ptx.instructions.access import addresses
from tuner.backends.ptx.state.machine import Decoder, Step
from tuner.backends.ptx.state.memory import FaultError
from tuner.backends.ptx.state.values import Array, Mask, UnsupportedError, assign
from tuner.backends.ptx.state.wave import PHASE, Wave
from tuner.backends.ptx.text.parse import BYTES, Instruction

_MOST = (1 << 20) - 1  # maximum count of arrivals and of bytes


@dataclass
class Barrier:
    """One mbarrier. Its phase ends when no arrivals and no bytes are pending."""

    expected: int
    pending: int
    nbytes: int = 0
    phase: int = 0
    unfenced: int = -1  # the lane that initialised it without a later fence, or -1


class Barriers:
    """The mbarriers of a wave by their offset in shared memory."""

    def __init__(self, wave: Wave) -> None:
        self._wave = wave
        self._known: dict[int, Barrier] = {}

    def make(self, offset: int, count: int, lane: int) -> None:
        if offset in self._known:
            raise FaultError("mbarrier.init of a live mbarrier")
        if not 1 <= count <= _MOST:
            raise FaultError(f"mbarrier.init of {count} arrivals: 1 to {_MOST}")
        self._known[offset] = Barrier(count, count, unfenced=lane if self._wave.strict else -1)

    def publish(self, lanes: Array) -> None:
        """Record that `lanes` ([lanes] bool) executed fence.mbarrier_init or fence.proxy.async."""
        for barrier in self._known.values():
            if barrier.unfenced >= 0 and lanes[barrier.unfenced]:
                barrier.unfenced = -1

    def drop(self, offset: int) -> None:
        self.at(offset)
        del self._known[offset]

    def at(self, offset: int) -> Barrier:
        if offset not in self._known:
            block, offset_in_block = divmod(offset, self._wave.shared.stride)
            raise FaultError(f"no mbarrier at offset {offset_in_block} of block {block}: initialise it first")
        return self._known[offset]

    def expect(self, offset: int, nbytes: int) -> None:
        barrier = self.at(offset)
        barrier.nbytes += nbytes
        if abs(barrier.nbytes) > _MOST:
            raise FaultError(f"an mbarrier expects {barrier.nbytes} bytes, but the limit is {_MOST}")

    def arrive(self, offset: int, count: int = 1) -> int:
        """Arrive, and return the current phase."""
        barrier = self.at(offset)
        phase = barrier.phase
        if barrier.pending < count:
            raise FaultError(f"more arrivals than the {barrier.expected} that an mbarrier expects")
        barrier.pending -= count
        self._end(offset, barrier)
        return phase

    def complete(self, offset: int, nbytes: int) -> None:
        barrier = self.at(offset)
        if barrier.unfenced >= 0:
            raise FaultError("a copy counts on an mbarrier without a fence.mbarrier_init after its mbarrier.init")
        barrier.nbytes -= nbytes
        self._end(offset, barrier)

    def _end(self, offset: int, barrier: Barrier) -> None:
        if barrier.pending or barrier.nbytes:
            return
        barrier.phase += 1
        barrier.pending = barrier.expected
        waiting = (self._wave.state == PHASE) & (self._wave.key == offset)
        if waiting.any():
            self._wave.release(waiting)


def located(wave: Wave, instruction: Instruction, operand: int) -> Callable[[Mask], tuple[Array, Array]]:
    """Return the lanes and, for each, the offset of its barrier."""
    at = addresses(wave, instruction.address(operand), "shared")

    def locate(mask: Mask) -> tuple[Array, Array]:
        lanes = wave.numbers(mask)
        return lanes, wave.shared.locate(at(lanes), lanes, 8)

    return locate


def _value(wave: Wave, instruction: Instruction, operand: int, default: int) -> Array:
    has_count = len(instruction.operands) > operand
    value = wave.registers.read(instruction.word(operand), "u32") if has_count else np.array(default)
    return np.broadcast_to(value, wave.lanes)


def _each(wave: Wave, instruction: Instruction, act: Callable[[int, int, int], object], default: int) -> Step:
    """Return a step that calls `act(offset, value, lane)` for every lane; the value is the operand after the address,
    if any.
    """
    locate, value = located(wave, instruction, 0), _value(wave, instruction, 1, default)

    def acted(mask: Mask) -> None:
        lanes, offsets = locate(mask)
        for lane, offset in zip(lanes, offsets, strict=True):
            act(int(offset), int(value[lane]), int(lane))

    return acted


def _arrive(wave: Wave, instruction: Instruction) -> Step:
    """Decode arrive, and arrive.expect_tx, which expects the bytes first; the state is the phase number."""
    if instruction.has("noComplete"):
        raise UnsupportedError(instruction.name)
    locate, expects = located(wave, instruction, 1), instruction.has("expect_tx")
    value = _value(wave, instruction, 2, 1)
    state = wave.registers.write(instruction.word(0), "b64")

    def arrived(mask: Mask) -> None:
        lanes, offsets = locate(mask)
        if expects:
            for lane, offset in zip(lanes, offsets, strict=True):
                wave.part(Barriers).expect(int(offset), int(value[lane]))
        for lane, offset in zip(lanes, offsets, strict=True):
            state[lane] = wave.part(Barriers).arrive(int(offset), 1 if expects else int(value[lane]))

    return arrived


def _wait(wave: Wave, instruction: Instruction, at: int) -> Step:
    """Decode test_wait, which polls and yields to other lanes if the phase has not ended, and try_wait, which waits for
    it.
    """
    locate, tries, parity = located(wave, instruction, 1), instruction.has("try_wait"), instruction.has("parity")
    target = wave.registers.array(instruction.word(0))
    kind = "u32" if parity else "u64"
    asked = np.broadcast_to(wave.registers.read(instruction.word(2), kind), wave.lanes)

    def ended(offset: int, lane: int) -> bool:
        phase, wanted = wave.part(Barriers).at(offset).phase, int(asked[lane])
        return phase % 2 != wanted % 2 if parity else phase != wanted

    def waited(mask: Mask) -> Mask:
        lanes, offsets = locate(mask)
        done = np.zeros(wave.lanes, bool)
        done[lanes] = [ended(int(offset), int(lane)) for lane, offset in zip(lanes, offsets, strict=True)]
        here = wave.running(mask)
        assign(target, done, mask)
        late = here & ~done
        if not late.any():
            return None
        if not tries:
            wave.pc[late], wave.slept[late] = at + 1, True
            return here & done
        wave.key[lanes] = offsets
        wave.park(late, at, PHASE)
        return here & done

    return waited


def _store(wave: Wave, instruction: Instruction) -> Step:
    """Decode st.async: stores to shared memory of a block that land late; its barrier counts their bytes."""
    size, sources = BYTES[instruction.type], instruction.words(1)
    values = [np.broadcast_to(wave.registers.read(source, f"b{8 * size}"), wave.lanes) for source in sources]
    to = addresses(wave, instruction.address(0), "shared")
    locate, nbytes = located(wave, instruction, 2), size * len(sources)

    def issued(mask: Mask) -> None:
        lanes, at = locate(mask)
        targets = wave.shared.locate(to(lanes), lanes, nbytes)
        for lane, target, barrier in zip(lanes, targets, at, strict=True):
            if wave.shared.block(int(target)) != wave.shared.block(int(barrier)):
                raise FaultError("st.async and its barrier are in different blocks")
            wave.land(_landing(wave, int(target), np.array([value[lane] for value in values]), int(barrier)))

    return issued


def _landing(wave: Wave, target: int, values: Array, barrier: int) -> Callable[[], None]:
    def land() -> None:
        wave.shared.data[target : target + values.nbytes] = values.view(np.uint8)
        wave.part(Barriers).complete(barrier, values.nbytes)

    return land


def decode(wave: Wave, instruction: Instruction, at: int) -> Step:
    """Decode mbarrier.* and st.async. Raises UnsupportedError for unsupported forms."""
    if instruction.opcode[:2] == ("st", "async"):
        return _store(wave, instruction)
    name = instruction.opcode[1]
    if name == "init":
        return _each(wave, instruction, lambda offset, n, lane: wave.part(Barriers).make(offset, n, lane), 0)
    if name == "inval":
        return _each(wave, instruction, lambda offset, *_: wave.part(Barriers).drop(offset), 0)
    if name == "expect_tx":
        return _each(wave, instruction, lambda offset, n, _: wave.part(Barriers).expect(offset, n), 0)
    if name == "arrive":
        return _arrive(wave, instruction)
    if name in ("test_wait", "try_wait"):
        return _wait(wave, instruction, at)
    raise UnsupportedError(instruction.name)


def _fence(wave: Wave, instruction: Instruction, _: int) -> Step:
    """Decode fence.proxy.async and fence.mbarrier_init; other fences have no effect in the interpreter."""
    proxy = instruction.opcode[1:3] == ("proxy", "async") and not instruction.has("global")
    if not proxy and instruction.opcode[1] != "mbarrier_init":
        return lambda _: None

    def fenced(mask: Mask) -> None:
        lanes = wave.running(mask)
        wave.part(Barriers).publish(lanes)
        if proxy and wave.unfenced:
            wave.unfenced.fence(lanes)

    return fenced


DECODERS: Mapping[str, Decoder] = {"mbarrier": decode, "fence": _fence}
