"""rms_norm as a kernel in plain CUDA, which was there before."""

from dataclasses import dataclass

from tuner.arch import Arch
from tuner.spec import Constraint, Implementation, Launch, Plan, Space

from ..operator import Problem


@dataclass(frozen=True, slots=True)
class Config:
    """What a search is free to choose; the template reads each field."""

    threads: int  # a block


def space(problem: Problem, arch: Arch) -> Space[Config]:  # noqa: ARG001  (what an Implementation is called with)
    """The values to try, and which of them make sense; a user reads the reasons."""
    return Space(
        Config,
        choices={"threads": (32, 64, 128, 256, 512, 1024)},
        constraints=(
            Constraint("every warp has a vector", lambda c: (c.threads == 32) | (c.threads * 8 <= problem.columns)),
        ),
    )


def plan(problem: Problem, config: Config) -> Plan:
    """The launches: a block a row, without dynamic shared memory."""
    return Plan((Launch("rms_norm_plain", (problem.rows, 1, 1), config.threads, 0),), {})


IMPLEMENTATION = Implementation(
    name="plain", summary="plain CUDA, one block a row", config=Config, space=space, plan=plan, checked_on="ptx"
)
