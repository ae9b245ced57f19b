"""fused on wgmma (sm_90a): warpgroups carry 64 columns of a state each, and read what warps prepare once for all."""

from tuner.arch import Arch
from tuner.spec import Block, Constraint, Implementation, Launch, Plan, Space, first_fit, limits

from ..launches import SCALARS, TENSORS, pool_strides
from ..prep_scan.config import WARP, by_registers
from ..prep_scan.implementation import refusal as refused_by_chunks
from ..problem import Problem
from .config import (
    CARRIER_REGISTERS,
    COLUMNS,
    FEW,
    MOST,
    Config,
    ahead,
    crowded,
    few,
    overfull,
    producer_registers,
    shape,
    smem_bytes,
    threads,
)
from .work import work

ENTRY = "kda_fused_wgmma"
KEY_DIMS = (64, 128)  # a warp prepares a chunk, and wgmma reads panels of 64 channels
WIDTHS = (64, 128)  # columns of a block: of one warpgroup, or two


def refusal(problem: Problem, arch: Arch) -> str | None:
    if not arch.has_wgmma:
        return f"{arch.name} has no wgmma: it is an instruction of sm_90a"
    if reason := refused_by_chunks(problem, arch):
        return reason
    if problem.operands != "bf16":
        return f"operands {problem.operands}: wgmma reads images of bf16, others are for fused"
    if problem.key_dim not in KEY_DIMS:
        return f"key_dim {problem.key_dim}: a warp prepares chunks of 64 or 128 channels, use fused"
    if overfull(problem):
        return (
            "key_dim 128 with lengths and raw gates of fp32 that may be of any size: a producer's registers do not "
            "hold them, promise a safe_gate or use fused"
        )
    if problem.value_dim % COLUMNS:
        return f"value_dim {problem.value_dim} is no multiple of {COLUMNS}, the columns of a warpgroup: use fused"
    return None


def space(problem: Problem, arch: Arch) -> Space[Config]:
    return Space(
        Config,
        choices={"columns": WIDTHS, "cluster": (1, 2), "stages": (4, 8, 12), "producers": (4, 8)},
        constraints=(
            Constraint(
                "clusters share the columns of the state evenly",
                lambda c: problem.value_dim % (c.columns * c.cluster) == 0,
            ),
            Constraint(
                "a stage is always filled by the same producer of the same block",
                lambda c: c.stages % (c.producers * c.cluster) == 0,
            ),
            Constraint("more warps have too few registers each", lambda c: threads(c) <= WARP * MOST),
            Constraint(
                "beside more warps producers have no registers for the lengths of long rows",
                lambda c: few(c) | (not crowded(problem)),
            ),
            *limits(arch, *_blocks(problem)),
        ),
    )


def _blocks(problem: Problem) -> tuple[Block, ...]:
    return (Block(ENTRY, threads, lambda c: smem_bytes(problem, c)),)


def plan(problem: Problem, config: Config) -> Plan:
    smem = int(smem_bytes(problem, config))
    grid = (problem.value_dim // config.columns, problem.value_heads, problem.sequences)
    arguments = (*TENSORS, *SCALARS)
    launch = Launch(ENTRY, grid, int(threads(config)), smem, arguments, config.cluster)
    registers = {
        "moved": not few(config),
        "carrier_registers": CARRIER_REGISTERS,
        "producer_registers": producer_registers(config),
    }
    ring = {
        "smem_bytes": smem,
        "ahead": ahead(problem, config),
        "by_registers": by_registers(problem, shape(problem.key_dim)),
    }
    return Plan((launch,), {**ring, **registers, **pool_strides(problem)})


def default(problem: Problem, arch: Arch) -> Config:
    """Few producers. Blocks of one warpgroup, where every thread has registers for every option, or of two where those
    would be more than a large device has SMs: each prepares chunks for all its columns. Pairs where a head has such."""
    many = problem.sequences * problem.value_heads * problem.value_dim > COLUMNS * arch.sm_count
    candidates = [Config(columns, cluster, 8, FEW) for columns in WIDTHS[:: -1 if many else 1] for cluster in (2, 1)]
    return first_fit(space(problem, arch).allowed(candidates), arch, f"chunks of key_dim {problem.key_dim}")


IMPLEMENTATION = Implementation(
    name="fused_wgmma",
    summary="fused on wgmma: warpgroups carry 64 columns of a state each, and read each chunk once for all of them",
    config=Config,
    refusal=refusal,
    space=space,
    plan=plan,
    default=default,
    blocks=_blocks,
    work=work,
    unproven=True,
)
