"""slopes with one thread an element."""
# ruff: noqa: ARG001  (what an Implementation is called with)

from dataclasses import dataclass

from tuner.arch import Arch
from tuner.spec import Implementation, Launch, Plan, Space

from ..operator import Problem


@dataclass(frozen=True, slots=True)
class Config:
    threads: int


def plan(problem: Problem, config: Config) -> Plan:
    blocks = -(-problem.rows * problem.width // config.threads)
    return Plan((Launch("slopes_naive", (blocks, 1, 1), config.threads, 0),), {})


def space(problem: Problem, arch: Arch) -> Space[Config]:
    return Space(Config, choices={"threads": (32, 64)}, constraints=())


IMPLEMENTATION = Implementation(name="naive", summary="one thread an element", config=Config, space=space, plan=plan)
