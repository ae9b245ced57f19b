"""streaming_attention on tcgen05: flash_attention's kernel over the tiles that contain sinks and windows."""

import numpy as np

from tuner.arch import Arch
from tuner.errors import TemplateError
from tuner.spec import Implementation, Plan, Space

from ...flash_attention.tcgen05 import implementation as dense
from ...flash_attention.tcgen05.config import ROWS
from ...flash_attention.wgmma.config import packed, panel_width
from ...flash_attention.wgmma.implementation import packs
from ...flash_attention.wgmma.maps import attention_maps
from ..problem import Problem
from ..wgmma import implementation as wgmma
from ..wgmma.work import PIECE
from .config import Config, blocks
from .work import tiles, work

ENTRY = "streaming_attention_tcgen05"


def refusal(problem: Problem, arch: Arch) -> str | None:
    if problem.rolling:
        return "rolling: TMA boxes need keys in the order of positions"
    return dense.refusal(problem, arch)


def space(problem: Problem, arch: Arch) -> Space[Config]:
    D = problem.head_dim
    choices = {**dense.TILE_CHOICES, "packed_heads": packs(problem, ROWS)}
    return Space(Config, choices=choices, constraints=dense.tile_constraints(D, D, arch))


def plan(problem: Problem, config: Config) -> Plan:
    heads = int(packed(problem.heads, problem.kv_heads, config))
    work_items = blocks(problem, config) * (problem.heads // heads) * problem.batch
    D, rows, keys = problem.head_dim, (1, ROWS // heads, heads), (1, config.BN, 1)
    maps = attention_maps(D, D, config.value_columns, rows, keys, piece=PIECE)
    return dense.block_plan(ENTRY, problem, config, work_items, maps, (*wgmma.SCALARS, "cache_seqlens"))


def default(problem: Problem, arch: Arch) -> Config:
    """Rows shared by all heads of a KV head, and tiles that most row tiles fill: the cost per row is the number of keys
    that its row tile visits, plus 16 per tile; and the same for the loads from L2, which two row tiles share."""
    configs = space(problem, arch)
    sizes = ((BN, row_tiles) for row_tiles in (2, 1) for BN in range(128, 31, -16))
    fitting = [config for size in sizes if configs.refusal(config := _config_with_tile(problem, arch, *size)) is None]
    if not fitting:
        raise TemplateError(f"{arch.name} has no room for the smallest tile of head_dim {problem.head_dim}")
    return min(fitting, key=lambda c: int(np.max(tiles(problem, c))) * (c.BN + 16) * (1 + 1 / c.row_tiles))


def _config_with_tile(problem: Problem, arch: Arch, BN: int, row_tiles: int) -> Config:
    columns, heads = panel_width(problem.head_dim), packs(problem, ROWS)[-1]
    return Config(BN, row_tiles, 2, columns, dense.polynomial(problem, arch), True, False, heads)


IMPLEMENTATION = Implementation(
    name="tcgen05",
    summary="tcgen05 and TMA over the tiles with sinks and windows, for every head_dim from 16",
    config=Config,
    refusal=refusal,
    space=space,
    plan=plan,
    default=default,
    blocks=lambda problem: (dense.block(ENTRY, problem.head_dim, problem.head_dim),),
    work=work,
    unproven=True,
)
