"""streaming_attention on mma.sync (sm_80 and up): flash_attention's tiles, skipping those without an attended key."""

from dataclasses import asdict, replace

from tuner.arch import Arch
from tuner.spec import Constraint, DType, Implementation, Launch, Plan, Space

from ...flash_attention.mma_sync import implementation as dense
from ...flash_attention.mma_sync.config import q_in_ring, register_estimate, smem_budgets, smem_bytes
from ...flash_attention.problem import plain
from ..problem import Problem
from .config import Config, packed
from .work import work

ENTRY = "streaming_attention_mma_sync"


CONSTRAINTS = (
    Constraint("a narrow span is half a tile at most", lambda c: 2 * c.narrow <= c.BN),
    Constraint("P V consumes 16 keys per step", lambda c: c.narrow % (16 * c.d_warps) == 0),
    Constraint("packed heads have complete mma tiles of 16 rows", lambda c: 16 * c.packed_heads <= c.BM),
    Constraint(
        "packed heads index rows by bits, so that BM is a power of two",
        lambda c: (c.packed_heads == 1) | (c.BM & (c.BM - 1) == 0),
    ),
)


def refusal(problem: Problem, _arch: Arch) -> str | None:
    if problem.dtype is DType.FP32:
        return "dtype fp32: mma.sync multiplies 16-bit operands"
    if problem.rolling:
        return "rolling: mma_sync needs keys in the order of positions"
    if max(problem.heads, problem.batch) > dense.MAX_GRID_YZ:
        return f"batch {problem.batch} or heads {problem.heads} exceeds {dense.MAX_GRID_YZ}, a grid's limit in y and z"
    return None


def space(problem: Problem, arch: Arch) -> Space[Config]:
    """The space of flash_attention for the same head_dim, with narrow spans of several widths and without."""
    tiles = dense.space(plain(problem), arch)
    choices = {name: values for name, values in tiles.choices.items() if name != "heavy_first"}
    return Space(
        Config,
        {**choices, "narrow": (0, 16, 32, 64), "packed_heads": _head_counts(problem)},
        (*tiles.constraints, *CONSTRAINTS),
    )


def plan(problem: Problem, config: Config) -> Plan:
    D = problem.head_dim
    heads = packed(problem, config)
    grid = (-(-problem.seq_q // (config.BM // heads)), problem.heads // heads, problem.batch)
    smem = int(smem_bytes(D, config))
    constants = {"smem_bytes": smem, "q_in_ring": bool(q_in_ring(D, config))}
    return Plan((Launch(ENTRY, grid, 32 * config.warps, smem),), constants)


_REGISTERS = 196  # flash_attention's default spills here above this estimate, because of masks
_SHORT = 256  # keys of a window above which tiles of 32 keys are no faster


def default(problem: Problem, arch: Arch) -> Config:
    """The default of flash_attention for the same head_dim, with narrow spans of half a tile, or of 16 keys for packed
    heads.

    Heads are packed if that shortens the loop in steps of 16 keys, and not only the reads of K and V.
    """
    D, tile = problem.head_dim, dense.default(plain(problem), arch)
    many_registers = register_estimate(D, tile) > _REGISTERS and tile.BN > 32
    packs = tile.BN == 32 or many_registers
    heads = max(pack for pack in _head_counts(problem) if pack == 1 or (packs and 16 * pack <= tile.BM))
    if many_registers and not (problem.window >= _SHORT and _has_room(problem, arch, heads)):
        tile = replace(tile, BN=32)
        fits = (replace(tile, smem_budget=budget) for budget in smem_budgets(arch))
        tile = next(fit for fit in fits if smem_bytes(D, fit) <= fit.smem_budget)
    fields = asdict(tile)
    del fields["heavy_first"]
    return Config(**fields, narrow=16 if heads > 1 else tile.BN // 2, packed_heads=heads)


def _has_room(problem: Problem, arch: Arch, heads: int) -> bool:
    """Whether that does not spill after all: on sm_90a, lengths and positions of packed heads need the remaining
    registers."""
    return not problem.ragged and (arch.name == "sm_80" or (arch.name == "sm_90a" and heads == 1))


def _head_counts(problem: Problem) -> tuple[int, ...]:
    """Powers of two, up to 8, of the query heads of a KV head."""
    group = problem.heads // problem.kv_heads
    return tuple(heads for heads in (1, 2, 4, 8) if group % heads == 0)


IMPLEMENTATION = Implementation(
    name="mma_sync",
    summary="tensor cores through mma.sync over the tiles with an attended key, exact for every head_dim",
    config=Config,
    refusal=refusal,
    space=space,
    plan=plan,
    default=default,
    work=work,
)
