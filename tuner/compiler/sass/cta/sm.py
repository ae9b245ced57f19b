"""The state of one SM in a replay, and the actions common to all instructions: pipes, counters, and new blocks.

Warps of a warpgroup that run the same code are replayed as one, on a scheduler that represents the four of an SM. The
blocks of a cluster are replayed as one block whose peers do the same at the same time: data sent to a peer arrive at
its own barriers, and a multicast copy also delivers the boxes of its peers.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from tuner.compiler.sass.cta.launch import KernelLaunch, constant_bank
from tuner.compiler.sass.cta.operands import Line, Operand
from tuner.compiler.sass.cta.program import PIPES, Program, Step
from tuner.compiler.sass.cta.rates import Rates
from tuner.compiler.sass.cta.registers import LANES, WARP, Mask, Registers
from tuner.compiler.sass.cta.state import Context, Cta, Group, Missing, Trace, full
from tuner.compiler.sass.cta.units import LINE, Copies, Instructions, TensorCores
from tuner.compiler.sass.instruction_timing import QUEUE_ENTRIES
from tuner.errors import UsageError

MEMORY = PIPES.index("memory")
_PROLOGUE = 1e6  # cycles within which every warpgroup reaches its first product


class SM:
    """One SM, which executes the blocks `numbers` in order, `launch.resident` at a time.

    With `alone`, these warpgroups never wait, and the others run only up to their first product: the trace contains the
    loads, but no meaningful times.
    """

    def __init__(
        self,
        program: Program,
        launch: KernelLaunch,
        rates: Rates,
        numbers: Sequence[int],
        missing: Missing | None = None,
        alone: frozenset[int] | None = None,
    ) -> None:
        self.trace = Trace()
        self.program, self.launch, self.rates = program, launch, rates
        self.alone = alone
        self.copies, self.tensor_cores = Copies(rates, missing), TensorCores(rates)
        self.running: list[Context] = []
        self.live = 0  # blocks
        self.cycle = 0.0  # earliest time of the scheduler's next instruction
        self.free = [0.0] * len(PIPES)  # time at which each pipe accepts the next instruction
        self.left: deque[float] = deque(maxlen=QUEUE_ENTRIES)  # time at which the last accesses left the memory queue
        self.events: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = deque(numbers)
        self._sequence = 0
        self._bank = constant_bank(launch)
        self._code = Instructions(rates, len(program.steps))

    def at(self, time: float, event: Callable[[float], None]) -> None:
        """Call `event` at a given time."""
        self._sequence += 1
        heapq.heappush(self.events, (time, self._sequence, event))

    def occupy(self, context: Context, step: Step, time: float) -> None:
        """Occupy the pipe of an instruction, and raise its counters."""
        timing = step.timing
        start = max(time, self.free[step.pipe]) if timing.queued else time
        self.free[step.pipe] = start + timing.interval
        if step.pipe == MEMORY:
            self.left.append(start)
            if step.wavefronts:
                self.tensor_cores.access(start, float(step.wavefronts))
        if timing.result is not None:
            raise_counter(context, timing.result, start + timing.latency)
        if timing.read is not None:
            raise_counter(context, timing.read, start + timing.read_latency)

    def advance(self, context: Context, position: int) -> None:
        """Set the context's next instruction, and the time from which its control bits let it issue."""
        context.position = position
        step = self.program.steps[position]
        time, cause = context.ready, "fixed latencies"
        for counter in step.timing.waits:
            if context.counters[counter] > time:
                time, cause = context.counters[counter], "counters"
        if step.timing.at_most and context.counters[step.timing.at_most[0]] > time:
            time, cause = context.counters[step.timing.at_most[0]], "copies"
        if step.groups >= 0 and len(context.groups) > step.groups:
            until = context.groups[-step.groups - 1]
            if until > time:
                time, cause = until, "wgmma"
        if not self._code.present[position // LINE]:
            until = self._code.fetch(position // LINE, time)
            if until > time:
                time, cause = until, "instructions"
        context.time, context.cause = time, cause

    def following(self, context: Context) -> None:
        """Advance to the next instruction in the code."""
        self.advance(context, context.position + 1)

    # Blocks.

    def start(self, time: float) -> None:
        """Start the next block, if one is left."""
        if not self._numbers:
            return
        cta = Cta(self._numbers.popleft())
        self.live += 1
        self.trace.blocks += 1
        for first in range(0, self.launch.threads, LANES):
            thread = np.arange(first, first + LANES, dtype=np.uint32)
            alive = thread < self.launch.threads
            group = Group(cta, Registers(self._bank, _special_registers(cta, thread, self.launch)), alive)
            cta.groups.append(group)
            follows = self.alone is not None and first // LANES in self.alone
            begin = (
                time + _PROLOGUE if follows else time
            )  # after the data that the others store before their first product
            context = Context(group, alive.copy(), 0, begin, whole=bool(alive.all()))
            self.running.append(context)
            self.advance(context, 0)

    def ended(self, cta: Cta, time: float) -> None:
        """Replace a block once all its threads have exited."""
        if any(group.alive.any() for group in cta.groups):
            return
        self.live -= 1
        landed = self.copies.stored and self.copies.stored + self.rates.l2_latency
        self.trace.end = max(self.trace.end, time, landed)
        self.at(time + self.rates.block_start, self.start)


def _special_registers(cta: Cta, thread: np.ndarray, launch: KernelLaunch) -> dict[str, np.ndarray]:
    x, y, _ = launch.grid
    lane_bit = (1 << (thread % WARP).astype(np.uint64)).astype(np.uint32)
    return {
        "SR_TID.X": thread,
        "SR_LANEID": thread % np.uint32(WARP),
        "SR_LTMASK": lane_bit - np.uint32(1),
        "SR_EQMASK": lane_bit,
        "SR_CgaCtaId": full(cta.number % launch.cluster),
        "SR_CTAID.X": full(cta.number % x),
        "SR_CTAID.Y": full(cta.number // x % y),
        "SR_CTAID.Z": full(cta.number // (x * y)),
        **{name: full(0) for name in ("SR_TID.Y", "SR_TID.Z", "SRZ", "SR_SWINHI", "SR_SWINLO")},
    }


def guarded_mask(context: Context, line: Line) -> Mask | None:
    """Return the lanes for which an instruction's guard holds; None: all of the warpgroup."""
    if line.guard is None:
        return None if context.whole else context.mask
    flag = context.group.registers.flags[line.guard.file][line.guard.number]
    if flag is None:
        return context.mask
    return context.mask & (~flag if line.guard_negated else flag)


def active_lanes(context: Context, line: Line) -> Mask:
    """Return the lanes that execute an instruction."""
    mask = guarded_mask(context, line)
    return context.mask if mask is None else mask


def scalar(registers: Registers, operand: Operand, active: Mask) -> int:
    """Return the value of an operand in the first active lane. Raises UsageError if it depends on data."""
    value = registers.value(operand)
    if value is None:
        raise UsageError(f"{operand.text} depends on data, and decides what a warp waits for")
    return int(value[int(active.argmax())])


def raise_counter(context: Context, counter: int, until: float) -> None:
    """Keep a scoreboard of the warp raised until a given time."""
    context.counters[counter] = max(context.counters[counter], until)
