"""row_add with one thread a row, and, on demand, a bug."""
# ruff: noqa: ARG001  (what an Implementation is called with)

from dataclasses import dataclass

from tuner.arch import Arch
from tuner.spec import Implementation, Launch, Plan, Space

from ..operator import Problem


@dataclass(frozen=True, slots=True)
class Config:
    stray: int  # a row of the table that is written although it may not be; -1: none


def plan(problem: Problem, config: Config) -> Plan:
    return Plan((Launch("row_add_naive", (-(-problem.rows // 32), 1, 1), 32, 0),), {})


def space(problem: Problem, arch: Arch) -> Space[Config]:
    return Space(Config, choices={"stray": (-1, 0, 1, 2, 3, 4)}, constraints=())


IMPLEMENTATION = Implementation(
    name="naive",
    summary="one thread a row",
    config=Config,
    space=space,
    plan=plan,
    oracle=True,
)
