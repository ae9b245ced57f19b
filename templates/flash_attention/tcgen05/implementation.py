"""flash_attention on tcgen05: one thread issues all products, their sums are in tensor memory, and each thread
processes one row of scores."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from tuner.arch import Arch
from tuner.errors import TemplateError
from tuner.spec import Block, Constraint, Implementation, Launch, Plan, Scalar, Space, TensorMap, limits

from ..problem import Problem
from ..wgmma.config import WIDTHS, packed, panel_width, round_up
from ..wgmma.implementation import optional_arguments, packs, without_panels
from ..wgmma.maps import attention_maps, spelled
from .config import (
    LAST_COLUMNS,
    ROWS,
    WORK,
    Config,
    apart_columns,
    smem_bytes,
    tensor_columns,
    used_columns,
)
from .work import work

ENTRY = "flash_attention_tcgen05"
_SCALARS = ("lse", "softmax_scale", "batch", "heads", "kv_heads", "seq_q", "seq_k")
TILE_CHOICES: Mapping[str, tuple[Any, ...]] = {
    "BN": tuple(range(32, 129, 16)),
    "row_tiles": (1, 2),
    "stages": (2, 3, 4),
    "value_columns": (0, *WIDTHS),
    "polynomial": (0, 16, 8, 4, 3),
    "lazy_rescale": (False, True),
    "overlaid": (False, True),
}


def refusal(problem: Any, arch: Arch) -> str | None:
    if not arch.has_tcgen05:
        return f"{arch.name} has no tcgen05 instructions: sm_100a, sm_103a and sm_110a have them"
    return without_panels(problem)


def space(problem: Problem, arch: Arch) -> Space[Config]:
    D, DV = problem.head_dim, problem.head_dim_v
    return Space(
        Config,
        choices={
            **TILE_CHOICES,
            "heavy_first": (True, False) if problem.causal else (False,),
            "packed_heads": packs(problem, ROWS),
        },
        constraints=tile_constraints(D, DV, arch),
    )


def tile_constraints(D: int, DV: int, arch: Arch, work: int = WORK) -> tuple[Constraint, ...]:
    """Constraints on the tiles of any problem; `work`: bytes of a work item."""
    return (
        Constraint("a panel of V no wider than V, or one panel", lambda c: c.value_columns < 2 * max(DV, 16)),
        Constraint(
            "several widths only where one does not divide V", lambda c: (c.value_columns != 0) | (DV % 64 != 0)
        ),
        *limits(arch, block(ENTRY, D, DV, work)),
        Constraint("O, scores and P fit tensor memory", lambda c: used_columns(DV, c) <= LAST_COLUMNS),
        Constraint(
            "P overwrites scores only if its own columns do not fit: the next scores then wait for its product",
            lambda c: ~c.overlaid | (apart_columns(DV, c) > LAST_COLUMNS),
        ),
    )


def block(entry: str, D: int, DV: int, work: int = WORK) -> Block:
    """`work`: bytes of a work item."""
    return Block(entry, lambda c: ROWS * (c.row_tiles + 1), lambda c: smem_bytes(D, DV, c, work))


def plan(problem: Problem, config: Config) -> Plan:
    heads = int(packed(problem.heads, problem.kv_heads, config))
    tiles = -(-problem.longest // (ROWS * config.row_tiles // heads))
    work_items = tiles * (problem.heads // heads) * problem.sequences
    rows, keys = (1, ROWS // heads, heads), (1, config.BN, 1)
    maps = attention_maps(problem.head_dim, problem.head_dim_v, config.value_columns, rows, keys)
    optional, constants = optional_arguments(problem)
    return block_plan(ENTRY, problem, config, work_items, maps, (*_SCALARS, *optional), constants)


def block_plan(
    entry: str,
    problem: Any,
    config: Any,
    work_items: int,
    maps: tuple[TensorMap, ...],
    extra_arguments: tuple[str, ...],
    constants: Mapping[str, Scalar] = MappingProxyType({}),
    work: int = WORK,
) -> Plan:
    """The launch of `work_items` blocks; `extra_arguments` are the arguments after the maps, `work` the bytes of a work
    item."""
    D, DV = problem.head_dim, problem.head_dim_v
    smem, columns = int(smem_bytes(D, DV, config, work)), int(tensor_columns(DV, config))
    arguments = (*(tensor_map.name for tensor_map in maps), *extra_arguments)
    launch = Launch(entry, (work_items, 1, 1), ROWS * (config.row_tiles + 1), smem, arguments, tensor_columns=columns)
    read = {"smem_bytes": smem, "tensor_columns": columns, **spelled(maps), **constants}
    return Plan((launch,), read, maps=maps)


def default(problem: Problem, arch: Arch) -> Config:
    """Two row tiles, so that one computes exponentials while the products of the other run, with the largest tile of
    keys that fits; one row tile if two do not fit or the queries of one head fill only one. Heads share rows if the
    queries of one head would leave most of a tile empty. V in one panel, or in panels of 32 columns if they divide it
    and 64 does not, or of 64 with zeros in the last. A third stage if one block occupies the SM anyway.
    """
    DV = problem.head_dim_v
    columns = panel_width(DV)
    heads = packs(problem, ROWS)[-1] if problem.seq_q <= ROWS else 1
    configs = space(problem, arch)
    for row_tiles in (2, 1) if problem.seq_q * heads > ROWS else (1,):
        for BN in range(128, 63 if row_tiles == 2 else 31, -16):
            config = Config(BN, row_tiles, 2, columns, polynomial(problem, arch), True, False, problem.causal, heads)
            deeper = replace(config, stages=3)
            if row_tiles == 2 and configs.refusal(deeper) is None:
                return deeper
            if configs.refusal(config) is None:
                return config
    raise TemplateError(
        f"{arch.name} has no room for the smallest tile of head_dim {problem.head_dim}, head_dim_v {DV}"
    )


def polynomial(problem: Any, arch: Arch) -> int:
    """The fewest exponentials on the FMA pipe that keep the special function unit no busier than the tensor cores; all
    exponentials of a tile take it as long as the products of 256 columns of D and DV. At most a third, at which the FMA
    pipe is as busy. None if a unit of twice the rate keeps up.
    """
    columns = sum(round_up(size, 16) for size in (problem.head_dim, problem.head_dim_v))
    as_long = 256 * 16 // arch.exp_lanes
    if as_long < 256 and as_long <= columns:
        return 0
    return next((period for period in (8, 4) if as_long * (1 - 1 / period) <= columns), 3)


IMPLEMENTATION = Implementation(
    name="tcgen05",
    summary="tcgen05 and TMA: sums in tensor memory, one thread per row of scores, for every head_dim from 16",
    config=Config,
    refusal=refusal,
    space=space,
    plan=plan,
    default=default,
    blocks=lambda problem: (block(ENTRY, problem.head_dim, problem.head_dim_v),),
    work=work,
    unproven=True,
)
