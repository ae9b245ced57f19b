"""fused on wgmma (sm_90a): consumer warpgroups carry 64 columns of a state each, and read chunks that producer warps
prepare once for all of them."""

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
WIDTHS = (64, 128)  # columns of a block with one or two warpgroups


def refusal(problem: Problem, arch: Arch) -> str | None:
    if not arch.has_wgmma:
        return f"{arch.name} has no wgmma instructions: sm_90a has them"
    if reason := refused_by_chunks(problem, arch):
        return reason
    if problem.operands != "bf16":
        return f"operands {problem.operands}: wgmma reads bf16 images: use fused"
    if problem.key_dim not in KEY_DIMS:
        return f"key_dim {problem.key_dim}: a warp prepares chunks of 64 or 128 channels: use fused"
    if overfull(problem):
        return (
            "key_dim 128 with in-kernel normalization and raw fp32 gates of any size does not fit the registers of  "
            "a producer: set safe_gate or use fused"
        )
    if problem.value_dim % COLUMNS:
        return f"value_dim {problem.value_dim} is not a multiple of {COLUMNS}, the columns of a warpgroup: use fused"
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
            Constraint("with more warps, each has too few registers", lambda c: threads(c) <= WARP * MOST),
            Constraint(
                "with more warps, producers have too few registers to normalize long rows",
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
    """Few producers. Blocks of one warpgroup, in which every thread has enough registers for every option, or of two if
    there would be more blocks than a large device has SMs, since each block prepares chunks for all its columns. Pairs
    of blocks if a head has several."""
    exceeds_sms = problem.sequences * problem.value_heads * problem.value_dim > COLUMNS * arch.sm_count
    candidates = [
        Config(columns, cluster, 8, FEW) for columns in WIDTHS[:: -1 if exceeds_sms else 1] for cluster in (2, 1)
    ]
    return first_fit(space(problem, arch).allowed(candidates), arch, f"chunks of key_dim {problem.key_dim}")


IMPLEMENTATION = Implementation(
    name="fused_wgmma",
    summary="fused on wgmma: warpgroups carry 64 columns of a state each, and share each prepared chunk",
    config=Config,
    refusal=refusal,
    space=space,
    plan=plan,
    default=default,
    blocks=_blocks,
    work=work,
    unproven=True,
)
