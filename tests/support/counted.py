"""The emulator's counts by launch, with which an implementation's Work is compared."""

from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np

from tuner.arch import GPU
from tuner.backends import emulator
from tuner.backends.emulator import Counters, Run
from tuner.evaluate.check.checker import CHECKED
from tuner.spec.instance import Instance
from tuner.spec.operator import Work
from tuner.spec.plan import Plan


def by_launch(run: Run, plan: Plan) -> list[Counters]:
    """Return the counters of each launch of the plan."""
    blocks = np.cumsum([prod(launch.grid) for launch in plan.launches])
    parts: Any = np.split(run.block_counters, blocks[:-1])
    return [Counters(*(int(count) for count in part.sum(axis=0))) for part in parts]


def declared(works: Iterable[Work]) -> list[tuple[float, ...]]:
    """Return, for each launch, mma, bytes between the SMs and L2, barriers, and bank conflicts, which must be zero."""
    return [(work.mma, work.l2_bytes, work.barriers, 0) for work in works]


def counted(run: Run, plan: Plan) -> list[tuple[float, ...]]:
    """Return the same counts of a checked run."""
    return [
        (launch.mma, global_bytes(launch), launch.barriers, launch.bank_conflicts) for launch in by_launch(run, plan)
    ]


def global_bytes(counters: Counters) -> int:
    """Return the bytes between the SMs and L2, counted in checked mode only."""
    return counters.global_read_bytes + counters.global_write_bytes


def declared_and_counted(instance: Instance, gpu: GPU, kind: str) -> list[tuple[Work, Counters]]:
    """Return the work that each launch declares, and its counts in a checked run on inputs of this kind."""
    arrays = instance.operator.inputs(instance.problem, np.random.default_rng(0), kind)
    _, run = emulator.run(instance, arrays, CHECKED[0])
    return list(zip(instance.work(gpu), by_launch(run, instance.plan()), strict=True))
