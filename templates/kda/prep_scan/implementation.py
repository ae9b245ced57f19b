"""kda in two launches on mma.sync (sm_80 and up): chunks are prepared in parallel, then the state is scanned over
them."""

from functools import partial
from itertools import product

from tuner.arch import Arch
from tuner.spec import Block, Constraint, DType, Implementation, Launch, Plan, Space, Workspace, first_fit, limits

from ..launches import SCALARS, pool_strides
from ..operands import operands_of
from ..problem import Problem
from .config import (
    WARP,
    Config,
    image_bytes,
    prep_block_bytes,
    prep_threads,
    register_estimate,
    scan_smem_bytes,
    scan_threads,
    token_registers,
    tokens_fit,
)
from .work import images, work

SMALLEST = Config(16, 16, 16, 2, True, 1, 0, 1, 1)  # the config with the least shared memory
WIDEST_SPLIT = 224  # channels of a state that leave a thread enough registers to split operands: above, scan spills


def refusal(problem: Problem, arch: Arch) -> str | None:
    if problem.inplace_final_state:
        return "inplace_final_state: chunks do not support a pool of states: use recurrent"
    if problem.operands == "fp32" and problem.key_dim > WIDEST_SPLIT:
        return f"key_dim {problem.key_dim} and operands split for fp32 do not fit the registers: use recurrent, or tf32"
    needed = int(scan_smem_bytes(problem.key_dim, SMALLEST, operands_of(problem), problem.dtype.itemsize))
    if not arch.fits_smem(needed):
        return (
            f"two chunks of key_dim {problem.key_dim} in {problem.operands} are {needed} bytes of shared memory, and a "
            f"block on {arch.name} has {arch.smem_per_block}: use recurrent"
        )
    return None


def space(problem: Problem, arch: Arch) -> Space[Config]:
    K, V, operands = problem.key_dim, problem.value_dim, operands_of(problem)
    a_token = token_registers(problem)
    return Space(
        Config,
        choices={
            "C": (16, 32),
            "BV": (16, 32, 48, 64, 96, 128),
            "rows": (16, 32),
            "stages": (2, 3, 4),
            "loader": (True, False),
            "partials": (1, 2),
            "ahead": (0, 2, 4),
            "prep_groups": (1, 2, 4, 8, 16),
            "prep_min_ctas": (1, 4, 8),
        },
        constraints=(
            Constraint("blocks share the columns of the state evenly", lambda c: V % c.BV == 0),
            Constraint("warps share the columns of a block evenly", lambda c: c.BV % c.rows == 0),
            Constraint("loading ahead needs one more stage", lambda c: (c.ahead == 0) | (c.stages > 2)),
            Constraint("at most all keys are loaded ahead", lambda c: operands.step * c.ahead <= K),
            Constraint("a thread of prep has 1 to 16 tokens", tokens_fit),
            Constraint("a block of prep consists of complete warps", lambda c: prep_threads(K, c) % WARP == 0),
            Constraint("a block of prep has at most 512 threads", lambda c: prep_threads(K, c) <= 512),
            Constraint(
                "prep_min_ctas blocks of prep fit the threads of an SM",
                lambda c: prep_threads(K, c) * c.prep_min_ctas <= arch.threads_per_sm,
            ),
            Constraint(
                "a thread of prep has 40 registers besides q, k and g of its tokens",
                lambda c: (
                    prep_threads(K, c) * c.prep_min_ctas * (40 + a_token * c.C // c.prep_groups)
                    <= arch.registers_per_sm
                ),
            ),
            *limits(arch, *blocks(problem)),
        ),
    )


def blocks(problem: Problem) -> tuple[Block, ...]:
    K, operands, element = problem.key_dim, operands_of(problem), problem.dtype.itemsize
    return (
        Block("kda_prep", partial(prep_threads, K), partial(prep_block_bytes, problem), name="a block of prep"),
        Block(
            "kda_scan",
            scan_threads,
            lambda c: scan_smem_bytes(K, c, operands, element),
            lambda c: register_estimate(K, c, operands),
            name="a block of scan",
        ),
    )


def plan(problem: Problem, config: Config) -> Plan:
    K, NT = problem.key_dim, images(problem, config.C)
    operands = operands_of(problem)
    image, prep_smem = int(image_bytes(K, config.C, operands)), int(prep_block_bytes(problem, config))
    scan_smem = int(scan_smem_bytes(K, config, operands, problem.dtype.itemsize))
    prep = Launch(
        "kda_prep",
        (NT, problem.value_heads, problem.batch),
        prep_threads(K, config),
        prep_smem,
        ("q", "k", "g", "beta", "A_log", "dt_bias", "cu_seqlens", *SCALARS, "boundaries", "chunks"),
    )
    scan = Launch(
        "kda_scan",
        (problem.value_dim // config.BV, problem.value_heads, problem.sequences),
        scan_threads(config),
        scan_smem,
        ("v", "cu_seqlens", "initial_state", "o", "final_state", "seq_len", "value_heads", "chunks"),
    )
    sizes = {"image_bytes": image, "prep_smem_bytes": prep_smem, "scan_smem_bytes": scan_smem}
    chunks = Workspace("chunks", DType.INT32, (problem.batch, problem.value_heads, NT, image // 4))
    return Plan((prep, scan), {"operands": operands.cuda, **sizes, **pool_strides(problem)}, (chunks,))


def default(problem: Problem, arch: Arch) -> Config:
    """Narrow blocks and short chunks, which fit every arch and never spill."""
    loader, sizes = loads_apart(problem), product((64, 48, 32, 16), (4, 3, 2), (4, 8, 2, 16))
    configs = (Config(16, BV, 16, stages, loader, 2, 0, groups, 1) for BV, stages, groups in sizes)
    return first_fit(space(problem, arch).allowed(configs), arch, f"the smallest chunk of key_dim {problem.key_dim}")


def loads_apart(problem: Problem) -> bool:
    """Whether the default has a loader warp: not with split operands at the key dims for which ptxas spills with
    one."""
    return operands_of(problem).products == 1 or problem.key_dim not in (160, 176)


IMPLEMENTATION = Implementation(
    name="prep_scan",
    summary="chunks prepared in parallel, then a chain of mma.sync with the state in registers",
    config=Config,
    refusal=refusal,
    space=space,
    plan=plan,
    default=default,
    blocks=blocks,
    work=work,
)
