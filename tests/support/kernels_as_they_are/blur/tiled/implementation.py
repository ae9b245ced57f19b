"""blur, a thread a pixel in blocks of two dimensions."""

from dataclasses import dataclass

from tuner.arch import Arch
from tuner.spec import Implementation, Launch, Plan, Space

from ..operator import Problem


@dataclass(frozen=True, slots=True)
class Config:
    block_x: int
    block_y: int


def space(problem: Problem, arch: Arch) -> Space[Config]:  # noqa: ARG001
    return Space(Config, {"block_x": (16, 32, 8), "block_y": (4, 2, 8)})


def plan(problem: Problem, config: Config) -> Plan:
    grid = (-(-problem.width // config.block_x), -(-problem.height // config.block_y), 1)
    return Plan((Launch("blur", grid, (config.block_x, config.block_y), 0),), {})


IMPLEMENTATION = Implementation(
    name="tiled", summary="a thread a pixel", config=Config, space=space, plan=plan, checked_on="ptx"
)
