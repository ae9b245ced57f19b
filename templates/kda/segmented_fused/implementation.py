"""kda for few heads on mma.sync (sm_80 and up): sequences split into segments, whose chunks are prepared by the blocks
that need them."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product

from tuner.arch import Arch
from tuner.spec import Block, Constraint, DType, Implementation, Launch, Plan, Space, Workspace, first_fit, limits

from ..fused.config import block_bytes, chunk_block
from ..fused.implementation import producing, threads_with_registers
from ..fused.implementation import space as fused_space
from ..launches import SCALARS, TENSORS, pool_strides
from ..operands import operands_of
from ..prep_scan.implementation import refusal as refused_by_chunks
from ..problem import Problem
from ..segmented.config import MERGE_STAGES, exceeds_grid, merge_block, merge_smem_bytes, merge_threads, within_grid
from .config import Config, map_bytes, map_threads, scan_threads
from .work import work

SEGMENTS = (3, 5, 9, 17, 33, 65)  # all but one of them in parallel
BLOCKS = 128  # the default does not split further once a launch has this many blocks
CHUNKS = 16  # the default does not split to fewer chunks per segment
WIDEST = 128  # channels: a wider map needs so many blocks that images in memory are less expensive


def refusal(problem: Problem, arch: Arch) -> str | None:
    if reason := exceeds_grid(problem, SEGMENTS[0]):
        return reason
    if problem.key_dim > WIDEST:
        return f"key_dim {problem.key_dim}: each block of a map would prepare its chunks again: use segmented"
    if reason := refused_by_chunks(problem, arch):
        return reason
    if next(_fitting(problem, arch), None) is None:
        return (
            f"no block on {arch.name} has shared memory and registers for maps of key_dim {problem.key_dim} in "
            f"{problem.operands} and for the warps that prepare chunks: use segmented"
        )
    return None


def space(problem: Problem, arch: Arch) -> Space[Config]:
    K, V = problem.key_dim, problem.value_dim
    fused = fused_space(problem, arch)
    return Space(
        Config,
        choices={
            **fused.choices,
            "segments": SEGMENTS,
            "map_columns": tuple(sorted({16, 32, 48, 64, 96, 128, K + V})),
            "map_rows": (16, 32),
            "merge_columns": (4, 8),
        },
        constraints=(
            *fused.constraints,
            Constraint(
                "a block of map has all columns of B and A, or some of one of them",
                lambda c: (c.map_columns == K + V) | ((V % c.map_columns == 0) & (K % c.map_columns == 0)),
            ),
            Constraint("warps share the columns of a map evenly", lambda c: c.map_columns % c.map_rows == 0),
            Constraint("a warp of map has columns of B or of A, not both", lambda c: V % c.map_rows == 0),
            Constraint(
                "the first segment has at least as many blocks of map as of scan",
                lambda c: c.map_columns * V <= c.BV * (K + V),
            ),
            *limits(arch, *_blocks(problem)),
            within_grid(problem),
        ),
    )


def _blocks(problem: Problem) -> tuple[Block, ...]:
    K = problem.key_dim
    maps = chunk_block("kda_map", problem, partial(map_threads, K), partial(map_bytes, problem), lambda c: c.map_rows)
    return replace(maps, name="a block of map"), merge_block(K)


def plan(problem: Problem, config: Config) -> Plan:
    """The first segments and the maps of the others; their merge; and the scan of all but the first."""
    K, V, heads, S = problem.key_dim, problem.value_dim, problem.value_heads, config.segments
    N, merge_smem = problem.sequences, int(merge_smem_bytes(K, config))
    smem = int(map_bytes(problem, config))
    scan_smem = int(block_bytes(problem, config, config.BV))
    maps = Launch(
        "kda_map",
        ((V + K) // config.map_columns, heads, N * (S - 1)),
        int(map_threads(K, config)),
        smem,
        (*TENSORS, *SCALARS, "maps", "states"),
    )
    merge = Launch(
        "kda_merge",
        (V // (2 * config.merge_columns), heads, N),
        merge_threads(K),
        merge_smem,
        ("cu_seqlens", "seq_len", "value_heads", "maps", "states"),
    )
    scan = replace(
        maps,
        entry="kda_scan",
        grid=(V // config.BV, heads, N * (S - 1)),
        threads=int(scan_threads(K, config)),
        smem_bytes=scan_smem,
        arguments=tuple(name for name in (*TENSORS, *SCALARS, "states") if name != "initial_state"),
    )
    sizes = {"map_smem_bytes": smem, "scan_smem_bytes": scan_smem, "merge_smem_bytes": merge_smem}
    return Plan(
        (maps, merge, scan),
        {"operands": operands_of(problem).cuda, "merge_stages": MERGE_STAGES, **sizes, **pool_strides(problem)},
        workspaces=(
            Workspace("maps", DType.FP32, (N, heads, S - 2, K, K)),
            Workspace("states", DType.FP32, (N, heads, S - 1, K, V)),
        ),
    )


def default(problem: Problem, arch: Arch) -> Config:
    """All columns of B and A in one block if they fit, so that each chunk is prepared once per launch, and enough
    segments for a block on each SM of a large device."""
    return first_fit(_fitting(problem, arch), arch, f"the smallest maps of key_dim {problem.key_dim}")


def _fitting(problem: Problem, arch: Arch) -> Iterator[Config]:
    K, V, allowed = problem.key_dim, problem.value_dim, space(problem, arch)
    for (BV, columns), (groups, stages, producers), map_rows in product(_widths(K, V), producing(problem), (32, 16)):
        segments = _segments(problem, max(V // BV, (V + K) // columns))
        config = Config(16, BV, 16, stages, 1, groups, producers, segments, columns, map_rows, 4)
        if map_threads(K, config) <= _threads(problem, arch) and allowed.refusal(config) is None:
            yield config


def _threads(problem: Problem, arch: Arch) -> int:
    """On sm_120a, ptxas spills the state that map stores V-first unless a thread has 255 registers."""
    stored = problem.output_final_state and problem.state_v_first
    return 256 if stored and arch.name == "sm_120a" else threads_with_registers(problem)


def _widths(K: int, V: int) -> Iterator[tuple[int, int]]:
    """Columns per block: of the state, and of B and A."""
    if V <= 64:
        yield V, V + K
    yield from ((width, width) for width in (64, 48, 32, 16))


def _segments(problem: Problem, blocks: int) -> int:
    """Enough segments for a launch to have BLOCKS blocks, with `blocks` per segment."""
    blocks *= problem.value_heads * problem.sequences
    chunks = -(-problem.mean_len // 16)
    return max(n for n in SEGMENTS if n == SEGMENTS[0] or (n * CHUNKS <= chunks and (n - 1) * blocks <= BLOCKS))


IMPLEMENTATION = Implementation(
    name="segmented_fused",
    summary="segments scanned in parallel by producer warps (chunks) and consumer warps (the state)",
    config=Config,
    refusal=refusal,
    space=space,
    plan=plan,
    default=default,
    blocks=_blocks,
    work=work,
)
