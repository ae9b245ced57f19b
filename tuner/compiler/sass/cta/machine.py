"""Executes the warps of the CTAs on one SM in the order of their times: issue, pipes, barriers, copies and products.

Warps of a warpgroup that run the same code are replayed as one, on a scheduler that stands for the four of an SM. The
blocks of a cluster are replayed as one whose peers do the same at the same time: what it sends to a peer arrives at its
own barriers, and a multicast copy brings what its peers copy, too.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from tuner.compiler.sass.cta.launch import PARAMETER_ADDRESS, Box, KernelLaunch, constant_bank
from tuner.compiler.sass.cta.memory import INSIDE, access_local, access_shared
from tuner.compiler.sass.cta.operands import Line, Operand
from tuner.compiler.sass.cta.program import PIPES, Kind, Program, Step, ends
from tuner.compiler.sass.cta.rates import Rates
from tuner.compiler.sass.cta.registers import LANES, WARP, Mask, Registers
from tuner.compiler.sass.cta.state import Barrier, Context, Cta, Group, Missing, Trace, full, whole_warps
from tuner.compiler.sass.cta.units import Copies, TensorCores
from tuner.compiler.sass.instruction_timing import QUEUE_ENTRIES
from tuner.errors import UsageError

_MEMORY = PIPES.index("memory")
_FOREVER = float("inf")


class Machine:
    """One SM, to which the blocks `numbers` come one after another, `launch.resident` at a time.

    With `alone`, only these warpgroups run, which wait for nothing: what they load is found in the trace, and no times.
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
        self._steps, self._launch, self._rates = program.steps, launch, rates
        self._numbers = deque(numbers)
        self._alone = alone
        self._copies, self._tensor_cores = Copies(rates, missing), TensorCores(rates)
        self._distances = program.distances
        self._running: list[Context] = []
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._sequence = 0
        self._cycle = 0.0
        self._free = [0.0] * len(PIPES)
        self._left: deque[float] = deque(maxlen=QUEUE_ENTRIES)
        self._live = 0
        self._last: Context | None = None
        self._bank = constant_bank(launch)

    def run(self) -> Trace:
        """Until the last block has ended."""
        for _ in range(self._launch.resident):
            self._start(0.0)
        while True:
            context, time = self._next()
            if self._events and self._events[0][0] <= time:
                at, _, event = heapq.heappop(self._events)
                event(at)
            elif context is None:
                if self._live:
                    raise UsageError(
                        f"the replay deadlocks with {self._live} blocks on an SM: their warps wait at barriers"
                    )
                self.trace.loaded, self.trace.products = self._copies.loaded, self._tensor_cores.cycles
                return self.trace
            else:
                self._issue(context, time)

    # Which instruction is next.

    def _next(self) -> tuple[Context | None, float]:
        best, best_time = None, _FOREVER
        for context in self._running:
            time = context.time
            if time >= best_time:
                continue
            step = self._steps[context.position]
            timing = step.timing
            if step.kind is Kind.PRODUCT:
                time = max(time, self._tensor_cores.admits(step))
            elif step.pipe:
                if not timing.queued:
                    time = max(time, self._free[step.pipe])
                elif step.pipe == _MEMORY and len(self._left) == QUEUE_ENTRIES:
                    time = max(time, self._left[0])
            if time < best_time or (time == best_time and context is self._last):
                best, best_time = context, time
        return best, max(best_time, self._cycle)

    def _issue(self, context: Context, time: float) -> None:
        self._cycle, self._last = time + 1, context
        step = self._steps[context.position]
        timing, line = step.timing, step.line
        self.trace.issued += 1
        if time > context.ready + 8:
            key = context.position, context.cause
            self.trace.stalls[key] = self.trace.stalls.get(key, 0.0) + time - context.ready
        context.ready = time + timing.stall
        if step.kind is Kind.PLAIN:
            if step.pipe:
                self._occupy(context, step, time)
            elif timing.result is not None:
                _raise(context, timing.result, time + timing.latency)
            if step.evaluate is not None:
                mask = self._mask(context, line)
                if mask is None or mask.any():
                    step.evaluate(line, context.group.registers, mask)
            self._advance(context, context.position + 1)
        else:
            _HANDLERS[step.kind](self, context, step, time)

    def _occupy(self, context: Context, step: Step, time: float) -> None:
        timing = step.timing
        start = max(time, self._free[step.pipe]) if timing.queued else time
        self._free[step.pipe] = start + timing.interval
        if step.pipe == _MEMORY:
            self._left.append(start)
            if step.wavefronts:
                self._tensor_cores.access(start, float(step.wavefronts))
        if timing.result is not None:
            _raise(context, timing.result, start + timing.latency)
        if timing.read is not None:
            _raise(context, timing.read, start + timing.read_latency)

    def _advance(self, context: Context, position: int) -> None:
        """The context's next instruction, and when its control bits let it issue."""
        context.position = position
        step = self._steps[position]
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
        context.time, context.cause = time, cause

    def _mask(self, context: Context, line: Line) -> Mask | None:
        """Lanes for which an instruction's guard holds; None: all of the warpgroup."""
        if line.guard is None:
            return None if context.whole else context.mask
        flag = context.group.registers.flags[line.guard.file][line.guard.number]
        if flag is None:
            return context.mask
        return context.mask & (~flag if line.guard_negated else flag)

    def _active(self, context: Context, line: Line) -> Mask:
        """Lanes that execute an instruction."""
        mask = self._mask(context, line)
        return context.mask if mask is None else mask

    def _at(self, time: float, event: Callable[[float], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (time, self._sequence, event))

    # Blocks.

    def _start(self, time: float) -> None:
        if not self._numbers:
            return
        cta = Cta(self._numbers.popleft())
        self._live += 1
        self.trace.blocks += 1
        launch = self._launch
        x, y, _ = launch.grid
        for first in range(0, launch.threads, LANES):
            thread = np.arange(first, first + LANES, dtype=np.uint32)
            special = {
                "SR_TID.X": thread,
                "SR_LANEID": thread % np.uint32(WARP),
                "SR_LTMASK": (1 << (thread % WARP).astype(np.uint64)).astype(np.uint32) - np.uint32(1),
                "SR_EQMASK": (1 << (thread % WARP).astype(np.uint64)).astype(np.uint32),
                "SR_CgaCtaId": full(cta.number % launch.cluster),
                "SR_CTAID.X": full(cta.number % x),
                "SR_CTAID.Y": full(cta.number // x % y),
                "SR_CTAID.Z": full(cta.number // (x * y)),
                **{name: full(0) for name in ("SR_TID.Y", "SR_TID.Z", "SRZ", "SR_SWINHI", "SR_SWINLO")},
            }
            alive = thread < launch.threads
            if self._alone is not None and first // LANES not in self._alone:
                continue
            group = Group(cta, Registers(self._bank, special), alive)
            cta.groups.append(group)
            context = Context(group, alive.copy(), 0, time, whole=bool(alive.all()))
            self._running.append(context)
            self._advance(context, 0)

    def _ended(self, context: Context, mask: Mask, time: float) -> None:
        group = context.group
        group.alive = group.alive & ~mask
        cta = group.cta
        for place in list(group.waiting):
            self._release(group, place, time)
        if not any(each.alive.any() for each in cta.groups):
            self._live -= 1
            landed = self._copies.stored and self._copies.stored + self._rates.l2_latency
            self.trace.end = max(self.trace.end, time, landed)
            self._at(time + self._rates.block_start, self._start)

    # Branches.

    def _branch(self, context: Context, step: Step, _: float) -> None:
        line, registers = step.line, context.group.registers
        after, target = context.position + 1, line.instruction.target
        if target is None:
            raise UsageError(f"{line.name}.{'.'.join(line.modifiers)} has no target that is known")
        if line.has("DIV"):
            return self._advance(context, after)
        flag = None if line.guard is None else registers.flags[line.guard.file][line.guard.number]
        if line.guard is not None and flag is None:
            nearer = self._distances[target] < self._distances[after]
            return self._advance(context, target if nearer else after)
        taken = context.mask.copy()
        if line.guard is not None and flag is not None:
            taken &= ~flag if line.guard_negated else flag
        if line.operands and line.operands[0].register is not None:  # a second condition
            second = registers.flag(line.operands[0])
            taken &= second if second is not None else False
        if line.has("ANY"):
            taken = np.repeat(taken.reshape(-1, WARP).any(1), WARP) & context.mask
        if not taken.any():
            return self._advance(context, after)
        if (taken == context.mask).all():
            return self._advance(context, target)
        other = self._split(context, taken)
        self._advance(other, target)
        return self._advance(context, after)

    def _split(self, context: Context, mask: Mask) -> Context:
        """A context of its own for some lanes."""
        other = context.split(mask)
        if (whole_warps(context.mask) & mask).any():
            context.suspended.append(other)  # uniform registers are those of a warp: one side at a time
        else:
            self._running.append(other)
        return other

    def _leave(self, context: Context, time: float) -> None:
        """The context waits for others or has exited: what it has suspended runs."""
        self._running.remove(context)
        for other in context.suspended:
            other.ready = max(other.ready, time)
            other.time = max(other.time, time)
            self._running.append(other)
        context.suspended = []

    def _exit(self, context: Context, step: Step, time: float) -> None:
        mask = self._mask(context, step.line)
        leaving = context.mask if mask is None else mask
        if not leaving.any():
            return self._advance(context, context.position + 1)
        if (leaving == context.mask).all():
            self._leave(context, time)
        else:
            context.mask, context.whole = context.mask & ~leaving, False
            self._advance(context, context.position + 1)
        return self._ended(context, leaving, time)

    def _diverge(self, context: Context, step: Step, _: float) -> None:
        context.converge[step.line.operands[0].text] = context.mask.copy()
        self._advance(context, context.position + 1)

    def _converge(self, context: Context, _: Step, time: float) -> None:
        self._join(context, time)

    def _gather(self, context: Context, _: Step, time: float) -> None:
        self._join(context, time)

    def _join(self, context: Context, time: float) -> None:
        if context.whole:
            return self._advance(context, context.position + 1)
        self._leave(context, time)
        context.group.waiting.setdefault(context.position, []).append(context)
        return self._release(context.group, context.position, time)

    def _release(self, group: Group, place: int, time: float) -> None:
        """Lanes that wait at one place continue together once those of their warps that will come have come."""
        waiting = group.waiting.get(place, [])
        if not waiting:
            return
        came = np.logical_or.reduce([context.mask for context in waiting])
        if self._steps[place].kind is Kind.GATHER:
            expected = group.alive
        else:
            operands = self._steps[place].line.operands
            masks = [context.converge.get(operands[0].text, context.mask) for context in waiting] if operands else []
            expected = whole_warps(came) & group.alive
            if masks:
                expected &= np.logical_or.reduce(masks)
        if (expected & ~came).any():
            return
        del group.waiting[place]
        first = waiting[0]
        first.merge(waiting[1:], time)
        self._running.append(first)
        self._advance(first, place + 1)

    # Barriers.

    def _bar(self, context: Context, step: Step, time: float) -> None:
        line, registers, cta = step.line, context.group.registers, context.group.cta
        active = self._active(context, line)
        if not active.any():
            return self._advance(context, context.position + 1)
        name = self._scalar(registers, line.operands[0], active)
        threads = self._launch.threads
        if len(line.operands) > 1:
            threads = self._scalar(registers, line.operands[1], active)
        lanes = int(active.reshape(-1, WARP).any(1).sum()) * WARP
        return self._arrive_named(context, cta, (name, threads, lanes), line.has("SYNC"), time)

    def _cluster_bar(self, context: Context, _: Step, time: float) -> None:
        cta = context.group.cta
        alive = sum(int(group.alive.sum()) for group in cta.groups)
        self._arrive_named(context, cta, (-1, alive, int(context.mask.sum())), True, time)

    def _arrive_named(
        self, context: Context, cta: Cta, arrival: tuple[int, int, int], waits: bool, time: float
    ) -> None:
        if self._alone is not None:
            return self._advance(context, context.position + 1)
        name, threads, lanes = arrival
        came, waiting = cta.named.get(name, (0, []))
        came += lanes
        if waits:
            self._running.remove(context)
            waiting = [*waiting, context]
        else:
            self._advance(context, context.position + 1)
        if came < threads:
            cta.named[name] = came, waiting
            return None
        cta.named[name] = 0, []
        release = time + (self._rates.remote if name < 0 else self._rates.barrier)
        for each in waiting:
            each.ready = max(each.ready, release)
            self._running.append(each)
            self._advance(each, each.position + 1)
        return None

    def _scalar(self, registers: Registers, operand: Operand, active: Mask) -> int:
        value = registers.value(operand)
        if value is None:
            raise UsageError(f"{operand.text} depends on data, and decides what a warp waits for")
        return int(value[int(active.argmax())])

    def _mbarrier(self, context: Context, step: Step, time: float) -> None:
        line, registers, cta = step.line, context.group.registers, context.group.cta
        active = self._active(context, line)
        if not active.any():
            return self._advance(context, context.position + 1)
        address = registers.address(line.operands[1])
        if address is None:
            raise UsageError(f"the address of {line.instruction.name} depends on data")
        first = int(active.argmax())
        place = int(address[first]) & INSIDE
        if line.has("EXCH"):
            low = self._scalar(registers, line.operands[2], active)
            count = (1 << 20) - (low >> 1 & 0xFFFFF)
            cta.barriers[place] = Barrier(count, count)
            return self._advance(context, context.position + 1)
        if line.has("PHASECHK"):
            parity = self._scalar(registers, line.operands[2], active) >> 31 & 1
            registers.write_flag(line.operands[0].register, np.ones(LANES, np.bool_), context.mask)
            if self._alone is not None:
                return self._advance(context, context.position + 1)
            barrier = self._barrier(cta, place)
            if barrier.phase & 1 != parity:
                if step.timing.result is not None:
                    _raise(context, step.timing.result, time + self._rates.try_wait)
                return self._advance(context, context.position + 1)
            self._running.remove(context)
            barrier.waiters.append((context, parity))
            return None
        if self._alone is not None:
            return self._advance(context, context.position + 1)
        if not line.has("ARRIVE"):
            raise UsageError(f"SYNCS.{'.'.join(line.modifiers)} is not replayed")
        one = line.has("A1T0")
        value = registers.value(line.operands[2])
        for lane in np.flatnonzero(active):
            where = int(address[lane])
            rank = where >> 24 & 0xFF
            remote = line.has("RED") and rank != cta.number % self._launch.cluster
            nbytes = 0 if one or value is None else int(value[lane])
            delay = self._rates.remote if remote else self._rates.arrive
            if nbytes:
                self._barrier(cta, where & INSIDE).expected += nbytes
            self._at(time + delay, lambda at, where=where: self._arrived(cta, where & INSIDE, at))  # type: ignore[misc]
        return self._advance(context, context.position + 1)

    def _barrier(self, cta: Cta, place: int) -> Barrier:
        if place not in cta.barriers:
            raise UsageError(f"no mbarrier at {place:#x} of shared memory")
        return cta.barriers[place]

    def _arrived(self, cta: Cta, place: int, time: float) -> None:
        barrier = self._barrier(cta, place)
        barrier.pending -= 1
        self._complete(barrier, time)

    def _copied(self, cta: Cta, place: int, nbytes: int, time: float) -> None:
        barrier = self._barrier(cta, place)
        barrier.expected -= nbytes
        self._complete(barrier, time)

    def _complete(self, barrier: Barrier, time: float) -> None:
        if barrier.pending > 0 or barrier.expected > 0:
            return
        barrier.phase += 1
        barrier.pending = barrier.count
        waiters, barrier.waiters = barrier.waiters, []
        for context, parity in waiters:
            if barrier.phase & 1 == parity:
                barrier.waiters.append((context, parity))
                continue
            step = self._steps[context.position]
            context.ready = max(context.ready, time)
            if step.timing.result is not None:
                _raise(context, step.timing.result, time + self._rates.try_wait)
            self._running.append(context)
            self._advance(context, context.position + 1)

    # Copies.

    def _load_tile(self, context: Context, step: Step, time: float) -> None:
        line, registers, cta = step.line, context.group.registers, context.group.cta
        active = self._active(context, line)
        if not active.any():
            return self._advance(context, context.position + 1)
        lane, base = int(active.argmax()), line.operands[0].terms[0].number
        rank = next(int(modifier[0]) for modifier in line.modifiers if modifier[1:] == "D")
        words = [registers.words["UR"][base + position] for position in range(2 + rank)]
        box = self._box(registers, line.operands[1], lane)
        peers = 1
        if line.has("MULTICAST"):
            chosen = self._scalar(registers, line.operands[2], active)
            peers = max(1, (chosen >> 16 or chosen).bit_count())
        if words[1] is None:
            raise UsageError("the mbarrier of a copy depends on data")
        place = int(words[1][lane]) & INSIDE
        coordinates = tuple(-1 if word is None else int(word[lane]) for word in words[2:])
        turn = self.trace.blocks - 1 + cta.tickets
        self.trace.loads.append((turn, (box.tensor, coordinates), box.nbytes))
        self.trace.loaders.add(cta.groups.index(context.group))
        if self._alone is not None:
            return self._advance(context, context.position + 1)
        done = self._copies.load(time, box, (box.tensor, coordinates), turn, peers)
        nbytes = box.nbytes * peers
        self._at(done, lambda at: self._copied(cta, place, nbytes, at))
        return self._advance(context, context.position + 1)

    def _box(self, registers: Registers, operand: Operand, lane: int) -> Box:
        address = registers.pair(operand.terms[0])
        if address is None:
            raise UsageError("the tensor map of a copy depends on data")
        offset = int(address[lane]) - PARAMETER_ADDRESS
        if offset not in self._launch.boxes:
            raise UsageError(f"no tensor map at offset {offset:#x} of the parameters")
        return self._launch.boxes[offset]

    def _store_tile(self, context: Context, step: Step, time: float) -> None:
        active = self._active(context, step.line)
        if active.any():
            box = self._box(context.group.registers, step.line.operands[1], int(active.argmax()))
            self._copies.store(time, box)
        self._advance(context, context.position + 1)

    def _commit_stores(self, context: Context, step: Step, time: float) -> None:
        """The counter falls once the copies have been read from shared memory."""
        for counter in (step.timing.result, step.timing.read):
            if counter is not None:
                _raise(context, counter, max(time, self._copies.stored) + self._rates.copy_gap)
        self._advance(context, context.position + 1)

    # Products.

    def _product(self, context: Context, step: Step, time: float) -> None:
        context.open_group = self._tensor_cores.product(time, step, self._copies.writing(time))
        self._cycle = time + self._rates.product_issue
        if ends(step):
            context.groups = [*context.groups[-7:], context.open_group]
        self._advance(context, context.position + 1)

    # Memory whose values are needed.

    def _shared_access(self, context: Context, step: Step, time: float) -> None:
        self._occupy(context, step, time)
        access_shared(context, step.line, self._active(context, step.line))
        self._advance(context, context.position + 1)

    def _local_access(self, context: Context, step: Step, time: float) -> None:
        self._occupy(context, step, time)
        access_local(context, step.line, self._active(context, step.line))
        self._advance(context, context.position + 1)

    def _ticket(self, context: Context, step: Step, time: float) -> None:
        """Blocks are assumed to take their tickets in turns."""
        line, registers, cta = step.line, context.group.registers, context.group.cta
        active = self._active(context, line)
        if active.any():
            target = next(o.register for o in line.operands if o.register is not None and o.register.file == "R")
            value = cta.tickets * self._launch.blocks + cta.number
            cta.tickets += 1
            self.trace.tickets.append(time)
            registers.write(target, full(value), active)
            if step.timing.result is not None:
                _raise(context, step.timing.result, time + self._rates.l2_latency)
        self._advance(context, context.position + 1)


def _raise(context: Context, counter: int, until: float) -> None:
    context.counters[counter] = max(context.counters[counter], until)


_HANDLERS: dict[Kind, Callable[[Machine, Context, Step, float], None]] = {
    Kind.BRANCH: Machine._branch,
    Kind.EXIT: Machine._exit,
    Kind.DIVERGE: Machine._diverge,
    Kind.CONVERGE: Machine._converge,
    Kind.BARRIER: Machine._bar,
    Kind.CLUSTER_BARRIER: Machine._cluster_bar,
    Kind.MBARRIER: Machine._mbarrier,
    Kind.LOAD_TILE: Machine._load_tile,
    Kind.STORE_TILE: Machine._store_tile,
    Kind.COMMIT_STORES: Machine._commit_stores,
    Kind.PRODUCT: Machine._product,
    Kind.GATHER: Machine._gather,
    Kind.SHARED: Machine._shared_access,
    Kind.LOCAL: Machine._local_access,
    Kind.TICKET: Machine._ticket,
}
