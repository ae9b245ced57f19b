"""Replay of the warps of the blocks on one SM in the order of their times."""

import heapq
from collections.abc import Callable, Mapping

from tuner.compiler.sass.cta import barriers, control, data
from tuner.compiler.sass.cta.program import Kind, Step
from tuner.compiler.sass.cta.sm import MEMORY, SM, guarded_mask, raise_counter
from tuner.compiler.sass.cta.state import Context, Trace
from tuner.compiler.sass.instruction_timing import QUEUE_ENTRIES
from tuner.errors import UsageError

_FOREVER = float("inf")
_NOTED = 8  # minimum length in cycles of a wait that the trace keeps

_EXECUTE: Mapping[Kind, Callable[[SM, Context, Step, float], None]] = {
    Kind.BRANCH: control.branch,
    Kind.EXIT: control.exit_lanes,
    Kind.DIVERGE: control.diverge,
    Kind.CONVERGE: control.converge,
    Kind.GATHER: control.converge,
    Kind.BARRIER: barriers.named_barrier,
    Kind.CLUSTER_BARRIER: barriers.cluster_barrier,
    Kind.MBARRIER: barriers.mbarrier,
    Kind.LOAD_TILE: data.load_tile,
    Kind.STORE_TILE: data.store_tile,
    Kind.COMMIT_STORES: data.commit_stores,
    Kind.PRODUCT: data.product,
    Kind.FENCE: data.fence,
    Kind.SHARED: data.shared_access,
    Kind.LOCAL: data.local_access,
    Kind.TICKET: data.ticket,
}


class _Machine:
    """Runs one SM: in each step, the context that can issue first does so."""

    def __init__(self, sm: SM) -> None:
        self._sm = sm
        self._last: Context | None = None

    def run(self) -> Trace:
        """Run until the last block has ended. Raises UsageError for a deadlock, and if something is not modelled."""
        sm = self._sm
        for _ in range(sm.launch.resident):
            sm.start(0.0)
        while True:
            context, time = self._next()
            if sm.events and sm.events[0][0] <= time:
                at, _, event = heapq.heappop(sm.events)
                event(at)
            elif context is None:
                if sm.live:
                    raise UsageError(
                        f"the replay deadlocks with {sm.live} blocks on an SM: their warps wait at barriers"
                    )
                sm.trace.loaded, sm.trace.products = sm.copies.loaded, sm.tensor_cores.cycles
                return sm.trace
            else:
                self._issue(context, time)

    def _next(self) -> tuple[Context | None, float]:
        """Return the context that can issue first, and when; of several, the one that issued last."""
        sm = self._sm
        steps = sm.program.steps
        best, best_time = None, _FOREVER
        for context in sm.running:
            time = context.time
            if time >= best_time:
                continue
            step = steps[context.position]
            if step.kind is Kind.PRODUCT:
                time = max(time, sm.tensor_cores.admits(step))
            elif step.pipe:
                if not step.timing.queued:
                    time = max(time, sm.free[step.pipe])
                elif step.pipe == MEMORY and len(sm.left) == QUEUE_ENTRIES:
                    time = max(time, sm.left[0])
            if time < best_time or (time == best_time and context is self._last):
                best, best_time = context, time
        return best, max(best_time, sm.cycle)

    def _issue(self, context: Context, time: float) -> None:
        sm = self._sm
        sm.cycle, self._last = time + 1, context
        step = sm.program.steps[context.position]
        timing, line = step.timing, step.line
        sm.trace.issued += 1
        if time > context.ready + _NOTED:
            key = context.position, context.cause
            sm.trace.stalls[key] = sm.trace.stalls.get(key, 0.0) + time - context.ready
        context.ready = time + timing.stall
        if step.kind is not Kind.PLAIN:
            return _EXECUTE[step.kind](sm, context, step, time)
        if step.pipe:
            sm.occupy(context, step, time)
        elif timing.result is not None:
            raise_counter(context, timing.result, time + timing.latency)
        if step.evaluate is not None:
            mask = guarded_mask(context, line)
            if mask is None or mask.any():
                step.evaluate(line, context.group.registers, mask)
        return sm.following(context)


def run(sm: SM) -> Trace:
    """Return the trace of the blocks on one SM."""
    return _Machine(sm).run()
