"""kda in two launches on mma.sync (sm_80 and up): chunks are prepared in parallel, then the state passes through."""

from tuner.arch import Arch
from tuner.dtype import DType
from tuner.errors import TemplateError
from tuner.operator import Implementation, Launch, Plan, Workspace
from tuner.space import Constraint, Space

from .optional import pointers, taken
from .prep_scan_config import (
    WARP,
    Config,
    image_bytes,
    prep_smem_bytes,
    prep_threads,
    register_estimate,
    register_limit,
    scan_smem_bytes,
    scan_threads,
    tokens_fit,
)
from .prep_scan_work import images, work
from .problem import Problem


def refusal(problem: Problem, _arch: Arch) -> str | None:
    if problem.dtype is DType.FP32:
        return "prep_scan rounds operands to bf16, which fp32 tensors are too exact for: use recurrent"
    return None


def space(problem: Problem, arch: Arch) -> Space[Config]:
    K, V = problem.key_dim, problem.value_dim
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
            Constraint("loading ahead takes a stage more", lambda c: (c.ahead == 0) | (c.stages > 2)),
            Constraint("no more keys are ahead than there are", lambda c: 16 * c.ahead <= K),
            Constraint("a thread of prep has 2 to 16 tokens", tokens_fit),
            Constraint("a block of prep is whole warps", lambda c: prep_threads(K, c) % WARP == 0),
            Constraint("a block of prep has at most 512 threads", lambda c: prep_threads(K, c) <= 512),
            Constraint(
                "the blocks of prep asked for fit the threads of an SM",
                lambda c: prep_threads(K, c) * c.prep_min_ctas <= arch.threads_per_sm,
            ),
            Constraint(
                "a thread of prep keeps 40 registers and 3 a token",
                lambda c: (
                    prep_threads(K, c) * c.prep_min_ctas * (40 + 3 * c.C // c.prep_groups) <= arch.registers_per_sm
                ),
            ),
            Constraint("prep fits the shared memory", lambda c: prep_smem_bytes(K, c) <= arch.smem_per_block),
            Constraint("the stages fit the shared memory", lambda c: scan_smem_bytes(K, c) <= arch.smem_per_block),
            Constraint("the state fits the registers", lambda c: register_estimate(K, c) <= register_limit(c, arch)),
        ),
    )


def plan(problem: Problem, config: Config) -> Plan:
    K, NT = problem.key_dim, images(problem, config.C)
    image, prep_smem = int(image_bytes(K, config.C)), int(prep_smem_bytes(K, config))
    scan_smem = int(scan_smem_bytes(K, config))
    scalars = ("scale", "lower_bound", "seq_len", "heads", "value_heads", "boundaries")
    prep = Launch(
        "kda_prep",
        (NT, problem.value_heads, problem.batch),
        prep_threads(K, config),
        prep_smem,
        taken(problem, "q", "k", "g", "beta", "A_log", "dt_bias", "cu_seqlens", *scalars, "chunks"),
    )
    scan = Launch(
        "kda_scan",
        (problem.value_dim // config.BV, problem.value_heads, problem.sequences),
        scan_threads(config),
        scan_smem,
        taken(problem, "v", "cu_seqlens", "initial_state", "o", "final_state", "seq_len", "value_heads", "chunks"),
    )
    sizes = {"image_bytes": image, "prep_smem_bytes": prep_smem, "scan_smem_bytes": scan_smem}
    chunks = Workspace("chunks", DType.INT32, (problem.batch, problem.value_heads, NT, image // 4))
    return Plan((prep, scan), {**sizes, **pointers(problem)}, (chunks,))


def default(problem: Problem, arch: Arch) -> Config:
    """Narrow blocks and short chunks: what fits every arch and never spills."""
    found = space(problem, arch)
    for BV in (64, 48, 32, 16):
        for stages in (4, 3, 2):
            for groups in (2, 4, 8, 1):
                config = Config(16, BV, 16, stages, True, 2, 0, groups, 1)
                if found.refusal(config) is None:
                    return config
    raise TemplateError(f"{arch.name} has no room for the smallest chunk of key_dim {problem.key_dim}")


IMPLEMENTATION = Implementation(
    name="prep_scan",
    summary="chunks prepared in parallel, then a chain of mma.sync with the state in registers",
    config=Config,
    refusal=refusal,
    space=space,
    plan=plan,
    default=default,
    work=work,
)
