"""flash_attention on wgmma (sm_90a): a producer loads K and V with TMA, and softmax overlaps the products."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from tuner.arch import DEVICES, Arch
from tuner.errors import TemplateError
from tuner.spec import Constraint, DType, Implementation, Launch, Plan, Space, TensorMap, Workspace, limits

from ..problem import Problem
from .config import (
    ROWS,
    WIDTHS,
    Config,
    block,
    consumer_registers,
    ctas,
    fits,
    l2_share,
    packed,
    panel_width,
    producer_registers,
    register_estimate,
    row_tiles,
    smem_bytes,
    walkers,
    widest_product,
)
from .maps import attention_maps, spelled
from .work import work

ENTRY = "flash_attention_wgmma"
_WARP = 32
_SCALARS = ("lse", "softmax_scale", "batch", "heads", "kv_heads", "seq_q", "seq_k")
TILE_CHOICES: Mapping[str, tuple[int, ...]] = {
    "BN": tuple(range(32, 257, 16)),
    "warpgroups": (1, 2, 3),
    "stages": (2, 3, 4),
    "overlap": (0, 1, 2),
    "ping_pong": (False, True),
    "value_columns": (0, *WIDTHS),
    "polynomial": (0, 8),
    "lazy_rescale": (False, True),
}


def refusal(problem: Any, arch: Arch) -> str | None:
    if not arch.has_wgmma:
        return f"{arch.name} has no wgmma instructions: sm_90a has them"
    return without_panels(problem)


def without_panels(problem: Any) -> str | None:
    """Why no kernel on panels in shared memory supports a problem; None if one does."""
    if problem.dtype is DType.FP32:
        return "dtype fp32: wgmma operands have 16 bits"
    if problem.head_dim < 16:
        return f"head_dim {problem.head_dim}: the narrowest tile has 16 columns"
    return None


def space(problem: Problem, arch: Arch) -> Space[Config]:
    D, DV = problem.head_dim, problem.head_dim_v
    return Space(
        Config,
        choices={
            **TILE_CHOICES,
            "heavy_first": (True, False) if problem.causal else (False,),
            "packed_heads": packs(problem),
            "cluster": (1, 2),
            "blocks": (0, arch.sm_count),
        },
        constraints=(
            *tile_constraints(D, arch, DV, capped=problem.use_softcap),
            Constraint(
                "packed sequences: one block per row tile, since blocks beyond the end of a sequence exit at once",
                lambda c: (c.blocks == 0) | (not problem.use_cu_seqlens),
            ),
            Constraint(
                "packed sequences: each block loads for itself, since it writes zeros after the end of a sequence",
                lambda c: (c.cluster == 1) | (not problem.use_cu_seqlens),
            ),
            Constraint(
                "windows: each block loads for itself, since row tiles start at different keys",
                lambda c: (c.cluster == 1) | (not problem.use_window),
            ),
            Constraint(
                "persistent blocks and clusters start with the heaviest causal row tiles",
                lambda c: ((c.blocks == 0) & (c.cluster == 1)) | c.heavy_first | (not problem.causal),
            ),
            Constraint(
                "packed sequences use panels of V of one width: ptxas serializes several",
                lambda c: (c.value_columns != 0) | (not problem.use_cu_seqlens),
            ),
            Constraint(
                "overlap 0 is a baseline: one block per row tile, and each loads for itself",
                lambda c: (c.overlap > 0) | ((c.blocks == 0) & (c.cluster == 1)),
            ),
            Constraint(
                "one block of two warpgroups shares as much as a cluster of two blocks of one, without waiting",
                lambda c: (c.cluster == 1) | (c.warpgroups > 1),
            ),
            Constraint(
                "blocks load for each other only if L2 would be busy for at least half of the time",
                lambda c: (c.cluster == 1) | (l2_share(D, c, l2_bytes(arch), DV) >= 0.5),
            ),
            Constraint(
                "each block of a cluster has a row tile",
                lambda c: (c.cluster == 1) | (row_tiles(problem, c) >= c.cluster),
            ),
        ),
    )


def step_constraints() -> tuple[Constraint, ...]:
    """Constraints on the order of the steps of a tile, for any loads."""
    return (
        Constraint("ping-pong requires two warpgroups or more", lambda c: ~c.ping_pong | (c.warpgroups > 1)),
        Constraint("ping-pong orders the products of overlap 1", lambda c: ~c.ping_pong | (c.overlap == 1)),
        Constraint(
            "polynomials are worth their registers only if just P V is in flight",
            lambda c: (c.polynomial == 0) | (c.overlap == 1),
        ),
    )


def tile_constraints(D: int, arch: Arch, DV: int = 0, *, capped: bool) -> tuple[Constraint, ...]:
    """Constraints on the tiles of any problem and on the order of their steps. DV: head_dim_v (0: D)."""
    DV = DV or D
    return (
        *step_constraints(),
        Constraint(
            "a panel of V no wider than V, or one panel",
            lambda c: c.value_columns < 2 * max(DV, 16),
        ),
        Constraint(
            "several widths only where one does not divide V",
            lambda c: (c.value_columns != 0) | (DV % 64 != 0),
        ),
        Constraint(
            "persistent blocks that overlap both products use panels of V of one width: ptxas serializes several",
            lambda c: (c.blocks == 0) | (c.overlap != 2) | (c.value_columns != 0),
        ),
        *limits(arch, block(ENTRY, D, DV)),
        Constraint(
            "a wgmma of N > 192 needs more than the 128 registers per thread at launch of one or three warpgroups",
            lambda c: (c.warpgroups == 2) | (widest_product(DV, c) <= 192),
        ),
        Constraint(
            "O, scores and P fit the consumers' registers",
            lambda c: register_estimate(D, c, DV, capped=capped) <= consumer_registers(c),
        ),
    )


def plan(problem: Problem, config: Config) -> Plan:
    heads = int(packed(problem.heads, problem.kv_heads, config))
    tiles = -(-problem.longest // (ROWS * config.warpgroups // heads))
    work_items = -(-tiles // config.cluster) * (problem.heads // heads) * problem.sequences
    D, DV = problem.head_dim, problem.head_dim_v
    rows, keys = (1, ROWS // heads, heads), (1, config.BN // config.cluster, 1)
    maps = attention_maps(D, DV, config.value_columns, rows, keys)
    optional, constants = optional_arguments(problem)
    smem = int(smem_bytes(D, config, DV))
    return block_plan(ENTRY, smem, config, work_items, maps, (*_SCALARS, *optional), constants)


def block_plan(
    entry: str,
    smem: int,
    config: Any,
    work_items: int,
    maps: tuple[TensorMap, ...],
    extra_arguments: tuple[str, ...],
    constants: Mapping[str, str] = MappingProxyType({}),
) -> Plan:
    """The launch for `work_items` row tiles, or clusters of them, with `smem` bytes of shared memory; `extra_arguments`
    are the arguments after the maps."""
    ticket = ("ticket",) if config.blocks else ()
    arguments = (*(tensor_map.name for tensor_map in maps), *extra_arguments, *ticket)
    grid = (config.cluster * (walkers(work_items, config) if config.blocks else work_items), 1, 1)
    launch = Launch(entry, grid, 128 * (config.warpgroups + 1), smem, arguments, config.cluster)
    return Plan(
        launches=(Launch(f"{entry}_clear", (1, 1, 1), _WARP, 0, ticket), launch) if config.blocks else (launch,),
        constants={
            "smem_bytes": smem,
            "ctas": int(ctas(config)),
            "consumer_registers": int(consumer_registers(config)),
            "producer_registers": int(producer_registers(config)),
            "ticket_argument": "ticket" if config.blocks else "nullptr",
            **spelled(maps),
            **constants,
        },
        workspaces=(Workspace("ticket", DType.INT32, (1,), exchanged=True),) if config.blocks else (),
        maps=maps,
    )


def optional_arguments(problem: Problem) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """The optional arguments of kernels on panels, and the constants that templates read for packed sequences."""
    packed = problem.use_cu_seqlens
    last = ("boundaries", "softcap", "window_left", "window_right", "s_aux")
    return (*("o",) * packed, "cu_seqlens_q", "cu_seqlens_k", *last), {
        "sequences_argument": "boundaries - 1" if packed else "batch",
        "output_rows_argument": "o, o_seq_q_stride, o_heads_stride" if packed else "",
    }


def packs(problem: Any, rows: int = ROWS) -> tuple[int, ...]:
    """One head, or the most heads of a KV head that can share `rows` rows: a power of two."""
    group = problem.heads // problem.kv_heads
    return (1, min(group & -group, rows)) if group % 2 == 0 else (1,)


def l2_bytes(arch: Arch) -> float:
    """L2 bytes per SM and clock, on the device of the arch that has the fewest."""
    return min(
        device.l2_bytes_per_clock / device.sm_count for device in DEVICES.values() if device.arch.name == arch.name
    )


def default(problem: Problem, arch: Arch) -> Config:
    """Ping-pong warpgroups, with the largest tile of keys that fits.

    Three warpgroups if their registers hold 128 keys or nearly so, since they share the loaded tiles. At most 128 keys
    with a mask or three warpgroups: most of a wider tile on the diagonal is masked. V in one panel, or in panels of 32
    columns if they divide it and 64 does not, or of 64 with zeros in the last: boxes of 16 columns have four times as
    many rows to copy. Heads share rows if the queries of one head would leave most of a tile empty. Blocks load for
    each other if that relieves L2 without waiting.
    """
    D, DV = problem.head_dim, problem.head_dim_v
    columns = panel_width(DV)
    heads = packs(problem)[-1] if problem.seq_q <= ROWS else 1
    warpgroups = 3 if DV <= 96 and problem.seq_q > 2 * ROWS else 2
    widest = 128 if problem.causal or warpgroups == 3 else 176
    for BN in range(widest, 31, -16):
        config = Config(BN, warpgroups, 2, 1, True, columns, 0, True, problem.causal, heads, 1, 0)
        registers = register_estimate(D, config, DV, capped=problem.use_softcap)
        if fits(D, config, arch, DV) and registers <= consumer_registers(config):
            return replace(config, cluster=2 if _pairs(problem, config) else 1)
    raise TemplateError(f"{arch.name} has no room for the smallest tile of head_dim {D}, head_dim_v {DV}")


def _pairs(problem: Problem, config: Config) -> bool:
    """Whether two blocks share loads: for DV above 96, where L2 is nearly as busy as the tensor cores, and if neither
    block waits for the other: no mask, no row tile without a neighbour. Blocks of packed sequences do not share.
    """
    excluded = problem.causal or problem.use_cu_seqlens or problem.use_window
    return problem.head_dim_v > 96 and not excluded and row_tiles(problem, config) % 2 == 0


IMPLEMENTATION = Implementation(
    name="wgmma",
    summary="wgmma and TMA with producer and consumer warpgroups, exact for every head_dim from 16",
    config=Config,
    refusal=refusal,
    space=space,
    plan=plan,
    default=default,
    blocks=lambda problem: (block(ENTRY, problem.head_dim, problem.head_dim_v),),
    work=work,
    unproven=True,
)
