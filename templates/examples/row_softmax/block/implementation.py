"""row_softmax with one block per row, whose threads keep the row in registers."""

from dataclasses import dataclass

from tuner.arch import Arch
from tuner.spec import Constraint, Implementation, Launch, Plan, Space

from ..operator import Problem


@dataclass(frozen=True, slots=True)
class Config:
    """The search space parameters; the template reads each field."""

    threads: int  # threads per block
    vector: int  # elements per load


def space(problem: Problem, arch: Arch) -> Space[Config]:  # noqa: ARG001  (the signature of Implementation.space)
    """The values of each parameter, and constraints on their combinations; reports show the reasons."""
    return Space(
        Config,
        choices={"threads": (32, 64, 128, 256, 512, 1024), "vector": (1, 2, 4, 8)},
        constraints=(
            Constraint("a row consists of complete vectors", lambda c: problem.columns % c.vector == 0),
            Constraint("a thread holds at most 64 elements", lambda c: c.threads * 64 >= problem.columns),
            Constraint(
                "every warp has a vector", lambda c: (c.threads == 32) | (c.threads * c.vector <= problem.columns)
            ),
        ),
    )


def plan(problem: Problem, config: Config) -> Plan:
    """The launches. A grid may depend on extents; constants that the template reads may not."""
    warps = config.threads // 32
    shared = 2 * warps * 4  # bytes of DYNAMIC_SHARED
    return Plan((Launch("row_softmax_block", (problem.rows, 1, 1), config.threads, shared),), {"warps": warps})


IMPLEMENTATION = Implementation(name="block", summary="one block per row", config=Config, space=space, plan=plan)
