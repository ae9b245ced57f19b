"""paged_attention on tcgen05, for prefill: flash_attention's kernel, with K and V loaded from pages by TMA."""

from dataclasses import replace

from tuner.arch import Arch
from tuner.errors import TemplateError
from tuner.spec import Implementation, Plan, Space

from ...flash_attention.split_keys.config import SPLITS
from ...flash_attention.tcgen05 import implementation as dense
from ...flash_attention.tcgen05.config import ROWS
from ...flash_attention.wgmma.config import panel_width
from ...flash_attention.wgmma.implementation import packs
from ...flash_attention.wgmma.maps import attention_maps
from ..problem import Problem, unpacked
from ..split_keys.implementation import parts
from ..wgmma import implementation as wgmma
from ..wgmma.config import box_rows, heads_of_tile
from .config import WORK, Config, blocks, ctas, queries_of_block
from .work import work

ENTRY = "paged_attention_tcgen05"


def refusal(problem: Problem, arch: Arch) -> str | None:
    return wgmma.without_boxes(problem) or dense.refusal(problem, arch)


def space(problem: Problem, arch: Arch) -> Space[Config]:
    D = problem.head_dim
    choices = {**dense.TILE_CHOICES, "packed_heads": packs(problem, ROWS), "splits": SPLITS}
    return Space(Config, choices=choices, constraints=dense.tile_constraints(D, D, arch, WORK))


def plan(problem: Problem, config: Config) -> Plan:
    """One block per share of a row tile and group of heads; with packed queries, for the maximum possible number of
    tiles."""
    split, heads, grid = config.splits > 1, heads_of_tile(problem, config), blocks(problem, config)
    D, rows, keys = problem.head_dim, (1, ROWS // heads, heads), (1, box_rows(problem, config), 1)
    maps = attention_maps(D, D, config.value_columns, rows, keys, "_cache")
    spaces = parts(problem, (grid, ROWS * config.row_tiles)) if split else ()
    workspace_names = tuple(workspace.name for workspace in spaces)
    optional, constants = wgmma.optional_arguments(problem, split=split)
    arguments = (*wgmma.others(optional), *workspace_names)
    attend = dense.block_plan(ENTRY, problem, config, grid, maps, arguments, constants, WORK)
    merge = (wgmma.merge_launch(ENTRY, problem, optional, workspace_names),) if split else ()
    return replace(attend, launches=(*attend.launches, *merge), workspaces=spaces)


def default(problem: Problem, arch: Arch) -> Config:
    """Two row tiles with the largest tile of keys that fits, as in flash_attention; one if two do not fit or a sequence
    has few rows. V in one panel, or in panels of 32 columns if they divide it and 64 does not, or of 64 with zeros in
    the last. All heads that can share rows do, so that they read keys once.
    """
    configs, rows = space(problem, arch), problem.longest * packs(problem, ROWS)[-1]
    for row_tiles in (2, 1) if rows > 2 * ROWS else (1,):
        for BN in range(128, 63 if row_tiles == 2 else 31, -16):
            for stages in (3, 2) if row_tiles == 2 else (2,):
                config = _config_with_tile(problem, arch, BN, row_tiles, stages)
                if configs.refusal(config) is None:
                    return replace(config, splits=_splits(unpacked(problem), arch, config))
    raise TemplateError(f"{arch.name} has no room for the smallest tile of head_dim {problem.head_dim}")


def _config_with_tile(problem: Problem, arch: Arch, BN: int, row_tiles: int, stages: int) -> Config:
    D, heads = problem.head_dim, packs(problem, ROWS)[-1]
    return Config(BN, row_tiles, stages, panel_width(D), dense.polynomial(problem, arch), True, False, heads, 1)


def _splits(problem: Problem, arch: Arch, config: Config) -> int:
    at_once = arch.sm_count * ctas(problem.head_dim, config, arch)
    return wgmma.splits(problem, config.BN, queries_of_block(problem, config), blocks(problem, config), at_once)


IMPLEMENTATION = Implementation(
    name="tcgen05",
    summary="for prefill: tcgen05, sums in tensor memory, K and V as boxes of pages by TMA",
    config=Config,
    refusal=refusal,
    space=space,
    plan=plan,
    default=default,
    blocks=lambda problem: (dense.block(ENTRY, problem.head_dim, problem.head_dim, WORK),),
    work=work,
    unproven=True,
    example=Problem(seq_q=512),
)
