"""paged_attention on mma.sync (sm_80 and up), for prefill: flash_attention's tiles, gathered from pages."""

from dataclasses import asdict, replace

from tuner.arch import GPU, Arch
from tuner.spec import Constraint, DType, Implementation, Launch, Plan, Space, Work

from ...flash_attention.mma_sync import implementation as dense
from ...flash_attention.mma_sync.config import q_in_ring, register_estimate, smem_budgets, smem_bytes
from ...flash_attention.problem import plain
from ...flash_attention.split_keys.config import SPLITS, WARP, filling, merge_blocks
from ..problem import Problem, optional_constants, unpacked
from ..split_keys.implementation import RAGGED, parts
from .config import Config
from .work import blocks
from .work import work as work_when_full

ENTRIES = ("paged_attention_mma_sync", "paged_attention_merge")


def refusal(problem: Problem, _arch: Arch) -> str | None:
    if problem.dtype is DType.FP32:
        return "dtype fp32: mma.sync multiplies 16-bit operands"
    return None


def space(problem: Problem, arch: Arch) -> Space[Config]:
    """The space of flash_attention for the same head_dim, with narrow spans of several widths and without."""
    tiles = dense.space(plain(problem), arch)
    choices = {name: values for name, values in tiles.choices.items() if name != "heavy_first"}
    constraints = (
        *tiles.constraints,
        Constraint("a narrow span is half a tile at most", lambda c: 2 * c.narrow <= c.BN),
        Constraint("P V consumes 16 keys per step", lambda c: c.narrow % (16 * c.d_warps) == 0),
        Constraint(
            "8-bit tiles need a third stage: they are loaded while two widened tiles are read",
            lambda c: (c.stages > 2) | (not problem.eight_bits),
        ),
    )
    return Space(Config, {**choices, "narrow": (0, 16, 32, 64), "splits": SPLITS}, constraints)


def plan(problem: Problem, config: Config) -> Plan:
    """One block per row tile, KV head and share; with packed queries, for the maximum possible number of row tiles."""
    D, split, threads = problem.head_dim, config.splits > 1, WARP * config.warps
    smem, shares = int(smem_bytes(D, config)), blocks(problem, config)
    attend = Launch(ENTRIES[0], (shares, 1, 1), threads, smem)
    merge = Launch(ENTRIES[1], (merge_blocks(problem, config), 1, 1), threads, 0)
    constants = {"smem_bytes": smem, "q_in_ring": bool(q_in_ring(D, config))}
    spaces = parts(problem, (shares, config.BM) if split else ())
    return Plan((attend, merge) if split else (attend,), {**constants, **optional_constants(problem)}, spaces)


_FEW = 64  # rows, 16 for each of four warps
_LEAST = 4  # tiles of keys per share
_TILES = 4  # row tiles below which a sequence counts as short
# Estimated registers above which flash_attention's default spills here, because of masks and pages:
_WIDE = 180  # limit for tiles of over 32 keys
_CAPPED = 156  # limit for these with a softcap
_MOST = 196  # limit for other tiles
_WIDENED = 156  # limit for any tile with 8-bit caches
_TAIL = 16  # registers that a softcap needs for the last 8 columns of an odd number of them


def default(problem: Problem, arch: Arch) -> Config:
    """The default of flash_attention for the same head_dim, with narrow spans of half a tile, and smaller row tiles for
    few rows."""
    D, tile = problem.head_dim, dense.default(plain(problem), arch)
    registers = register_estimate(D, tile) + _TAIL * (problem.use_softcap and D % 16 > 0)
    if registers > (_CAPPED if problem.use_softcap else _WIDE) and tile.BN > 32:
        tile = replace(tile, BN=32)
    elif registers > _MOST:
        tile = replace(tile, warps=8)
    if problem.eight_bits:
        tile = replace(tile, stages=3, warps=8 if register_estimate(D, tile) > _WIDENED else tile.warps)
    if problem.longest * (problem.heads // problem.kv_heads) <= _FEW:
        tile = replace(tile, BM=_FEW, warps=4)
    tiles = (tile, replace(tile, BM=_FEW, warps=4))
    fits = (replace(tile, smem_budget=budget) for tile in tiles for budget in smem_budgets(arch))
    tile = next(fit for fit in fits if smem_bytes(D, fit) <= fit.smem_budget)
    fields = asdict(tile)
    del fields["heavy_first"]
    config = Config(**fields, narrow=tile.BN // 2, splits=1)
    return replace(config, splits=_splits(unpacked(problem), arch, config))


def _splits(problem: Problem, arch: Arch, config: Config) -> int:
    """The fewest splits that fill the SMs, but at least a few for sequences with few row tiles: a long one would
    otherwise keep a few SMs busy while others idle."""
    max_splits = min(problem.reach, problem.seq_k) // (_LEAST * config.BN)
    ragged = problem.batch > 1 and problem.seq_q * (problem.heads // problem.kv_heads) <= _TILES * config.BM
    min_splits = max(n for n in SPLITS if n == 1 or n <= min(RAGGED * ragged, max_splits))
    return max(filling(blocks(problem, config), arch.sm_count, max_splits), min_splits)


def work(problem: Problem, config: Config, gpu: GPU) -> tuple[Work, ...]:
    return work_when_full(problem, config, gpu.arch)


IMPLEMENTATION = Implementation(
    name="mma_sync",
    summary="for prefill: tensor cores, full row tiles against keys in pages, which blocks may split",
    config=Config,
    refusal=refusal,
    space=space,
    plan=plan,
    default=default,
    work=work,
    example=Problem(seq_q=512),
)
