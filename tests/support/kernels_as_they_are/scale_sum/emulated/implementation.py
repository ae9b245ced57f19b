"""scale_sum by an instance of a template for both compilers in a namespace, in blocks of three dimensions."""

from dataclasses import dataclass

from tuner.arch import Arch
from tuner.spec import Implementation, Launch, Plan, Space

from ..operator import Problem


@dataclass(frozen=True, slots=True)
class Config:
    block: int
    each: int  # elements of a thread


def space(problem: Problem, arch: Arch) -> Space[Config]:  # noqa: ARG001
    return Space(Config, {"block": (4, 8), "each": (1, 3)})


def plan(problem: Problem, config: Config) -> Plan:
    kernel, threads = f"ours::scale_sum<float, double, {config.each}>", (config.block, 4, 2)
    return Plan((Launch(kernel, (-(-problem.n // (8 * config.block * config.each)), 1, 1), threads, 0),), {})


IMPLEMENTATION = Implementation(name="emulated", summary="a template", config=Config, space=space, plan=plan)
