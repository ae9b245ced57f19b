"""Bulk copies, products of the tensor cores, and accesses to memory."""

from tuner.compiler.sass.cta import control
from tuner.compiler.sass.cta.barriers import copied
from tuner.compiler.sass.cta.launch import PARAMETER_ADDRESS, Box
from tuner.compiler.sass.cta.memory import INSIDE, access_local, access_shared
from tuner.compiler.sass.cta.operands import Operand
from tuner.compiler.sass.cta.program import Step, ends
from tuner.compiler.sass.cta.registers import Registers
from tuner.compiler.sass.cta.sm import MEMORY, SM, active_lanes, raise_counter, scalar
from tuner.compiler.sass.cta.state import Context, full
from tuner.compiler.sass.cta.units import OUTSTANDING
from tuner.errors import UsageError


def load_tile(sm: SM, context: Context, step: Step, time: float) -> None:
    """Execute UTMALDG, a bulk load."""
    line, registers, cta = step.line, context.group.registers, context.group.cta
    active = active_lanes(context, line)
    if not active.any():
        return sm.following(context)
    lane, base = int(active.argmax()), line.operands[0].terms[0].number
    rank = next(int(modifier[0]) for modifier in line.modifiers if modifier[1:] == "D")
    words = [registers.words["UR"][base + index] for index in range(2 + rank)]
    box = _box(sm, registers, line.operands[1], lane)
    peers = 1
    if line.has("MULTICAST"):
        chosen = scalar(registers, line.operands[2], active)
        peers = max(1, (chosen >> 16 or chosen).bit_count())
    if words[1] is None:
        raise UsageError("the mbarrier of a copy depends on data")
    offset = int(words[1][lane]) & INSIDE
    tile = box.tensor, tuple(-1 if word is None else int(word[lane]) for word in words[2:])
    turn = sm.trace.blocks - 1 + cta.tickets
    sm.trace.loads.append((turn, tile, box.nbytes))
    sm.trace.loaders.add(cta.groups.index(context.group))
    if sm.alone is None:
        nbytes = box.nbytes * peers
        sm.at(sm.copies.load(time, box, tile, turn, peers), lambda at: copied(sm, cta, offset, nbytes, at))
    return sm.following(context)


def _box(sm: SM, registers: Registers, operand: Operand, lane: int) -> Box:
    address = registers.pair(operand.terms[0])
    if address is None:
        raise UsageError("the tensor map of a copy depends on data")
    offset = int(address[lane]) - PARAMETER_ADDRESS
    if offset not in sm.launch.boxes:
        raise UsageError(f"no tensor map at offset {offset:#x} of the parameters")
    return sm.launch.boxes[offset]


def store_tile(sm: SM, context: Context, step: Step, time: float) -> None:
    """Execute UTMASTG, a bulk store."""
    active = active_lanes(context, step.line)
    if active.any():
        sm.copies.store(time, _box(sm, context.group.registers, step.line.operands[1], int(active.argmax())))
    sm.following(context)


def commit_stores(sm: SM, context: Context, step: Step, time: float) -> None:
    """Execute UTMACMDFLUSH: the counter falls once the copies have been read from shared memory."""
    for counter in (step.timing.result, step.timing.read):
        if counter is not None:
            raise_counter(context, counter, max(time, sm.copies.stored) + sm.rates.copy_gap)
    sm.following(context)


def product(sm: SM, context: Context, step: Step, time: float) -> None:
    """Execute HGMMA, a warpgroup product."""
    if sm.alone is not None:
        return control.drop(sm, context, time)
    context.open_group = sm.tensor_cores.product(time, step, sm.copies.writing(time))
    sm.cycle = time + sm.rates.product_issue
    if ends(step):
        context.groups = [*context.groups[-(OUTSTANDING - 1) :], context.open_group]
    return sm.following(context)


def fence(sm: SM, context: Context, step: Step, time: float) -> None:
    """Execute MEMBAR: the counter falls once the earlier accesses have left their queue and been performed."""
    for counter in (step.timing.result, step.timing.read):
        if counter is not None:
            raise_counter(context, counter, max(time, sm.free[MEMORY]) + sm.rates.shared_latency)
    sm.following(context)


def shared_access(sm: SM, context: Context, step: Step, time: float) -> None:
    """Execute LDS and STS of values that are needed."""
    sm.occupy(context, step, time)
    access_shared(context, step.line, active_lanes(context, step.line))
    sm.following(context)


def local_access(sm: SM, context: Context, step: Step, time: float) -> None:
    """Execute LDL and STL of values that are needed."""
    sm.occupy(context, step, time)
    access_local(context, step.line, active_lanes(context, step.line))
    sm.following(context)


def ticket(sm: SM, context: Context, step: Step, time: float) -> None:
    """Execute ATOMG: blocks are assumed to take their tickets in turn."""
    line, registers, cta = step.line, context.group.registers, context.group.cta
    active = active_lanes(context, line)
    if active.any():
        target = next(o.register for o in line.operands if o.register is not None and o.register.file == "R")
        value = cta.tickets * sm.launch.blocks + cta.number
        cta.tickets += 1
        sm.trace.tickets.append(time)
        registers.write(target, full(value), active)
        if step.timing.result is not None:
            raise_counter(context, step.timing.result, time + sm.rates.l2_latency)
    sm.following(context)
