"""Our best kernel beside its peers: the same inputs, one process, in turns; ratios with their intervals."""

import resource
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuner import operators
from tuner.base.pool import Limits, Lost, Pool
from tuner.bench import peers
from tuner.bench.comparison import Comparison, Row, spelled
from tuner.bench.contender import contender, context
from tuner.bench.field import Meeting, meet
from tuner.bench.forecast import Forecast, forecast
from tuner.bench.leaders import leaders
from tuner.bench.page import page
from tuner.bench.tables import tables
from tuner.errors import MachineError, UsageError
from tuner.evaluate.measure.device import Code
from tuner.evaluate.measure.gpu_lock import alone
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.evaluate.measure.worker import DeviceOpener
from tuner.spec.operator import Operator

__all__ = [
    "Comparison",
    "Forecast",
    "Row",
    "compare",
    "contender",
    "context",
    "forecast",
    "inputs_kind",
    "leaders",
    "page",
    "spelled",
    "tables",
]

_PATIENCE_S = 600.0  # frameworks compile and tune their own kernels in it
_TRIES = 4  # each costs the peer that took the process down
_SHARE, _LEAST_S = 0.75, 20.0  # of the time that is left, for a try


def compare(
    code: Code,
    place: DeviceOpener,
    policy: MeasurementPolicy | None = None,
    *,
    context: tuple[Code, ...] = (),
    kind: str | None = None,
    seed: int = 0,
    patience_s: float = _PATIENCE_S,
) -> Comparison:
    """Race ours, `context`, a plain copy and every peer that is there, on inputs of a kind of the operator's.

    Where somebody takes many launches, each is timed eager and in a CUDA graph. A peer that takes the process down is
    left out of another try; all tries together take about `patience_s`. Raises MachineError when nothing comes
    through, UsageError for an unknown kind.
    """
    kind = inputs_kind(operators.load(code.instance.operator), kind)
    policies = _policies(code, policy or MeasurementPolicy())
    with tempfile.TemporaryDirectory() as folder:
        meeting = Meeting(code, context, place, policies, kind, seed, Path(folder) / "journal")
        with alone(place.bus_id):  # all of it: while they get ready, peers time kernels of their own to choose among
            return _met(meeting, patience_s)


def inputs_kind(operator: Operator[Any], wanted: str | None) -> str:
    """A kind of inputs that an operator has: the wanted one, or its first. Raises UsageError."""
    if wanted not in (None, *operator.input_kinds):
        raise UsageError(f"inputs {wanted!r}: {operator.name} has {', '.join(operator.input_kinds)}")
    return wanted or operator.input_kinds[0]


def _met(meeting: Meeting, patience_s: float) -> Comparison:
    """Each try may take most of the time that is left: a peer that hangs leaves some for the others."""
    memory = resource.getrlimit(resource.RLIMIT_AS)[1]  # CUDA maps all memory of the machine
    deadline = time.monotonic() + patience_s
    for _ in range(_TRIES):
        limits = Limits(max(_SHARE * (deadline - time.monotonic()), _LEAST_S), memory)
        with Pool(meet, workers=1, limits=limits) as pool:
            ((_, answer),) = pool.run([meeting])
        if not isinstance(answer, Lost):
            return answer
        lost = answer
    raise MachineError(f"the comparison did not come through ({lost.reason}): {lost.log[-2000:]}")


def _policies(code: Code, policy: MeasurementPolicy) -> tuple[MeasurementPolicy, ...]:
    """The policy's own way to launch, and the other where a plan or a peer has several launches."""
    several = any(peer.many_launches for peer in peers.of(code.instance.operator))
    if len(operators.instance(code.instance).plan().launches) == 1 and not several:
        return (policy,)
    return policy, replace(policy, launch="graph" if policy.launch == "eager" else "eager")
