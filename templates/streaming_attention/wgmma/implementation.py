"""streaming_attention on wgmma (sm_90a): flash_attention's kernel over the tiles that contain sinks and windows."""

from dataclasses import replace
from typing import Any

import numpy as np

from tuner.arch import Arch
from tuner.errors import TemplateError
from tuner.spec import Constraint, Implementation, Plan, Space

from ...flash_attention.wgmma import implementation as dense
from ...flash_attention.wgmma.config import (
    ROWS,
    block,
    consumer_registers,
    fits,
    l2_share,
    packed,
    panel_width,
    register_estimate,
    smem_bytes,
    widest_product,
)
from ...flash_attention.wgmma.maps import attention_maps
from ..problem import Problem
from .config import Config, row_tiles, taken_heads
from .work import PIECE, tiles, work

ENTRY = "streaming_attention_wgmma"
_SHORT = 4  # key tiles per row tile, and row tiles per SM
SCALARS = ("lse", "softmax_scale", "batch", "heads", "kv_heads", "seq_q", "seq_k", "window", "sinks")


def refusal(problem: Problem, arch: Arch) -> str | None:
    if problem.rolling:
        return "rolling: TMA boxes need keys in the order of positions"
    return dense.refusal(problem, arch)


def space(problem: Problem, arch: Arch) -> Space[Config]:
    return Space(
        Config,
        choices={
            **dense.TILE_CHOICES,
            "packed_heads": _head_counts(problem),
            "cluster": (1, 2),
            "blocks": (0, arch.sm_count),
        },
        constraints=(
            *dense.tile_constraints(problem.head_dim, arch, capped=False),
            Constraint(
                "overlap 0 is a baseline: one block per row tile, and each loads for itself",
                lambda c: (c.overlap > 0) | ((c.blocks == 0) & (c.cluster == 1)),
            ),
            Constraint(
                "each block of a cluster has heads of the KV head",
                lambda c: (c.cluster == 1) | (_groups(problem, c) % 2 == 0),
            ),
            Constraint(
                "one block of two warpgroups shares as much as a cluster of two blocks of one, without waiting",
                lambda c: (c.cluster == 1) | (c.warpgroups > 1),
            ),
            Constraint(
                "blocks load for each other only if L2 would be busy for at least half of the time",
                lambda c: (c.cluster == 1) | (l2_share(problem.head_dim, c, dense.l2_bytes(arch)) >= 0.5),
            ),
            Constraint(
                "ragged batches: each block loads for itself, since it writes zeros after the end of a sequence",
                lambda c: (c.cluster == 1) | (not problem.ragged),
            ),
        ),
    )


def plan(problem: Problem, config: Config) -> Plan:
    heads = int(packed(problem.heads, problem.kv_heads, config))
    work_items = row_tiles(problem, config) * int(taken_heads(problem, config)) * problem.kv_heads * problem.batch
    D, rows, keys = problem.head_dim, (1, ROWS // heads, heads), (1, config.BN // config.cluster, 1)
    maps = attention_maps(D, D, config.value_columns, rows, keys, piece=PIECE)
    smem = int(smem_bytes(D, config))
    return dense.block_plan(ENTRY, smem, config, work_items, maps, (*SCALARS, "cache_seqlens"))


def default(problem: Problem, arch: Arch) -> Config:
    """Ping-pong warpgroups whose rows are shared by all heads of a KV head, and tiles that most row tiles fill.

    The cost per row is the number of keys that its row tile visits, plus 16 per tile; and the same for the loads from
    L2, which two warpgroups share. Three warpgroups only if their registers hold wide tiles.
    """
    D = problem.head_dim
    sizes = ((BN, warpgroups) for warpgroups in ((2, 3) if D <= 96 else (2,)) for BN in range(256, 31, -16))
    fitting = [config for size in sizes if _fits(D, config := _config_with_tile(problem, arch, *size), arch)]
    if not fitting:
        raise TemplateError(f"{arch.name} has no room for the smallest tile of head_dim {D}")
    return min(fitting, key=lambda c: _most_tiles(problem, c) * (c.BN + 16) * (1 + 2 / c.warpgroups))


def _config_with_tile(problem: Problem, arch: Arch, BN: int, warpgroups: int) -> Config:
    """The default with tiles of this size. The grid is persistent if row tiles are short and every SM has several: keys
    of the next row tile then arrive while this one is computed, which otherwise nothing overlaps. Other grids use
    clusters for D above 96, where L2 is nearly as busy as the tensor cores, if a KV head has heads for two blocks.
    """
    D, heads = problem.head_dim, _head_counts(problem)
    columns = panel_width(D)
    unclustered = Config(BN, warpgroups, 2, 1, True, columns, 0, True, heads[-1], 1, 0)
    sms = arch.sm_count
    work_items = row_tiles(problem, unclustered) * (problem.heads // heads[-1]) * problem.batch
    if _most_tiles(problem, unclustered) <= _SHORT and work_items >= _SHORT * sms:
        return replace(unclustered, blocks=sms)
    pairs = [count for count in heads if _groups(problem, replace(unclustered, packed_heads=count)) % 2 == 0]
    return (
        replace(unclustered, packed_heads=pairs[-1], cluster=2)
        if pairs and D > 96 and not problem.ragged
        else unclustered
    )


def _head_counts(problem: Problem) -> tuple[int, ...]:
    """One head, the most that can share rows, or half of these, so that two blocks have the same keys."""
    max_heads = dense.packs(problem)[-1]
    return tuple(sorted({1, max(max_heads // 2, 1), max_heads}))


def _groups(problem: Problem, c: Any) -> Any:
    """Groups of a KV head's query heads that share rows."""
    return problem.heads // problem.kv_heads // packed(problem.heads, problem.kv_heads, c)


def _most_tiles(problem: Problem, config: Config) -> int:
    return int(np.max(tiles(problem, config)))


def _fits(D: int, config: Config, arch: Arch) -> bool:
    wide = config.warpgroups != 2 and widest_product(D, config) > 192
    return not wide and fits(D, config, arch) and register_estimate(D, config) <= consumer_registers(config)


IMPLEMENTATION = Implementation(
    name="wgmma",
    summary="wgmma and TMA over the tiles with sinks and windows, exact for every head_dim from 16",
    config=Config,
    refusal=refusal,
    space=space,
    plan=plan,
    default=default,
    blocks=lambda problem: (block(ENTRY, problem.head_dim),),
    work=work,
    unproven=True,
)
