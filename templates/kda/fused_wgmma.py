"""fused on wgmma (sm_90a): a warpgroup carries 64 columns of a state, and reads what warps prepare once for all."""

from tuner.arch import Arch
from tuner.errors import TemplateError
from tuner.operator import Implementation, Launch, Plan
from tuner.space import Constraint, Space

from .fused_wgmma_config import (
    CARRIER_REGISTERS,
    COLUMNS,
    FEW,
    PRODUCER_REGISTERS,
    Config,
    ahead,
    smem_bytes,
    threads,
)
from .fused_wgmma_work import work
from .optional import SCALARS, TENSORS, pointers, taken
from .prep_scan import refusal as refused_by_chunks
from .problem import Problem

ENTRY = "kda_fused_wgmma"
KEY_DIMS = (64, 128)  # a warp prepares a chunk, and wgmma reads panels of 64 channels


def refusal(problem: Problem, arch: Arch) -> str | None:
    if not arch.has_wgmma:
        return f"{arch.name} has no wgmma: it is an instruction of sm_90a"
    if reason := refused_by_chunks(problem, arch):
        return reason
    if problem.operands != "bf16":
        return f"operands {problem.operands}: wgmma reads images of bf16, others are for fused"
    if problem.key_dim not in KEY_DIMS:
        return f"key_dim {problem.key_dim}: a warp prepares chunks of 64 or 128 channels, use fused"
    if problem.value_dim % COLUMNS:
        return f"value_dim {problem.value_dim} is no multiple of {COLUMNS}, the columns of a warpgroup: use fused"
    return None


def space(problem: Problem, arch: Arch) -> Space[Config]:
    crowded = problem.use_qk_l2norm_in_kernel and problem.key_dim == KEY_DIMS[-1]
    return Space(
        Config,
        choices={"cluster": (1, 2), "stages": (4, 8, 12), "producers": (4, 8)},
        constraints=(
            Constraint(
                "clusters share the columns of the state evenly",
                lambda c: problem.value_dim % (COLUMNS * c.cluster) == 0,
            ),
            Constraint(
                "a stage is always filled by the same producer of the same block",
                lambda c: c.stages % (c.producers * c.cluster) == 0,
            ),
            Constraint(
                "more producers have no registers for the lengths of long rows",
                lambda c: (c.producers <= FEW) | (not crowded),
            ),
            Constraint(
                "the stages and the producers fit the shared memory",
                lambda c: smem_bytes(problem, c) <= arch.smem_per_block,
            ),
        ),
    )


def plan(problem: Problem, config: Config) -> Plan:
    smem = int(smem_bytes(problem, config))
    grid = (problem.value_dim // COLUMNS, problem.value_heads, problem.sequences)
    arguments = taken(problem, *TENSORS, *SCALARS)
    launch = Launch(ENTRY, grid, int(threads(config)), smem, arguments, config.cluster)
    registers = {"carrier_registers": CARRIER_REGISTERS, "producer_registers": PRODUCER_REGISTERS}
    return Plan((launch,), {"smem_bytes": smem, "ahead": ahead(config), **registers, **pointers(problem)})


def default(problem: Problem, arch: Arch) -> Config:
    """Few producers, who have registers for every option. Pairs where a head has such."""
    config = Config(cluster=2 if problem.value_dim % (2 * COLUMNS) == 0 else 1, stages=8, producers=FEW)
    if reason := space(problem, arch).refusal(config):
        raise TemplateError(reason)
    return config


IMPLEMENTATION = Implementation(
    name="fused_wgmma",
    summary="fused on wgmma: a warpgroup carries 64 columns of a state, and reads each chunk once for all of them",
    config=Config,
    refusal=refusal,
    space=space,
    plan=plan,
    default=default,
    work=work,
    unproven=True,
)
