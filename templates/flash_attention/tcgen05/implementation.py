"""flash_attention on tcgen05: one thread issues all products, their sums lie in tensor memory, and a thread
has a row of scores to itself."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from tuner.arch import Arch
from tuner.errors import TemplateError
from tuner.spec import Block, Constraint, Implementation, Launch, Plan, Scalar, Space, TensorMap, limits

from ..arguments import optional_refusal
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
        return f"{arch.name} has no tcgen05: it is an instruction of sm_100a, sm_103a and sm_110a"
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
    """What any problem asks of its tiles; `work`: bytes of what is to be computed."""
    return (
        Constraint("a panel of V no wider than V, or one panel", lambda c: c.value_columns < 2 * max(DV, 16)),
        Constraint(
            "several widths only where one does not divide V", lambda c: (c.value_columns != 0) | (DV % 64 != 0)
        ),
        *limits(arch, block(ENTRY, D, DV, work)),
        Constraint("O, scores and P fit tensor memory", lambda c: used_columns(DV, c) <= LAST_COLUMNS),
        Constraint(
            "P lies over scores only where it has no place of its own: the next scores then wait for its product",
            lambda c: ~c.overlaid | (apart_columns(DV, c) > LAST_COLUMNS),
        ),
    )


def block(entry: str, D: int, DV: int, work: int = WORK) -> Block:
    """`work`: bytes of what is to be computed."""
    return Block(entry, lambda c: ROWS * (c.row_tiles + 1), lambda c: smem_bytes(D, DV, c, work))


def plan(problem: Problem, config: Config) -> Plan:
    heads = int(packed(problem.heads, problem.kv_heads, config))
    tiles = -(-problem.longest // (ROWS * config.row_tiles // heads))
    taken = tiles * (problem.heads // heads) * problem.sequences
    rows, keys = (1, ROWS // heads, heads), (1, config.BN, 1)
    maps = attention_maps(problem.head_dim, problem.head_dim_v, config.value_columns, rows, keys)
    optional, constants = optional_arguments(problem)
    return block_plan(ENTRY, problem, config, taken, maps, (*_SCALARS, *optional), constants)


def block_plan(
    entry: str,
    problem: Any,
    config: Any,
    taken: int,
    maps: tuple[TensorMap, ...],
    others: tuple[str, ...],
    constants: Mapping[str, Scalar] = MappingProxyType({}),
    work: int = WORK,
) -> Plan:
    """The launch of so many blocks; `others` are the arguments behind the maps, `work` bytes of what one computes."""
    D, DV = problem.head_dim, problem.head_dim_v
    smem, columns = int(smem_bytes(D, DV, config, work)), int(tensor_columns(DV, config))
    arguments = (*(tensor_map.name for tensor_map in maps), *others)
    launch = Launch(entry, (taken, 1, 1), ROWS * (config.row_tiles + 1), smem, arguments, tensor_columns=columns)
    read = {"smem_bytes": smem, "tensor_columns": columns, **spelled(maps), **constants}
    return Plan((launch,), read, maps=maps)


def default(problem: Problem, arch: Arch) -> Config:
    """Two row tiles, one of which exponentiates while the other's products run, with the largest tile of keys that
    fits; one where two find no room, or one head's queries fill no more. Heads share rows where one head's queries
    would leave most of a tile empty. V in one panel, or in panels of 32 columns where these are exact and 64 are not,
    or of 64 with zeros in the last. A third stage where one block has the SM to itself as it is.
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
    """As few exponentials on the FMA pipe as leave the special function unit no busier than the tensor cores, which
    take as long for 256 columns of D and DV as it does for all of a tile's; a third of them at most, when the FMA pipe
    is as busy. None where a unit of twice the rate keeps up by itself.
    """
    columns = sum(round_up(size, 16) for size in (problem.head_dim, problem.head_dim_v))
    as_long = 256 * 16 // arch.exp_lanes
    if as_long < 256 and as_long <= columns:
        return 0
    return next((every for every in (8, 4) if as_long * (1 - 1 / every) <= columns), 3)


IMPLEMENTATION = Implementation(
    name="tcgen05",
    summary="tcgen05 and TMA: sums in tensor memory, a thread a row of scores, for every head_dim from 16",
    config=Config,
    refusal=lambda problem, arch: refusal(problem, arch) or optional_refusal(problem),
    space=space,
    plan=plan,
    default=default,
    blocks=lambda problem: (block(ENTRY, problem.head_dim, problem.head_dim_v),),
    work=work,
    unproven=True,
)
