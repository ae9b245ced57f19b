"""flash_attention on mma.sync in tf32 (sm_80 and up), for fp32: mma_sync's tiles, with operands of one or two tf32
terms."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from tuner.arch import Arch
from tuner.errors import TemplateError
from tuner.spec import Block, DType, Implementation, Launch, Plan, Space

from ..mma_sync.config import smem_budgets
from ..mma_sync.implementation import SHARED_FROM, exceeds_grid, tile_block, tile_constraints
from ..problem import Problem
from .config import Config, q_in_ring, register_estimate, smem_bytes
from .work import terms, work

ENTRY = "flash_attention_mma_tf32"
ALONE_UP_TO = 128  # the largest head_dim_v at which one warp holds complete rows with two terms per element


def refusal(problem: Problem, _arch: Arch) -> str | None:
    if problem.dtype is not DType.FP32:
        return f"dtype {problem.dtype.value}: tf32 operands are rounded from fp32; use mma_sync for 16 bits"
    DV, name = problem.head_dim_v, "head_dim" if problem.head_dim_v == problem.head_dim else "head_dim_v"
    if terms(problem) == 2 and DV > ALONE_UP_TO and DV % 32:
        return (
            f"{name} {DV} in fp32: O and the sums of two terms do not fit the registers, and two warps share rows "
            "only of multiples of 32; use precision='tf32', or naive for fp32"
        )
    return exceeds_grid(problem)


def space(problem: Problem, arch: Arch) -> Space[Config]:
    D, DV, budgets = problem.head_dim, problem.head_dim_v, smem_budgets(arch)
    return Space(
        Config,
        choices={
            "BM": (32, 48, 64, 96, 128, 192, 256),
            "warps": (2, 3, 4, 6, 8),
            "d_warps": (1, 2, 4),
            "BN": (16, 32, 48, 64, 96),
            "q_in_registers": (False, True),
            "swizzle": (True,) if D % 32 and DV % 32 else (True, False),
            "stages": (2, 3, 4),
            "smem_budget": budgets,
            "min_ctas": (1, 2, 3),
            "lazy_rescale": (False, True),
            "heavy_first": (True, False) if problem.causal else (False,),
            "round_on_arrival": (False, True) if terms(problem) == 1 else (False,),
        },
        constraints=tile_constraints(
            arch,
            DV,
            8,
            _block(problem),
        ),
    )


def _block(problem: Problem) -> Block:
    D, DV = problem.head_dim, problem.head_dim_v
    return tile_block(ENTRY, partial(smem_bytes, D, DV), partial(register_estimate, D, DV, terms(problem)))


def plan(problem: Problem, config: Config) -> Plan:
    D, DV = problem.head_dim, problem.head_dim_v
    grid = (-(-problem.longest // config.BM), problem.heads, problem.sequences)
    smem = int(smem_bytes(D, DV, config))
    constants = {"smem_bytes": smem, "q_in_ring": bool(q_in_ring(D, DV, config)), "terms": terms(problem)}
    return Plan((Launch(ENTRY, grid, 32 * config.warps, smem),), constants)


@dataclass(frozen=True, slots=True)
class _Tile:
    """A tile of the default, and by terms the largest head_dim_v it supports: above that, registers spill."""

    BM: int
    BN: int
    warps: int
    d_warps: int
    largest: Mapping[int, int]

    def serves(self, D: int, DV: int, terms: int) -> bool:
        shared = self.d_warps == 1 or (DV > SHARED_FROM and DV % (16 * self.d_warps) == 0)
        widest = max(D, DV) if terms == 2 and self.BN == 32 else DV  # score sums over a large D spill too
        return shared and self.largest[terms] >= widest


# The first tile that supports the problem and fits is the default. With 32 rows per warp, K and V are read half as
# often as with 16.
_TILES = (
    _Tile(128, 64, 4, 1, {1: 88, 2: 0}),
    _Tile(128, 32, 4, 1, {1: 128, 2: 0}),
    _Tile(64, 32, 4, 2, {1: 256, 2: 0}),
    _Tile(128, 32, 8, 1, {1: 256, 2: 80}),
    _Tile(64, 32, 4, 1, {1: 256, 2: 80}),
    _Tile(48, 16, 6, 2, {1: 0, 2: 224}),
    _Tile(32, 16, 4, 2, {1: 0, 2: 256}),
    _Tile(64, 16, 4, 1, {1: 256, 2: ALONE_UP_TO}),
)


def default(problem: Problem, arch: Arch) -> Config:
    """The largest tile that supports head_dim_v and fits the shared memory of the arch."""
    D, DV, count = problem.head_dim, problem.head_dim_v, terms(problem)
    for tile in _TILES:
        rounds = (
            count == 1 and tile.d_warps == 1
        )  # otherwise only two groups of warps read a tile, and rounding it once saves little
        for budget in smem_budgets(arch):
            config = Config(
                BM=tile.BM,
                BN=tile.BN,
                warps=tile.warps,
                d_warps=tile.d_warps,
                stages=2,
                smem_budget=budget,
                min_ctas=1,
                q_in_registers=False,
                swizzle=True,
                lazy_rescale=True,
                heavy_first=problem.causal,
                round_on_arrival=rounds,
            )
            if tile.serves(D, DV, count) and smem_bytes(D, DV, config) <= budget:
                return config
    raise TemplateError(f"{arch.name} has no room for the smallest tile of head_dim {D}, head_dim_v {DV}")


IMPLEMENTATION = Implementation(
    name="mma_tf32",
    summary="fp32 on tensor cores through mma.sync, one or two tf32 terms per element, exact for every head_dim",
    config=Config,
    refusal=refusal,
    space=space,
    plan=plan,
    default=default,
    blocks=lambda problem: (_block(problem),),
    work=work,
    example=Problem(head_dim=72, dtype=DType.FP32),
)
