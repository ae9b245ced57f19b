"""What is checked, and what an edge case is run on."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tuner import operators
from tuner.backends.emulator import Mode
from tuner.base.canonical import decode
from tuner.evaluate.check.compare import Expected, expect
from tuner.evaluate.check.edges import Edge
from tuner.spec.instance import Instance, InstanceFields
from tuner.spec.parameters import scalars
from tuner.spec.problem import Arrays, from_fields

# What each round can see that the others cannot: numbers and faults; asynchronous copies that land late, warps in the
# other order; races, uninitialised reads and missing waits.
PLAIN = (Mode(False, "order", "early", 0), Mode(False, "reverse", "late", 0))
CHECKED = (Mode(True, "random", "late", 1), Mode(True, "random", "random", 2))
_LEAST_S, _WORK_A_SECOND = 30.0, 1e7  # no launch of ours takes a third of that on either machine


@dataclass(frozen=True)
class Job:
    """What a worker process is to check. `thorough` runs every mode on every case.

    `mma.sync` rounds as on `arch`, and the PTX for it is executed where the implementation is checked on PTX.
    """

    instance: InstanceFields
    modes: tuple[Mode, ...] = PLAIN + CHECKED
    thorough: bool = False
    arch: str = "sm_80"


def most_seconds(instance: Instance) -> float:
    """CPU time after which a launch is taken for one that never ends; that of its process, so load does not shorten it.

    What a kernel polls without end the machines find at once. This is for loops that never come to a wait.
    """
    cost = instance.operator.cost(instance.problem)
    return _LEAST_S + (cost.flops + cost.bytes) / _WORK_A_SECOND


@lru_cache(maxsize=64)
def drawn(operator: str, problem: str, kind: str) -> tuple[Arrays, Expected]:
    """Inputs and what is expected of them: once a process, for all modes of all configs."""
    described = operators.load(operator)
    value = from_fields(described.problem, decode(problem))
    inputs = described.inputs(value, np.random.default_rng(0), kind)
    arrays = {**inputs, **scalars(described, value, inputs)}
    return arrays, expect(described, value, arrays, Edge(value, kind).name(described))
