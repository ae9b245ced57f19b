"""Named barriers, barriers of a cluster, and mbarriers."""

import numpy as np

from tuner.compiler.sass.cta.memory import INSIDE
from tuner.compiler.sass.cta.program import Step
from tuner.compiler.sass.cta.registers import LANES, WARP, Mask
from tuner.compiler.sass.cta.sm import SM, active_lanes, raise_counter, scalar
from tuner.compiler.sass.cta.state import Barrier, Context, Cta
from tuner.errors import UsageError

_CLUSTER = -1  # key of a cluster's barrier


def named_barrier(sm: SM, context: Context, step: Step, time: float) -> None:
    """Execute BAR.SYNC and BAR.ARV."""
    line, registers = step.line, context.group.registers
    active = active_lanes(context, line)
    if not active.any():
        return sm.following(context)
    name = scalar(registers, line.operands[0], active)
    threads = sm.launch.threads
    if len(line.operands) > 1:
        threads = scalar(registers, line.operands[1], active)
    lanes = int(active.reshape(-1, WARP).any(1).sum()) * WARP
    return _arrive(sm, context, (name, threads, lanes), line.has("SYNC"), time)


def cluster_barrier(sm: SM, context: Context, _: Step, time: float) -> None:
    """Execute UCGABAR_WAIT."""
    alive = sum(int(group.alive.sum()) for group in context.group.cta.groups)
    _arrive(sm, context, (_CLUSTER, alive, int(context.mask.sum())), True, time)


def _arrive(sm: SM, context: Context, arrival: tuple[int, int, int], waits: bool, time: float) -> None:
    """Arrive at a barrier. `arrival`: the key of the barrier, the number of threads that it expects, and of those that
    arrive.
    """
    if sm.alone is not None:
        return sm.following(context)
    cta = context.group.cta
    name, threads, lanes = arrival
    arrived, waiting = cta.named.get(name, (0, []))
    arrived += lanes
    if waits:
        sm.running.remove(context)
        waiting = [*waiting, context]
    else:
        sm.following(context)
    if arrived < threads:
        cta.named[name] = arrived, waiting
        return None
    cta.named[name] = 0, []
    release = time + (sm.rates.remote if name == _CLUSTER else sm.rates.barrier)
    for waiter in waiting:
        waiter.ready = max(waiter.ready, release)
        sm.running.append(waiter)
        sm.following(waiter)
    return None


def mbarrier(sm: SM, context: Context, step: Step, time: float) -> None:
    """Execute SYNCS: initialisation, waits and arrivals of an mbarrier."""
    line = step.line
    active = active_lanes(context, line)
    if not active.any():
        return sm.following(context)
    address = context.group.registers.address(line.operands[1])
    if address is None:
        raise UsageError(f"the address of {line.instruction.name} depends on data")
    offset = int(address[int(active.argmax())]) & INSIDE
    if line.has("EXCH"):
        low = scalar(context.group.registers, line.operands[2], active)
        count = (1 << 20) - (low >> 1 & 0xFFFFF)
        context.group.cta.barriers[offset] = Barrier(count, count)
    elif line.has("PHASECHK"):
        return _wait(sm, context, step, active, offset, time)
    elif line.has("ARRIVE"):
        if sm.alone is None:
            _arrivals(sm, context, step, active, address, time)
    elif sm.alone is None:
        raise UsageError(f"SYNCS.{'.'.join(line.modifiers)} is not replayed")
    return sm.following(context)


def _wait(sm: SM, context: Context, step: Step, active: Mask, offset: int, time: float) -> None:
    line, registers = step.line, context.group.registers
    parity = scalar(registers, line.operands[2], active) >> 31 & 1
    registers.write_flag(line.operands[0].register, np.ones(LANES, np.bool_), context.mask)
    if sm.alone is not None:
        return sm.following(context)
    barrier = _barrier(context.group.cta, offset)
    if barrier.phase & 1 == parity:
        sm.running.remove(context)
        barrier.waiters.append((context, parity))
        return None
    if step.timing.result is not None:
        raise_counter(context, step.timing.result, time + sm.rates.try_wait)
    return sm.following(context)


def _arrivals(sm: SM, context: Context, step: Step, active: Mask, address: np.ndarray, time: float) -> None:
    line, cta = step.line, context.group.cta
    value = context.group.registers.value(line.operands[2])
    expects = value is not None and not line.has("A1T0")
    for lane in np.flatnonzero(active):
        target = int(address[lane])
        remote = line.has("RED") and target >> 24 & 0xFF != cta.number % sm.launch.cluster
        if expects and value is not None:
            _barrier(cta, target & INSIDE).expected += int(value[lane])
        delay = sm.rates.remote if remote else sm.rates.arrive
        sm.at(time + delay, lambda at, target=target: _arrived(sm, cta, target & INSIDE, at))  # type: ignore[misc]


def _barrier(cta: Cta, offset: int) -> Barrier:
    if offset not in cta.barriers:
        raise UsageError(f"no mbarrier at {offset:#x} of shared memory")
    return cta.barriers[offset]


def _arrived(sm: SM, cta: Cta, offset: int, time: float) -> None:
    barrier = _barrier(cta, offset)
    barrier.pending -= 1
    _complete(sm, barrier, time)


def copied(sm: SM, cta: Cta, offset: int, nbytes: int, time: float) -> None:
    """Count the bytes of a copy that has arrived at an mbarrier."""
    barrier = _barrier(cta, offset)
    barrier.expected -= nbytes
    _complete(sm, barrier, time)


def _complete(sm: SM, barrier: Barrier, time: float) -> None:
    if barrier.pending > 0 or barrier.expected > 0:
        return
    barrier.phase += 1
    barrier.pending = barrier.count
    waiters, barrier.waiters = barrier.waiters, []
    for context, parity in waiters:
        if barrier.phase & 1 == parity:
            barrier.waiters.append((context, parity))
            continue
        step = sm.program.steps[context.position]
        context.ready = max(context.ready, time)
        if step.timing.result is not None:
            raise_counter(context, step.timing.result, time + sm.rates.try_wait)
        sm.running.append(context)
        sm.following(context)
