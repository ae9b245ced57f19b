"""kda for few heads and long sequences on mma.sync (sm_80 and up): each sequence is split into segments, exactly."""

from dataclasses import replace
from itertools import product

from tuner.arch import Arch
from tuner.errors import TemplateError
from tuner.spec import Constraint, DType, Implementation, Launch, Plan, Space, Workspace, limits

from ..operands import operands_of
from ..prep_scan.config import register_estimate, scan_threads
from ..prep_scan.implementation import loads_apart
from ..prep_scan.implementation import plan as scan_plan
from ..prep_scan.implementation import refusal as refused_by_chunks
from ..prep_scan.implementation import space as scan_space
from ..problem import Problem
from .config import MERGE_STAGES, Config, exceeds_grid, merge_block, merge_smem_bytes, merge_threads, within_grid
from .work import work

SEGMENTS = (4, 8, 16, 32, 64)
BLOCKS = 256  # the default does not split further once a scan has this many blocks
CHUNKS = 16  # the default does not split to fewer chunks per segment
WIDEST_SPLIT = 176  # channels of a state that leave a thread enough registers to split operands: above, map spills


def refusal(problem: Problem, arch: Arch) -> str | None:
    if reason := exceeds_grid(problem, SEGMENTS[0]):
        return reason
    if problem.operands == "fp32" and problem.key_dim > WIDEST_SPLIT:
        return f"key_dim {problem.key_dim} and operands split for fp32 do not fit the registers of map: use prep_scan"
    return refused_by_chunks(problem, arch)


def space(problem: Problem, arch: Arch) -> Space[Config]:
    K, operands = problem.key_dim, operands_of(problem)
    scan = scan_space(problem, arch)
    return Space(
        Config,
        choices={**scan.choices, "segments": SEGMENTS, "scan_min_ctas": (1, 2, 3), "merge_columns": (4, 8)},
        constraints=(
            *scan.constraints,
            Constraint("a block has columns of the state or of its map, not both", lambda c: K % c.BV == 0),
            Constraint(
                "scan_min_ctas blocks of a scan fit the registers of an SM",
                lambda c: register_estimate(K, c, operands) <= arch.registers_for(c.scan_min_ctas * scan_threads(c)),
            ),
            *limits(arch, merge_block(K)),
            within_grid(problem),
        ),
    )


def plan(problem: Problem, config: Config) -> Plan:
    """prep as launched by prep_scan; then maps, their merge, and the scan."""
    K, V, heads, S = problem.key_dim, problem.value_dim, problem.value_heads, config.segments
    chunks, smem = scan_plan(problem, config), int(merge_smem_bytes(K, config))
    prep, scan = chunks.launches
    sequences = problem.sequences
    grid = (V // (2 * config.merge_columns), heads, sequences)
    merged = ("cu_seqlens", "seq_len", "value_heads", "maps", "states")
    return Plan(
        launches=(
            prep,
            _scan_launch(problem, scan, "kda_map", (V + K) // config.BV, S - 1, "maps"),
            Launch("kda_merge", grid, merge_threads(K), smem, merged),
            _scan_launch(problem, scan, "kda_scan", V // config.BV, S, "o", "final_state"),
        ),
        constants={**chunks.constants, "merge_stages": MERGE_STAGES, "merge_smem_bytes": smem},
        workspaces=(
            *chunks.workspaces,
            Workspace("maps", DType.FP32, (sequences, heads, S - 2, K, K)),
            Workspace("states", DType.FP32, (sequences, heads, S - 1, K, V)),
        ),
    )


def _scan_launch(problem: Problem, scan: Launch, entry: str, blocks: int, segments: int, *written: str) -> Launch:
    """`blocks` blocks like those of `scan`, which share the columns carried through each of `segments` segments."""
    return replace(
        scan,
        entry=entry,
        grid=(blocks, problem.value_heads, problem.sequences * segments),
        arguments=("v", "cu_seqlens", "initial_state", *written, "seq_len", "value_heads", "chunks", "states"),
    )


def default(problem: Problem, arch: Arch) -> Config:
    """Blocks like those of prep_scan, and enough segments for many blocks. Two blocks per SM if half of its registers
    hold the state and its operands."""
    allowed, operands, K = space(problem, arch), operands_of(problem), problem.key_dim
    scans = (2, 1) if operands.products == 1 and operands.nbytes * K <= 512 and K < 192 else (1,)
    for BV, stages, groups, ctas in product((64, 48, 32, 16), (4, 3, 2), (4, 8, 2, 16), scans):
        segments, columns = _segments(problem, BV), _merge_columns(problem)
        config = Config(16, BV, 16, stages, loads_apart(problem), 2, 0, groups, 1, segments, ctas, columns)
        if allowed.refusal(config) is None:
            return config
    raise TemplateError(f"{arch.name} has no room for the smallest chunk of key_dim {problem.key_dim}")


def _segments(problem: Problem, BV: int) -> int:
    blocks = -(-problem.value_dim // BV) * problem.value_heads * problem.sequences
    chunks = -(-problem.mean_len // 16)
    return max(n for n in SEGMENTS if n == SEGMENTS[0] or (n * CHUNKS <= chunks and n * blocks <= BLOCKS))


def _merge_columns(problem: Problem) -> int:
    """The maximum that leaves blocks for half of the SMs of a large device."""
    return 8 if problem.sequences * problem.value_heads * problem.value_dim // 16 >= 64 else 4


IMPLEMENTATION = Implementation(
    name="segmented",
    summary="sequences split into segments that are scanned in parallel, joined by their affine maps in fp32",
    config=Config,
    refusal=refusal,
    space=space,
    plan=plan,
    default=default,
    blocks=lambda problem: (merge_block(problem.key_dim),),
    work=work,
)
