"""Branches, exits, and lanes of a warpgroup that diverge and reconverge."""

import numpy as np

from tuner.compiler.sass.cta.program import Kind, Step
from tuner.compiler.sass.cta.registers import WARP, Mask
from tuner.compiler.sass.cta.sm import SM, guarded_mask
from tuner.compiler.sass.cta.state import Context, Group, whole_warps
from tuner.errors import UsageError


def branch(sm: SM, context: Context, step: Step, _: float) -> None:
    """Execute BRA. If its condition depends on data, take the side that is nearer to the end of the kernel."""
    line, registers = step.line, context.group.registers
    after, target = context.position + 1, line.instruction.target
    if target is None:
        raise UsageError(f"{line.name}.{'.'.join(line.modifiers)} has no target that is known")
    if line.has("DIV"):
        return sm.advance(context, after)
    flag = None if line.guard is None else registers.flags[line.guard.file][line.guard.number]
    if line.guard is not None and flag is None:
        distances = sm.program.distances
        return sm.advance(context, target if distances[target] < distances[after] else after)
    taken = context.mask.copy()
    if line.guard is not None and flag is not None:
        taken &= ~flag if line.guard_negated else flag
    if line.operands and line.operands[0].register is not None:  # a second condition
        second = registers.flag(line.operands[0])
        taken &= second if second is not None else False
    if line.has("ANY"):
        taken = np.repeat(taken.reshape(-1, WARP).any(1), WARP) & context.mask
    if not taken.any():
        return sm.advance(context, after)
    if (taken == context.mask).all():
        return sm.advance(context, target)
    sm.advance(_split(sm, context, taken), target)
    return sm.advance(context, after)


def _split(sm: SM, context: Context, mask: Mask) -> Context:
    """Create a separate context for some lanes."""
    other = context.split(mask)
    if (whole_warps(context.mask) & mask).any():
        context.suspended.append(other)  # a warp has one set of uniform registers, so one side runs at a time
    else:
        sm.running.append(other)
    return other


def leave(sm: SM, context: Context, time: float) -> None:
    """Run the lanes that a context suspended, once it waits for other lanes or has exited."""
    sm.running.remove(context)
    for other in context.suspended:
        other.ready = max(other.ready, time)
        other.time = max(other.time, time)
        sm.running.append(other)
    context.suspended = []


def exit_lanes(sm: SM, context: Context, step: Step, time: float) -> None:
    """Execute EXIT."""
    mask = guarded_mask(context, step.line)
    leaving = context.mask if mask is None else mask
    if not leaving.any():
        return sm.following(context)
    if (leaving == context.mask).all():
        leave(sm, context, time)
    else:
        context.mask, context.whole = context.mask & ~leaving, False
        sm.following(context)
    return _exited(sm, context.group, leaving, time)


def drop(sm: SM, context: Context, time: float) -> None:
    """End the context here, whatever its code would do next."""
    leave(sm, context, time)
    _exited(sm, context.group, context.mask, time)


def _exited(sm: SM, group: Group, lanes: Mask, time: float) -> None:
    group.alive = group.alive & ~lanes
    for position in list(group.waiting):
        _release(sm, group, position, time)
    sm.ended(group.cta, time)


def diverge(sm: SM, context: Context, step: Step, _: float) -> None:
    """Execute BSSY."""
    context.converge[step.line.operands[0].text] = context.mask.copy()
    sm.following(context)


def converge(sm: SM, context: Context, _: Step, time: float) -> None:
    """Execute BSYNC, WARPSYNC and WARPGROUP.ARRIVE, at which lanes wait for each other."""
    if context.whole:
        return sm.following(context)
    leave(sm, context, time)
    context.group.waiting.setdefault(context.position, []).append(context)
    return _release(sm, context.group, context.position, time)


def _release(sm: SM, group: Group, position: int, time: float) -> None:
    """Continue lanes that wait at one instruction together, once all lanes that will reach it have reached it."""
    waiting = group.waiting.get(position, [])
    if not waiting:
        return
    arrived = np.logical_or.reduce([context.mask for context in waiting])
    step = sm.program.steps[position]
    if step.kind is Kind.GATHER:
        expected = group.alive
    else:
        operands = step.line.operands
        masks = [context.converge.get(operands[0].text, context.mask) for context in waiting] if operands else []
        expected = whole_warps(arrived) & group.alive
        if masks:
            expected &= np.logical_or.reduce(masks)
    if (expected & ~arrived).any():
        return
    del group.waiting[position]
    first = waiting[0]
    first.merge(waiting[1:], time)
    sm.running.append(first)
    sm.advance(first, position + 1)
