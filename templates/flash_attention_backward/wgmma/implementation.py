"""flash_attention_backward on wgmma (sm_90a): a producer loads the streamed tiles, and sums are kept in registers."""

from collections.abc import Iterator
from functools import cache
from itertools import product

from tuner.arch import Arch
from tuner.spec import (
    Block,
    Constraint,
    DType,
    Implementation,
    Launch,
    Plan,
    Scalar,
    Space,
    TensorMap,
    Workspace,
    first_fit,
    limits,
)

from ...flash_attention.wgmma.config import WIDTHS, panel_width
from ..mma_sync.work import row_lanes, tiles
from ..problem import Problem, lse_gradient_row
from .config import (
    ROWS,
    Config,
    ctas,
    kv_owners,
    kv_register_estimate,
    kv_smem_bytes,
    panel,
    q_register_estimate,
    q_smem_bytes,
    registers,
)
from .work import work

MAX_GRID_YZ = 65535
ROW_THREADS = 256
ENTRY = "flash_attention_backward_"
_BOUNDS = ("cu_seqlens_q", "cu_seqlens_k", "boundaries")
PASS_SCALARS = ("row_values", "softmax_scale", "batch", "heads", "kv_heads", "seq_q", "seq_k", *_BOUNDS, "softcap")
KV_MAPS = ("k_rows", "v_rows", "q_tiles", "dout_tiles", "dk_rows", "dv_rows")  # maps of a block of keys
Q_MAPS = ("q_rows", "dout_rows", "k_tiles", "v_tiles", "dq_rows")


def refusal(problem: Problem, arch: Arch) -> str | None:
    if not arch.has_wgmma:
        return f"{arch.name} has no wgmma instructions: sm_90a has them"
    return unserved(problem)


def unserved(problem: Problem) -> str | None:
    """Why no implementation with two passes and TMA supports a problem on any arch; None if one does."""
    for name in ("head_dim", "head_dim_v"):
        if getattr(problem, name) < 16:
            return f"{name} {getattr(problem, name)}: the narrowest tile has 16 columns"
    if problem.dtype is DType.FP32:
        return "dtype fp32: tiles hold 16-bit operands"
    if max(problem.heads, problem.batch) > MAX_GRID_YZ:
        return f"batch {problem.batch} or heads {problem.heads} exceeds {MAX_GRID_YZ}, the grid's limit in y and z"
    if problem.use_s_aux:
        return "use_s_aux: no launch sums the gradient of s_aux; use mma_sync"
    if problem.use_window:
        return "use_window: its tiles start at the first key or query; mma_sync skips those outside windows"
    return None


def space(problem: Problem, arch: Arch) -> Space[Config]:
    D, DV, capped, packed = problem.head_dim, problem.head_dim_v, problem.use_softcap, problem.use_cu_seqlens
    widest = max(D, DV)
    return Space(
        Config,
        choices={
            "BM_kv": tuple(range(16, 129, 16)),
            "kv_warpgroups": (1, 2, 3),
            "kv_stages": (2, 3, 4),
            "kv_split": (False, True),
            "kv_chained": (False, True),
            "BN_q": tuple(range(16, 193, 16)),
            "q_warpgroups": (1, 2, 3),
            "q_stages": (2, 3, 4),
            "columns": WIDTHS,
        },
        constraints=(
            Constraint("a panel no wider than D, or one panel", lambda c: (c.columns < 2 * widest) | (c.columns == 16)),
            Constraint("two warpgroups share the keys of a split", lambda c: ~c.kv_split | (c.kv_warpgroups == 2)),
            Constraint("a split is worthwhile only for D > 96", lambda c: ~c.kv_split | (D + DV > 192)),
            Constraint("only a block that sums both dK and dV can be chained", lambda c: ~c.kv_split | ~c.kv_chained),
            Constraint(
                "a wgmma of N > 192 needs more than the 128 registers per thread at launch of one or three warpgroups",
                lambda c: ((widest <= 192) | (c.kv_warpgroups == 2)) & ((D <= 192) | (c.q_warpgroups == 2)),
            ),
            *limits(arch, *_blocks(problem)),
            Constraint(
                "sums, scores and products of dK and dV fit the registers",
                lambda c: kv_register_estimate(D, DV, c, capped=capped) <= registers(c.kv_warpgroups, packed=packed),
            ),
            Constraint(
                "sums, scores and products of dQ fit the registers",
                lambda c: q_register_estimate(D, c) <= registers(c.q_warpgroups, packed=packed),
            ),
        ),
    )


def _blocks(problem: Problem) -> tuple[Block, ...]:
    D, DV, packed = problem.head_dim, problem.head_dim_v, problem.use_cu_seqlens
    return (
        Block(
            f"{ENTRY}dkv",
            lambda c: 128 * (c.kv_warpgroups + 1),
            lambda c: kv_smem_bytes(D, DV, c, packed=packed),
            ctas=lambda c: ctas(c.kv_warpgroups),
            name="a block of dK and dV",
        ),
        Block(
            f"{ENTRY}dq",
            lambda c: 128 * (c.q_warpgroups + 1),
            lambda c: q_smem_bytes(D, DV, c, packed=packed),
            ctas=lambda c: ctas(c.q_warpgroups),
            name="a block of dQ",
        ),
    )


def plan(problem: Problem, config: Config) -> Plan:
    D, DV, B, H, HK = problem.head_dim, problem.head_dim_v, problem.batch, problem.heads, problem.kv_heads
    packed = problem.use_cu_seqlens
    kv_smem, q_smem = (int(smem(D, DV, config, packed=packed)) for smem in (kv_smem_bytes, q_smem_bytes))
    kv_grid = (tiles(problem, problem.seq_k, ROWS * int(kv_owners(config))), HK, B)
    q_grid = (tiles(problem, problem.seq_q, ROWS * config.q_warpgroups), H, B)
    kv_arguments = (*KV_MAPS, *("dk", "dv") * packed, *PASS_SCALARS)
    q_arguments = (*Q_MAPS, *("dq",) * packed, *PASS_SCALARS)
    return Plan(
        launches=(
            rows_launch(problem, config.BM_kv),
            Launch(f"{ENTRY}dkv", kv_grid, 128 * (config.kv_warpgroups + 1), kv_smem, kv_arguments),
            Launch(f"{ENTRY}dq", q_grid, 128 * (config.q_warpgroups + 1), q_smem, q_arguments),
        ),
        constants=constants(problem, kv_smem, q_smem),
        workspaces=(row_values(problem, config.BM_kv),),
        maps=pass_maps(int(panel(D, config.columns)), int(panel(DV, config.columns)), config.BM_kv, config.BN_q, ROWS),
    )


def rows_launch(problem: Problem, BM: int) -> Launch:
    """The launch that computes shift and delta of each query, in tiles of BM."""
    rows = problem.batch * problem.heads * tiles(problem, problem.seq_q, BM) * BM
    grid = (-(-rows * row_lanes(problem.head_dim_v) // ROW_THREADS), 1, 1)
    names = ("dout", "o", "lse", "dlse", "row_values", "batch", "heads", "seq_q", "cu_seqlens_q", "boundaries")
    return Launch(f"{ENTRY}rows", grid, ROW_THREADS, 0, names)


def row_values(problem: Problem, BM: int) -> Workspace:
    """The output of that launch for those that follow."""
    tiles_of_queries = tiles(problem, problem.seq_q, BM)
    return Workspace("row_values", DType.FP32, (problem.batch, problem.heads, tiles_of_queries, 2, BM))


def constants(problem: Problem, kv_smem: int, q_smem: int) -> dict[str, Scalar]:
    """Constants that the templates of two passes read."""
    sizes = {"row_threads": ROW_THREADS, "row_lanes": row_lanes(problem.head_dim_v)}
    pass_sizes = {"kv_smem_bytes": kv_smem, "q_smem_bytes": q_smem}
    return {**sizes, **pass_sizes, **lse_gradient_row(problem), **gradient_rows(problem)}


def gradient_rows(problem: Problem) -> dict[str, str]:
    """`<name>_rows_argument` → the address of a sequence's rows of a gradient, and the row stride; null if only TMA
    stores."""
    values, key_coordinates = {}, ("seq.first_key", "seq_k", "kv_head", "kv_heads")
    coordinates = {"dk": key_coordinates, "dv": key_coordinates, "dq": ("seq.first_query", "seq_q", "head", "heads")}
    for name, (first, rows, head, heads) in coordinates.items():
        step = f"{name}_{rows}_stride"
        address = f"{name} + {first} * {step} + {head} * {name}_{heads}_stride"
        values[f"{name}_rows_argument"] = f"{address}, {step}" if problem.use_cu_seqlens else "nullptr, 0"
    return values


@cache
def pass_maps(columns: int, value_columns: int, BM: int, BN: int, owned_rows: int) -> tuple[TensorMap, ...]:
    """Boxes of `owned_rows` rows of a block, and of the streamed tiles: panels of D columns, and of DV."""
    rows = {f"{name}_rows": (name, owned_rows) for name in ("k", "v", "dk", "dv", "q", "dout", "dq")}
    tiles = {"q_tiles": ("q", BM), "dout_tiles": ("dout", BM), "k_tiles": ("k", BN), "v_tiles": ("v", BN)}
    width = dict.fromkeys("qk", columns) | {"dq": columns, "dk": columns}

    def boxes(name: str, argument: str, height: int) -> TensorMap:
        wide = width.get(argument, value_columns)
        return TensorMap(name, argument, (1, height, 1, wide), swizzle=2 * wide)

    return tuple(boxes(name, *box) for name, box in (rows | tiles).items())


def default(problem: Problem, arch: Arch) -> Config:
    """The largest tiles that fit, chosen by counts and not by measured times.

    Queries streamed through keys: chained if that leaves tiles of 64, otherwise not; above D = 128, where both sums
    leave no room for such a tile, split. Three warpgroups for dQ if their registers hold 64 keys or more, since they
    share the loaded tiles. As many stages as fit, up to three.
    """
    D, DV = problem.head_dim, problem.head_dim_v
    columns = max(panel_width(D), panel_width(DV))
    passes = product(_choices_for_keys(D + DV), _choices_for_queries(problem))
    configs = (Config(*key_config, *query_config, columns) for key_config, query_config in passes)
    what = f"the smallest tiles of head_dim {D} and head_dim_v {DV}"
    return first_fit(space(problem, arch).allowed(configs), arch, what)


def _choices_for_keys(summed: int) -> Iterator[tuple[int, int, int, bool, bool]]:
    """BM_kv, kv_warpgroups, kv_stages, kv_split, kv_chained, the best first, for `summed` columns of dK and dV."""
    if summed <= 256:
        yield from ((BM, 2, stages, False, True) for BM in range(128, 63, -16) for stages in (3, 2))
        yield from ((BM, 2, stages, False, False) for BM in range(128, 15, -16) for stages in (3, 2))
    else:
        yield from ((BM, 2, stages, True, False) for BM in range(96, 15, -16) for stages in (3, 2))


def _choices_for_queries(problem: Problem) -> Iterator[tuple[int, int, int]]:
    """BN_q, q_warpgroups, q_stages, the best first. With a mask, most of a wider tile on the diagonal is masked."""
    widest = 128 if problem.causal else 144
    if problem.head_dim <= 96 and problem.seq_q > 2 * ROWS:
        yield from ((BN, 3, stages) for BN in range(widest, 63, -16) for stages in (3, 2))
    yield from ((BN, 2, stages) for BN in range(widest, 15, -16) for stages in (3, 2))


IMPLEMENTATION = Implementation(
    name="wgmma",
    summary="wgmma and TMA with producer and consumer warpgroups, without atomics; exact for every head_dim from 16",
    config=Config,
    refusal=refusal,
    space=space,
    plan=plan,
    default=default,
    blocks=_blocks,
    work=work,
    unproven=True,
)
