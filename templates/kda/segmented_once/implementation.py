"""kda for few heads of short keys on mma.sync (sm_80 and up): sequences split into segments, whose chunks are processed
once; the contribution of a segment's initial state is added to its outputs."""

from collections.abc import Iterator
from functools import partial
from itertools import product

from tuner.arch import Arch
from tuner.spec import Block, Constraint, DType, Implementation, Launch, Plan, Space, Workspace, first_fit, limits

from ..fused.config import CHOICES, chunk_block, turns
from ..fused.implementation import producing, threads_with_registers
from ..launches import SCALARS, TENSORS, pool_strides
from ..prep_scan.config import WARP
from ..prep_scan.implementation import refusal as refused_by_chunks
from ..problem import Problem
from ..segmented.config import MERGE_STAGES, exceeds_grid, within_grid
from .config import Config, correct_bytes, correct_threads, pass_bytes, pass_threads
from .work import work

SEGMENTS = (2, 3, 4, 5, 6, 8, 12, 16, 24, 32)  # few, since each recomputes its state from all previous ones
BLOCKS = 128  # the default does not split further once pass has this many blocks
CHUNKS = 16  # the default does not split to fewer chunks per segment
THREADS = 384  # threads per block of pass, so that each has 168 registers
# threads of correct, so that each has 255 registers: a thread holds K V / 64 of the state, and tokens
CORRECT_THREADS = 256


def refusal(problem: Problem, arch: Arch) -> str | None:
    if problem.operands != "bf16":
        return f"operands {problem.operands}: partial outputs would be rounded to the dtype of o: use segmented"
    if (threads := correct_threads(problem)) % WARP or threads > CORRECT_THREADS:
        return (
            f"key_dim {problem.key_dim} by value_dim {problem.value_dim}: correct supports multiples of {16 * WARP} "
            f"up to {16 * CORRECT_THREADS}: use segmented_fused"
        )
    if reason := exceeds_grid(problem, SEGMENTS[0]):
        return reason
    if reason := refused_by_chunks(problem, arch):
        return reason
    if next(_fitting(problem, arch), None) is None:
        return (
            f"no block on {arch.name} has shared memory and registers for all columns of key_dim {problem.key_dim} and "
            f"value_dim {problem.value_dim} and for the warps that prepare chunks: use segmented_fused"
        )
    return None


def space(problem: Problem, arch: Arch) -> Space[Config]:
    K, V = problem.key_dim, problem.value_dim
    return Space(
        Config,
        choices={
            "C": (16, 32),
            **CHOICES,
            "segments": SEGMENTS,
        },
        constraints=(
            Constraint("a warp has columns of B or of A, not both", lambda c: (V % c.rows == 0) & (K % c.rows == 0)),
            *turns(K),
            *limits(arch, _block(problem)),
            within_grid(problem),
        ),
    )


def _block(problem: Problem) -> Block:
    return chunk_block("kda_pass", problem, partial(pass_threads, problem), partial(pass_bytes, problem))


def plan(problem: Problem, config: Config) -> Plan:
    """The maps of all segments, with outputs from a zero state; and the correction of these outputs."""
    K, V, heads, S = problem.key_dim, problem.value_dim, problem.value_heads, config.segments
    N, smem, correct_smem = problem.sequences, int(pass_bytes(problem, config)), correct_bytes(problem)
    workspaces = (
        Workspace("maps", DType.FP32, (N, heads, S - 1, K, K)),
        Workspace("states", DType.FP32, (N, heads, S, K, V)),
        Workspace("pulled", DType.BF16, (problem.batch, heads, problem.seq_len, K)),
    )
    spaces, ends = tuple(space.name for space in workspaces), S - 1 + problem.output_final_state
    sizes = {"merge_stages": MERGE_STAGES, "pass_smem_bytes": smem, "correct_smem_bytes": correct_smem}
    walk = Launch(
        "kda_pass",
        (1, heads, N * S),
        int(pass_threads(problem, config)),
        smem,
        (*TENSORS, *SCALARS, *spaces),
    )
    correct = Launch(
        "kda_correct",
        (1, heads, N * ends),
        correct_threads(problem),
        correct_smem,
        ("cu_seqlens", "o", "final_state", "seq_len", "value_heads", *spaces),
    )
    return Plan((walk, correct), {**sizes, **pool_strides(problem)}, workspaces)


def default(problem: Problem, arch: Arch) -> Config:
    """Enough segments for a block on each SM of a large device; 32 columns per warp, so that images are read half as
    often."""
    return first_fit(_fitting(problem, arch), arch, f"all columns of key_dim {problem.key_dim}")


def _fitting(problem: Problem, arch: Arch) -> Iterator[Config]:
    allowed, max_threads = space(problem, arch), min(THREADS, threads_with_registers(problem))
    for rows, (groups, stages, producers) in product((32, 16), producing(problem)):
        config = Config(16, rows, stages, 1, groups, producers, _segments(problem))
        if pass_threads(problem, config) <= max_threads and allowed.refusal(config) is None:
            yield config


def _segments(problem: Problem) -> int:
    heads, chunks = problem.value_heads * problem.sequences, -(-problem.mean_len // 16)
    return max(n for n in SEGMENTS if n == SEGMENTS[0] or (n * CHUNKS <= chunks and n * heads <= BLOCKS))


IMPLEMENTATION = Implementation(
    name="segmented_once",
    summary="segments processed once, in parallel; the contribution of their initial states is added to the outputs",
    config=Config,
    example=Problem(key_dim=64, value_dim=64, batch=2, heads=16, seq_len=4096),
    refusal=refusal,
    space=space,
    plan=plan,
    default=default,
    blocks=lambda problem: (_block(problem),),
    work=work,
)
