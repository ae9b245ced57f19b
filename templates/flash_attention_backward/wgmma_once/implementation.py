"""flash_attention_backward on wgmma (sm_90a) in one pass: blocks of keys add their parts of dQ in a fixed order."""

from itertools import product

from tuner.arch import Arch
from tuner.spec import (
    Block,
    Constraint,
    DType,
    Implementation,
    Launch,
    Plan,
    Space,
    TensorMap,
    Workspace,
    first_fit,
    limits,
)

from ...flash_attention.wgmma.config import WIDTHS, panel_width
from ..mma_sync.work import row_lanes, tiles
from ..problem import Problem, lse_gradient_row
from ..wgmma.config import ROWS
from .config import (
    BLOCK_KEYS,
    TILE_ROWS,
    WARPGROUPS,
    Config,
    part_bytes,
    register_estimate,
    registers,
    smem_bytes,
    widest,
)
from .work import query_tiles, work

ROW_THREADS = 256
_ENTRY = "flash_attention_backward_"
_BOUNDS = ("cu_seqlens_q", "cu_seqlens_k", "boundaries")
_QUERIES = ("batch", "heads", "seq_q", "cu_seqlens_q", "boundaries")
_SIZES = ("batch", "heads", "kv_heads", "seq_q", "seq_k")


def refusal(problem: Problem, arch: Arch) -> str | None:
    if not arch.has_wgmma:
        return f"{arch.name} has no wgmma instructions: sm_90a has them"
    if problem.head_dim < 16:
        return f"head_dim {problem.head_dim}: the narrowest tile has 16 columns"
    if problem.head_dim_v != problem.head_dim:
        return f"head_dim_v {problem.head_dim_v}: all tiles have the width head_dim {problem.head_dim}"
    if problem.head_dim > widest(packed=problem.use_cu_seqlens):
        return f"head_dim {problem.head_dim}: sums of dK and dV leave no registers for scores; use wgmma"
    if problem.dtype is DType.FP32:
        return "dtype fp32: tiles hold 16-bit operands"
    if problem.use_s_aux:
        return "use_s_aux: no launch sums the gradient of s_aux; use mma_sync"
    if problem.use_window:
        return "use_window: every block of keys adds to every dQ in order from the first; use mma_sync"
    if problem.use_softcap:
        return "softcap: its slopes do not fit the registers at the widest heads; use wgmma"
    return None


def space(problem: Problem, arch: Arch) -> Space[Config]:
    D = problem.head_dim
    packed = problem.use_cu_seqlens
    return Space(
        Config,
        choices={"stages": (2, 3, 4), "parts": (1, 2), "held": (0, 1, 2), "columns": WIDTHS},
        constraints=(
            Constraint("a panel no wider than D, or one panel", lambda c: (c.columns < 2 * D) | (c.columns == 16)),
            Constraint(
                "sums, scores, products and held operands fit the registers",
                lambda c: register_estimate(D, c.held) <= registers(packed=packed)[0],
            ),
            *limits(arch, *_blocks(problem)),
        ),
    )


def _blocks(problem: Problem) -> tuple[Block, ...]:
    D, packed = problem.head_dim, problem.use_cu_seqlens
    return (Block(f"{_ENTRY}once", lambda _: 128 * (WARPGROUPS + 1), lambda c: smem_bytes(D, c, packed=packed)),)


def plan(problem: Problem, config: Config) -> Plan:
    D, B, H, HK = problem.head_dim, problem.batch, problem.heads, problem.kv_heads
    packed = problem.use_cu_seqlens
    lanes, smem = row_lanes(D), int(smem_bytes(D, config, packed=packed))
    consumer_registers, producer_registers = registers(packed=packed)
    tile_dims = B, H, query_tiles(problem)
    rows = B * H * query_tiles(problem) * TILE_ROWS
    rows_arguments = ("dout", "o", "lse", "dlse", "row_values", "turns", "ticket", *_QUERIES)
    maps = ("k_rows", "v_rows", "q_tiles", "dout_tiles", "dk_rows", "dv_rows", *("dk", "dv") * packed)
    once_arguments = (
        *maps,
        "row_values",
        "dq_sums",
        "turns",
        "ticket",
        "softmax_scale",
        *_SIZES,
        *_BOUNDS,
    )
    dq_arguments = ("dq", "dq_sums", "softmax_scale", "batch", "heads", "seq_q", "seq_k", *_BOUNDS)
    blocks = tiles(problem, problem.seq_k, BLOCK_KEYS) * HK * B
    return Plan(
        launches=(
            Launch(f"{_ENTRY}rows", (-(-rows * lanes // ROW_THREADS), 1, 1), ROW_THREADS, 0, rows_arguments),
            Launch(f"{_ENTRY}once", (blocks, 1, 1), 128 * (WARPGROUPS + 1), smem, once_arguments),
            Launch(f"{_ENTRY}dq", (-(-rows // 2 * D // 8 // ROW_THREADS), 1, 1), ROW_THREADS, 0, dq_arguments),
        ),
        constants={
            "row_threads": ROW_THREADS,
            "row_lanes": lanes,
            "tile_rows": TILE_ROWS,
            "smem_bytes": smem,
            "registers": consumer_registers,
            "spare_registers": producer_registers,
            **lse_gradient_row(problem),
            **_gradient_rows(problem),
        },
        workspaces=(
            Workspace("row_values", DType.FP32, (*tile_dims, 2, TILE_ROWS)),
            Workspace("dq_sums", DType.FP32, (*tile_dims, part_bytes(D) // 4), exchanged=True),
            Workspace("turns", DType.INT32, tile_dims, exchanged=True),
            Workspace("ticket", DType.INT32, (1,), exchanged=True),
        ),
        maps=_maps(config.columns),
    )


def _gradient_rows(problem: Problem) -> dict[str, str]:
    """`<name>_rows_argument` → the address of a sequence's rows of a gradient, and the row stride; null if only TMA
    stores."""
    values = {}
    for name in ("dk", "dv"):
        address = f"{name} + seq.first_key * {name}_seq_k_stride + kv_head * {name}_kv_heads_stride"
        values[f"{name}_rows_argument"] = f"{address}, {name}_seq_k_stride" if problem.use_cu_seqlens else "nullptr, 0"
    return values


def _maps(columns: int) -> tuple[TensorMap, ...]:
    """Boxes of the rows of a warpgroup, and of the streamed tiles."""
    boxes = {f"{name}_rows": (name, ROWS) for name in ("k", "v", "dk", "dv")}
    boxes |= {"q_tiles": ("q", TILE_ROWS), "dout_tiles": ("dout", TILE_ROWS)}
    return tuple(
        TensorMap(name, argument, (1, rows, 1, columns), swizzle=2 * columns)
        for name, (argument, rows) in boxes.items()
    )


def default(problem: Problem, arch: Arch) -> Config:
    """Chosen by counts and not by measured times: two parts, so that no warpgroup waits for the other's, before a third
    stage."""
    columns, sizes = panel_width(problem.head_dim), product(((3, 2), (2, 2), (2, 1)), (2, 1, 0))
    configs = (Config(stages, parts, held, columns) for (stages, parts), held in sizes)
    return first_fit(space(problem, arch).allowed(configs), arch, f"the smallest tiles of head_dim {problem.head_dim}")


IMPLEMENTATION = Implementation(
    name="wgmma_once",
    summary="one pass on wgmma: five products per tile, parts of dQ added by TMA in order; up to head_dim 128",
    config=Config,
    refusal=refusal,
    space=space,
    plan=plan,
    default=default,
    blocks=_blocks,
    work=work,
    unproven=True,
)
