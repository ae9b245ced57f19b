"""transposed, sizes as macros."""

from dataclasses import dataclass

from tuner.arch import Arch
from tuner.spec import Implementation, Launch, Plan, Space

from ..operator import Problem


@dataclass(frozen=True, slots=True)
class Config:
    side: int


def space(problem: Problem, arch: Arch) -> Space[Config]:  # noqa: ARG001
    return Space(Config, {"side": (8, 16, 32)})


def plan(problem: Problem, config: Config) -> Plan:
    grid = (-(-problem.columns // config.side), -(-problem.rows // config.side), 1)
    return Plan((Launch("transposed", grid, (config.side, config.side), 0),), {})


IMPLEMENTATION = Implementation(
    name="macros", summary="sizes as macros", config=Config, space=space, plan=plan, checked_on="ptx"
)
