from dataclasses import dataclass

from tuner.arch import Arch
from tuner.spec import Implementation, Launch, Plan, Space

from ..operator import Problem


@dataclass(frozen=True, slots=True)
class Config:
    threads: int


def space(_problem: Problem, _arch: Arch) -> Space:
    return Space(Config, choices={"threads": tuple(range(32, 1025, 32))})


def plan(p: Problem, c: Config) -> Plan:
    # Shared memory that limits an SM of sm_80 or sm_90 to this number of blocks.
    smem = {1: 120, 2: 79}[p.blocks] * 1024
    return Plan((Launch("stream", (-(-p.n // c.threads), 1, 1), c.threads, smem),), {})


IMPLEMENTATION = Implementation(
    name="fp64", summary="one element per thread", config=Config, space=space, plan=plan, checked_on="ptx"
)
