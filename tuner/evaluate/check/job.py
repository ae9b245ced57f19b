"""The input of a check, and the data of its edge cases."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tuner import operators
from tuner.backends.emulator import Mode
from tuner.base.canonical_json import decode
from tuner.evaluate.check.compare import Expected, expect
from tuner.evaluate.check.edges import Edge
from tuner.spec.instance import Instance, InstanceFields
from tuner.spec.parameters import scalars
from tuner.spec.problem import Arrays, from_fields

# Each round detects errors that the others cannot: numerical errors and faults; late asynchronous copies with a
# reversed warp order; races, uninitialised reads and missing waits.
PLAIN = (Mode(False, "order", "early", 0), Mode(False, "reverse", "late", 0))
CHECKED = (Mode(True, "random", "late", 1), Mode(True, "random", "random", 2))
_LEAST_S, _WORK_A_SECOND = 30.0, 1e7  # three times the longest launch of our operators on either backend


@dataclass(frozen=True)
class Job:
    """A check for a worker process. `thorough` runs every mode on every case.

    `mma.sync` rounds like on `arch`, for which PTX is compiled if the implementation is checked on PTX.
    """

    instance: InstanceFields
    modes: tuple[Mode, ...] = PLAIN + CHECKED
    thorough: bool = False
    arch: str = "sm_80"


def most_seconds(instance: Instance) -> float:
    """Return the CPU time after which a launch is considered to hang; CPU time is independent of the machine's load.

    The backends detect endless polling immediately. This limit is for loops without a wait.
    """
    cost = instance.operator.cost(instance.problem)
    return _LEAST_S + (cost.flops + cost.bytes) / _WORK_A_SECOND


@lru_cache(maxsize=64)
def drawn(operator: str, problem: str, kind: str) -> tuple[Arrays, Expected]:
    """Return inputs and expected outputs, computed once per process for all modes of all configs."""
    described = operators.load(operator)
    value = from_fields(described.problem, decode(problem))
    inputs = described.inputs(value, np.random.default_rng(0), kind)
    arrays = {**inputs, **scalars(described, value, inputs)}
    return arrays, expect(described, value, arrays, Edge(value, kind).name(described))
