"""flash_attention_backward on mma.sync (sm_80 and up): dK and dV by blocks of keys, dQ by blocks of queries."""

from typing import Any

from tuner.arch import Arch
from tuner.errors import TemplateError
from tuner.spec import Block, Constraint, DType, Implementation, Launch, Plan, Space, Workspace, limits

from ...flash_attention.mma_sync.implementation import exceeds_grid
from ..problem import Problem, lse_gradient_row
from .config import (
    WARP,
    Config,
    kv_columns,
    kv_register_estimate,
    kv_smem_bytes,
    q_register_estimate,
    q_smem_bytes,
)
from .work import row_lanes, tiles, work

ROW_THREADS = 256
_INPUTS = ("dout", "q", "k", "v")
_SIZES = (
    *("batch", "heads", "kv_heads", "seq_q", "seq_k", "cu_seqlens_q", "cu_seqlens_k", "boundaries", "softcap"),
    *("window_left", "window_right"),
)


def refusal(problem: Problem, _arch: Arch) -> str | None:
    if problem.dtype is DType.FP32:
        return "dtype fp32: mma_sync multiplies 16-bit operands"
    return exceeds_grid(problem)


def space(problem: Any, arch: Arch) -> Space[Config]:
    """Only head_dim and head_dim_v of the problem are read, so that the space serves any mask."""
    D, DV = problem.head_dim, problem.head_dim_v
    return Space(
        Config,
        choices={
            "BN_kv": (32, 64, 96, 128),
            "BM_kv": (16, 32, 48, 64),
            "kv_warps": (2, 4, 6, 8),
            "kv_stages": (2, 3),
            "kv_slices": (1, 2, 3, 4),
            "kv_min_ctas": (1, 2),
            "BM_q": (32, 64, 96, 128),
            "BN_q": (16, 32, 48, 64),
            "q_warps": (2, 4, 6, 8),
            "q_stages": (2, 3),
            "q_min_ctas": (1, 2),
        },
        constraints=(
            _whole_rows("keys", lambda c: c.BN_kv, lambda c: c.kv_warps),
            _whole_rows("queries", lambda c: c.BM_q, lambda c: c.q_warps),
            Constraint("a thread loads the values of a query", lambda c: c.BM_kv <= WARP * c.kv_warps),
            Constraint("slices are worthwhile only for D > 96", lambda c: (c.kv_slices == 1) | (D + DV > 192)),
            Constraint("every slice contains columns", lambda c: _holds_columns(max(D, DV), c)),
            *limits(arch, *blocks_of("flash_attention_backward", D, DV)),
        ),
    )


def blocks_of(operator: str, D: int, DV: int) -> tuple[Block, ...]:
    """Limits of the blocks of dK and dV, and of dQ."""
    return (
        Block(
            f"{operator}_dkv",
            lambda c: WARP * c.kv_warps,
            lambda c: kv_smem_bytes(D, DV, c),
            lambda c: kv_register_estimate(D, DV, c),
            lambda c: c.kv_min_ctas,
            "a block of dK and dV",
        ),
        Block(
            f"{operator}_dq",
            lambda c: WARP * c.q_warps,
            lambda c: q_smem_bytes(D, DV, c),
            lambda c: q_register_estimate(D, c),
            lambda c: c.q_min_ctas,
            "a block of dQ",
        ),
    )


def _holds_columns(D: int, c: Any) -> Any:
    """Whether the last slice contains columns of D."""
    return kv_columns(D, c) * (c.kv_slices - 1) < D // 8


def _whole_rows(unit: str, rows: Any, warps: Any) -> Constraint:
    return Constraint(f"a warp owns 16 or 32 {unit}", lambda c: (rows(c) == 16 * warps(c)) | (rows(c) == 32 * warps(c)))


def plan(problem: Problem, config: Config) -> Plan:
    B, H, HK, T = problem.batch, problem.heads, problem.kv_heads, problem.seq_q
    constants = constants_of(problem, config)
    kv_grid = (tiles(problem, problem.seq_k, config.BN_kv) * config.kv_slices, HK, B)
    q_grid = (tiles(problem, T, config.BM_q), H, B)
    common, sizes = (*_INPUTS, "row_values"), _SIZES
    return Plan(
        launches=(
            rows_launch("flash_attention_backward_rows", problem),
            Launch(
                "flash_attention_backward_dkv",
                kv_grid,
                WARP * config.kv_warps,
                constants["kv_smem_bytes"],
                (*common, "dk", "dv", "softmax_scale", *sizes),
            ),
            Launch(
                "flash_attention_backward_dq",
                q_grid,
                WARP * config.q_warps,
                constants["q_smem_bytes"],
                (*common, "dq", "softmax_scale", *sizes),
            ),
            *(logits_launch(problem),) * problem.use_s_aux,
        ),
        constants=constants,
        workspaces=(row_values(problem),),
    )


def rows_launch(entry: str, problem: Any) -> Launch:
    """The launch of the kernel that writes `row_values`."""
    threads = problem.batch * problem.heads * problem.seq_q * row_lanes(problem.head_dim_v)
    arguments = ("dout", "o", "lse", "dlse", "row_values", "batch", "heads", "seq_q")
    return Launch(entry, (-(-threads // ROW_THREADS), 1, 1), ROW_THREADS, 0, arguments)


def logits_launch(problem: Problem) -> Launch:
    """The launch of the kernel that sums the gradient of s_aux, one block per head."""
    arguments = ("row_values", "s_aux", "ds_aux", "batch", "heads", "seq_q", "cu_seqlens_q", "boundaries")
    warps = ROW_THREADS // WARP
    return Launch("flash_attention_backward_ds_aux", (problem.heads, 1, 1), ROW_THREADS, 4 * warps, arguments)


def row_values(problem: Any) -> Workspace:
    """Shift and delta of each query of a head."""
    return Workspace("row_values", DType.FP32, (problem.batch, problem.heads, problem.seq_q, 2))


def constants_of(problem: Any, config: Config) -> dict[str, Any]:
    """Constants that the kernels of rows, of dK and dV, and of dQ read, for any mask."""
    D, DV = problem.head_dim, problem.head_dim_v
    return {
        "row_threads": ROW_THREADS,
        "row_lanes": row_lanes(DV),
        "kv_columns": int(kv_columns(D, config)),
        "kv_value_columns": int(kv_columns(DV, config)),
        "kv_smem_bytes": int(kv_smem_bytes(D, DV, config)),
        "q_smem_bytes": int(q_smem_bytes(D, DV, config)),
        **lse_gradient_row(problem),
    }


# Rows of a block, rows per step, and warps (and slices): the first that fits is the default.
_KEYS = (
    (128, 32, 8, 1),
    (64, 32, 4, 1),
    (64, 16, 4, 1),
    (64, 32, 4, 2),
    (64, 16, 4, 2),
    (32, 16, 2, 2),
    (32, 16, 2, 4),
)
_QUERIES = ((128, 32, 8), (64, 32, 4), (64, 16, 4), (32, 16, 2))
_REGISTERS = 216  # configs with estimates up to this compile without spills on every arch


def default(problem: Any, arch: Arch) -> Config:
    """The largest tiles that neither spill nor exceed the shared memory of the arch, for any problem of these
    widths."""
    D, DV = problem.head_dim, problem.head_dim_v
    for BN_kv, BM_kv, kv_warps, kv_slices in _KEYS:
        for BM_q, BN_q, q_warps in _QUERIES:
            config = Config(BN_kv, BM_kv, kv_warps, 2, kv_slices, 1, BM_q, BN_q, q_warps, 2, 1)
            smem = max(int(kv_smem_bytes(D, DV, config)), int(q_smem_bytes(D, DV, config)))
            register_count = max(float(kv_register_estimate(D, DV, config)), float(q_register_estimate(D, config)))
            if arch.fits_smem(smem) and register_count <= _REGISTERS:
                return config
    raise TemplateError(f"{arch.name} has no room for the smallest tiles of head_dim {D} and head_dim_v {DV}")


IMPLEMENTATION = Implementation(
    name="mma_sync",
    summary="tensor cores through mma.sync; scores are computed once for dK and dV and once for dQ, without atomics",
    config=Config,
    refusal=refusal,
    space=space,
    plan=plan,
    default=default,
    blocks=lambda problem: blocks_of("flash_attention_backward", problem.head_dim, problem.head_dim_v),
    work=work,
)
