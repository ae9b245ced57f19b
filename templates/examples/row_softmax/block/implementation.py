"""row_softmax with one block a row, which its threads hold in registers."""

from dataclasses import dataclass

from tuner.arch import Arch
from tuner.spec import Constraint, Implementation, Launch, Plan, Space

from ..operator import Problem


@dataclass(frozen=True, slots=True)
class Config:
    """What a search is free to choose; the template reads each field."""

    threads: int  # a block
    vector: int  # elements a load


def space(problem: Problem, arch: Arch) -> Space[Config]:  # noqa: ARG001  (what an Implementation is called with)
    """The values to try, and which of their combinations make sense; a user reads the reasons."""
    return Space(
        Config,
        choices={"threads": (32, 64, 128, 256, 512, 1024), "vector": (1, 2, 4, 8)},
        constraints=(
            Constraint("a row is whole vectors", lambda c: problem.columns % c.vector == 0),
            Constraint("a thread holds at most 64 elements", lambda c: c.threads * 64 >= problem.columns),
            Constraint(
                "every warp has a vector", lambda c: (c.threads == 32) | (c.threads * c.vector <= problem.columns)
            ),
        ),
    )


def plan(problem: Problem, config: Config) -> Plan:
    """The launches. A grid may follow from extents; constants that the template reads may not."""
    warps = config.threads // 32
    shared = 2 * warps * 4  # bytes of DYNAMIC_SHARED
    return Plan((Launch("row_softmax_block", (problem.rows, 1, 1), config.threads, shared),), {"warps": warps})


IMPLEMENTATION = Implementation(name="block", summary="one block a row", config=Config, space=space, plan=plan)
