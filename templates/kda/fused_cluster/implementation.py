"""fused with clusters (sm_90 and up): the blocks of a head prepare each chunk once, and copy it to each other."""

from collections.abc import Iterator
from functools import partial
from itertools import product

from tuner.arch import Arch
from tuner.spec import Block, Constraint, Implementation, Launch, Plan, Space, first_fit, limits

from ..fused.config import chunk_block
from ..fused.implementation import rows_of, warps_prepare_chunks, widths
from ..launches import SCALARS, TENSORS, pool_strides
from ..prep_scan.config import WARP, by_registers, prep_threads, tokens_fit
from ..prep_scan.implementation import refusal as refused_by_chunks
from ..problem import Problem
from .config import Config, smem_bytes, threads
from .work import work

ENTRY = "kda_fused_cluster"


def refusal(problem: Problem, arch: Arch) -> str | None:
    if arch.compute_capability < 90:
        return f"{arch.name} has no clusters: they need sm_90 or newer"
    if reason := refused_by_chunks(problem, arch):
        return reason
    if problem.operands != "bf16":
        return f"operands {problem.operands}: only bf16 images are copied between blocks: use fused"
    if problem.value_dim < 32:
        return f"value_dim {problem.value_dim}: two blocks need 16 columns each: use fused"
    if next(_fitting(problem, arch), None) is None:
        return (
            f"no two blocks on {arch.name} share value_dim {problem.value_dim} with shared memory and registers for "
            f"chunks of key_dim {problem.key_dim}: use fused"
        )
    return None


def space(problem: Problem, arch: Arch) -> Space[Config]:
    K, V = problem.key_dim, problem.value_dim
    return Space(
        Config,
        choices={
            "C": (16, 32),
            "BV": (16, 32, 48, 64, 96, 128),
            "cluster": (2, 4),
            "rows": (16, 32),
            "stages": (2, 4, 6, 8, 12, 16),
            "partials": (1, 2),
            "prep_groups": (1, 2, 4, 8, 16),
            "producers": (1, 2, 3, 4, 6),
        },
        constraints=(
            Constraint("clusters share the columns of the state evenly", lambda c: V % (c.BV * c.cluster) == 0),
            Constraint("warps share the columns of a block evenly", lambda c: c.BV % c.rows == 0),
            Constraint("a producer has 1 to 16 tokens", tokens_fit),
            Constraint("a group of producers consists of complete warps", lambda c: prep_threads(K, c) % WARP == 0),
            Constraint(
                "a stage is always filled by the same producers of the same block, so that its barriers stay in order",
                lambda c: c.stages % (c.producers * c.cluster) == 0,
            ),
            *limits(arch, _block(problem)),
        ),
    )


def _block(problem: Problem) -> Block:
    return chunk_block(ENTRY, problem, partial(threads, problem.key_dim), partial(smem_bytes, problem))


def plan(problem: Problem, config: Config) -> Plan:
    smem = int(smem_bytes(problem, config))
    grid = (problem.value_dim // config.BV, problem.value_heads, problem.sequences)
    arguments = (*TENSORS, *SCALARS)
    launch = Launch(ENTRY, grid, int(threads(problem.key_dim, config)), smem, arguments, config.cluster)
    return Plan((launch,), {"smem_bytes": smem, "by_registers": by_registers(problem, config), **pool_strides(problem)})


def default(problem: Problem, arch: Arch) -> Config:
    """Pairs of blocks as wide as those of fused, with six groups of producers, or as many as shared memory and
    registers allow. Larger clusters copy more than they save."""
    return first_fit(_fitting(problem, arch), arch, f"the smallest chunk of key_dim {problem.key_dim}")


def _fitting(problem: Problem, arch: Arch) -> Iterator[Config]:
    K, allowed = problem.key_dim, space(problem, arch)
    for BV, (groups, stages, producers) in product(widths(problem, arch), _producer_choices(problem)):
        config = Config(16, BV, 2, rows_of(BV), stages, 1, groups, producers)
        if arch.registers_for(threads(K, config)) >= _registers(config) and allowed.refusal(config) is None:
            yield config


def _registers(config: Config) -> int:
    """Registers per thread with which no arch spills."""
    return 255 if config.rows == 32 or config.prep_groups == 1 else 168


def _producer_choices(problem: Problem) -> Iterator[tuple[int, int, int]]:
    """prep_groups, stages and producers. The more tokens a thread has, the fewer instructions a chunk needs, but the
    longer it takes: single warps take turns with several."""
    for stages, producers in ((12, 6), (8, 4), (6, 3), (4, 2), (2, 1)):
        single_warp = (1,) if producers > 2 and warps_prepare_chunks(problem) else ()
        yield from ((groups, stages, producers) for groups in (*single_warp, 2, 4, 8, 16))


IMPLEMENTATION = Implementation(
    name="fused_cluster",
    summary="fused in clusters of blocks that prepare each chunk once and copy it to each other",
    config=Config,
    refusal=refusal,
    space=space,
    plan=plan,
    default=default,
    blocks=lambda problem: (_block(problem),),
    work=work,
    unproven=True,
)
