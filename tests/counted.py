"""What the emulator counted, by launch: what an implementation's Work is compared with."""

from math import prod
from typing import Any

import numpy as np

from tuner.emulator import Counters, Run
from tuner.operator import Plan


def by_launch(run: Run, plan: Plan) -> list[Counters]:
    """The counters of each launch of the plan that ran."""
    blocks = np.cumsum([prod(launch.grid) for launch in plan.launches])
    parts: Any = np.split(run.block_counters, blocks[:-1])
    return [Counters(*(int(count) for count in part.sum(axis=0))) for part in parts]


def global_bytes(counters: Counters) -> int:
    """Between the SMs and L2; counted in checked mode only."""
    return counters.global_read_bytes + counters.global_write_bytes
