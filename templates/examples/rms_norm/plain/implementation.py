"""rms_norm as an existing kernel in plain CUDA."""

from dataclasses import dataclass

from tuner.arch import Arch
from tuner.spec import Constraint, Implementation, Launch, Plan, Space

from ..operator import Problem


@dataclass(frozen=True, slots=True)
class Config:
    """The search space parameters; the template reads each field."""

    threads: int  # threads per block


def space(problem: Problem, arch: Arch) -> Space[Config]:  # noqa: ARG001  (the signature of Implementation.space)
    """The values of each parameter, and constraints on their combinations; reports show the reasons."""
    return Space(
        Config,
        choices={"threads": (32, 64, 128, 256, 512, 1024)},
        constraints=(
            Constraint("every warp has a vector", lambda c: (c.threads == 32) | (c.threads * 8 <= problem.columns)),
        ),
    )


def plan(problem: Problem, config: Config) -> Plan:
    """The launches: one block per row, without dynamic shared memory."""
    return Plan((Launch("rms_norm_plain", (problem.rows, 1, 1), config.threads, 0),), {})


IMPLEMENTATION = Implementation(
    name="plain", summary="plain CUDA, one block per row", config=Config, space=space, plan=plan, checked_on="ptx"
)
