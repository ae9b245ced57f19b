"""flash_attention_backward on tcgen05: one thread issues all products, sums and operands are in tensor memory, and each
thread processes a row of P and dS."""

from functools import partial
from itertools import product

from tuner.arch import Arch
from tuner.errors import TemplateError
from tuner.spec import Block, Constraint, Implementation, Launch, Plan, Space, limits

from ...flash_attention.tcgen05.config import LAST_COLUMNS, ROWS, allocated
from ...flash_attention.wgmma.config import WIDTHS, panel_width, round_up
from ..mma_sync.work import tiles
from ..problem import Problem
from ..wgmma.config import panel
from ..wgmma.implementation import (
    ENTRY,
    KV_MAPS,
    PASS_SCALARS,
    Q_MAPS,
    constants,
    pass_maps,
    row_values,
    rows_launch,
    unserved,
)
from .config import (
    WARPGROUPS,
    WIDEST,
    Config,
    kv_columns,
    kv_smem_bytes,
    q_columns,
    q_smem_bytes,
)
from .work import work

_TILES = tuple(range(32, 129, 16))
_STAGES = (2, 3, 4)
_POLYNOMIALS = (0, 8, 4, 3)
THREADS = 128 * (WARPGROUPS + 1)
_SMALLEST = Config(_TILES[0], 1, 2, 0, _TILES[0], 1, 2, 0, WIDTHS[-1])


def refusal(problem: Problem, arch: Arch) -> str | None:
    if not arch.has_tcgen05:
        return f"{arch.name} has no tcgen05 instructions: sm_100a, sm_103a and sm_110a have them"
    D, DV = problem.head_dim, problem.head_dim_v
    if kv_columns(D, DV, _SMALLEST) > LAST_COLUMNS:
        return f"head_dim {D} and head_dim_v {DV}: dK and dV leave no room for scores in tensor memory"
    return unserved(problem)


def space(problem: Problem, arch: Arch) -> Space[Config]:
    D, DV = problem.head_dim, problem.head_dim_v
    widest = max(D, DV)
    return Space(
        Config,
        choices={
            "BM_kv": _TILES,
            "kv_row_tiles": (1, 2),
            "kv_stages": _STAGES,
            "kv_polynomial": _POLYNOMIALS,
            "BN_q": _TILES,
            "q_row_tiles": (1, 2),
            "q_stages": _STAGES,
            "q_polynomial": _POLYNOMIALS,
            "columns": WIDTHS,
        },
        constraints=(
            Constraint("a panel no wider than D, or one panel", lambda c: (c.columns < 2 * widest) | (c.columns == 16)),
            Constraint(
                "a thread computes up to 64 columns of a tile: two warpgroups split a wider tile",
                lambda c: (
                    (c.BM_kv * c.kv_row_tiles <= WARPGROUPS * WIDEST) & (c.BN_q * c.q_row_tiles <= WARPGROUPS * WIDEST)
                ),
            ),
            Constraint("dK, dV, S, dP, P and dS fit tensor memory", lambda c: kv_columns(D, DV, c) <= LAST_COLUMNS),
            Constraint("dQ, S, dP and dS fit tensor memory", lambda c: q_columns(D, c) <= LAST_COLUMNS),
            *limits(arch, *_blocks(problem)),
        ),
    )


def _blocks(problem: Problem) -> tuple[Block, ...]:
    D, DV, packed = problem.head_dim, problem.head_dim_v, problem.use_cu_seqlens
    kv, q = (partial(smem, D, DV, packed=packed) for smem in (kv_smem_bytes, q_smem_bytes))
    return (
        Block(f"{ENTRY}dkv", lambda _: THREADS, kv, name="a block of dK and dV"),
        Block(f"{ENTRY}dq", lambda _: THREADS, q, name="a block of dQ"),
    )


def plan(problem: Problem, config: Config) -> Plan:
    D, DV, B, H, HK = problem.head_dim, problem.head_dim_v, problem.batch, problem.heads, problem.kv_heads
    packed, threads = problem.use_cu_seqlens, THREADS
    kv_smem, q_smem = (int(smem(D, DV, config, packed=packed)) for smem in (kv_smem_bytes, q_smem_bytes))
    kv_tensor, q_tensor = int(allocated(kv_columns(D, DV, config))), int(allocated(q_columns(D, config)))
    kv_grid = (tiles(problem, problem.seq_k, ROWS * config.kv_row_tiles), HK, B)
    q_grid = (tiles(problem, problem.seq_q, ROWS * config.q_row_tiles), H, B)
    kv_arguments = (*KV_MAPS, *("dk", "dv") * packed, *PASS_SCALARS)
    q_arguments = (*Q_MAPS, *("dq",) * packed, *PASS_SCALARS)
    return Plan(
        launches=(
            rows_launch(problem, config.BM_kv),
            Launch(f"{ENTRY}dkv", kv_grid, threads, kv_smem, kv_arguments, tensor_columns=kv_tensor),
            Launch(f"{ENTRY}dq", q_grid, threads, q_smem, q_arguments, tensor_columns=q_tensor),
        ),
        constants={
            **constants(problem, kv_smem, q_smem),
            "kv_tensor_columns": kv_tensor,
            "q_tensor_columns": q_tensor,
        },
        workspaces=(row_values(problem, config.BM_kv),),
        maps=pass_maps(int(panel(D, config.columns)), int(panel(DV, config.columns)), config.BM_kv, config.BN_q, ROWS),
    )


def default(problem: Problem, arch: Arch) -> Config:
    """One row tile for two warpgroups, the largest tiles that fit, and a third stage if it fits.

    With packed sequences, threads also keep the bounds of their sequence: with 128 queries per tile they spill.
    """
    D, DV = problem.head_dim, problem.head_dim_v
    allowed = space(problem, arch)
    columns = max(panel_width(D), panel_width(DV))
    kv_polynomial = polynomial(2 * (round_up(D, 16) + round_up(DV, 16)), arch)
    q_polynomial = polynomial(2 * round_up(D, 16) + round_up(DV, 16), arch)
    largest = [(tile, stages) for tile in _TILES[::-1] for stages in (3, 2)]
    narrower = largest[2:] if problem.use_cu_seqlens else largest
    for (BM, kv_stages), (BN, q_stages) in product(narrower, largest):
        config = Config(BM, 1, kv_stages, kv_polynomial, BN, 1, q_stages, q_polynomial, columns)
        if allowed.refusal(config) is None:
            return config
    raise TemplateError(f"{arch.name} has no room for the smallest tiles of head_dim {D} and head_dim_v {DV}")


def polynomial(columns: int, arch: Arch) -> int:
    """The fewest exponentials on the FMA pipe that keep the special function unit no busier than the tensor cores, for
    `columns` columns of products and sums: 256 columns take as long as all exponentials at 16 per clock."""
    as_long = 256 * 16 // arch.exp_lanes
    return next((period for period in _POLYNOMIALS if as_long * (1 - 1 / period if period else 1) <= columns), 3)


IMPLEMENTATION = Implementation(
    name="tcgen05",
    summary="tcgen05 and TMA, without atomics: sums, P and dS in tensor memory, one thread per row; up to head_dim 208",
    config=Config,
    refusal=refusal,
    space=space,
    plan=plan,
    default=default,
    blocks=_blocks,
    work=work,
    unproven=True,
)
