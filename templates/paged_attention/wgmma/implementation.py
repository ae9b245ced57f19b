"""paged_attention on wgmma (sm_90a), for prefill: flash_attention's kernel, with K and V loaded from pages by TMA."""

from dataclasses import replace

from tuner.arch import Arch
from tuner.errors import TemplateError
from tuner.spec import Constraint, DType, Implementation, Launch, Plan, Scalar, Space, Workspace, limits

from ...flash_attention.split_keys.config import SPLITS, WARP, filling
from ...flash_attention.wgmma import implementation as dense
from ...flash_attention.wgmma.config import (
    ROWS,
    WIDTHS,
    block,
    ctas,
    fits,
    panel_width,
    register_estimate,
    smem_bytes,
    widest_product,
)
from ...flash_attention.wgmma.maps import attention_maps, spelled
from ..problem import Problem, eight_bits_refusal, unpacked
from ..split_keys.implementation import RAGGED, parts
from .config import (
    LEAST_BOX,
    MERGE_THREADS,
    WINDOW_BOX,
    Config,
    blocks,
    box_rows,
    consumer_registers,
    heads_of_tile,
    merge_blocks,
    producer_registers,
    queries_of_tile,
)
from .work import work

ENTRY = "paged_attention_wgmma"
_BATCH = ("block_table", "cache_seqlens")
SCALARS = (
    "softmax_scale",
    "batch",
    "heads",
    "kv_heads",
    "seq_q",
    "page_size",
    "max_pages",
    "window",
    "sinks",
    "sequences",
)
_LEAST = 4  # tiles of keys per share
_TILES = 4  # row tiles below which a sequence counts as short


def refusal(problem: Problem, arch: Arch) -> str | None:
    return without_boxes(problem) or dense.refusal(problem, arch)


def without_boxes(problem: Problem) -> str | None:
    """Why no kernel on boxes of pages supports a problem; None if one does."""
    if problem.page_size < LEAST_BOX:
        return f"page_size {problem.page_size}: TMA boxes have {LEAST_BOX} or more rows of a page"
    if problem.use_s_aux:
        return "use_s_aux: its sums are over keys only; mma_sync and split_keys add the head's logit"
    return eight_bits_refusal(problem)


def space(problem: Problem, arch: Arch) -> Space[Config]:
    D, capped = problem.head_dim, problem.use_softcap
    tiles = {name: values for name, values in dense.TILE_CHOICES.items() if name not in ("overlap", "value_columns")}
    return Space(
        Config,
        choices={
            **tiles,
            "overlap": (1, 2),
            "value_columns": WIDTHS,
            "packed_heads": dense.packs(problem),
            "splits": SPLITS,
            "blocks": (0, arch.sm_count),
        },
        constraints=(
            *dense.step_constraints(),
            Constraint(
                "persistent blocks compute complete row tiles: splits are for grids of one wave",
                lambda c: (c.blocks == 0) | (c.splits == 1),
            ),
            Constraint("a panel of V no wider than V, or one panel", lambda c: c.value_columns < 2 * D),
            *limits(arch, block(ENTRY, D)),
            Constraint(
                "a wgmma of N > 192 needs more than the 128 registers per thread at launch of one or three warpgroups",
                lambda c: (c.warpgroups == 2) | (widest_product(D, c) <= 192),
            ),
            Constraint(
                "O, scores and P fit the consumers' registers",
                lambda c: register_estimate(D, c, capped=capped) <= consumer_registers(c),
            ),
        ),
    )


def plan(problem: Problem, config: Config) -> Plan:
    """One block per share of a row tile and group of heads; with packed queries, for the maximum possible number of
    tiles."""
    split, heads = config.splits > 1, heads_of_tile(problem, config)
    D, rows, keys = problem.head_dim, (1, ROWS // heads, heads), (1, box_rows(problem, config), 1)
    maps = attention_maps(D, D, config.value_columns, rows, keys, "_cache")
    smem, grid = int(smem_bytes(D, config)), blocks(problem, config)
    spaces = parts(problem, (grid, ROWS * config.warpgroups)) if split else ()
    spaces += (Workspace("ticket", DType.INT32, (1,), exchanged=True),) if config.blocks else ()
    workspace_names = tuple(workspace.name for workspace in spaces)
    optional, read = optional_arguments(problem, split=split)
    arguments = (*(tensor_map.name for tensor_map in maps), *others(optional), *workspace_names)
    launches = (
        *((Launch(f"{ENTRY}_clear", (1, 1, 1), WARP, 0, workspace_names),) if config.blocks else ()),
        Launch(ENTRY, (grid, 1, 1), 128 * (config.warpgroups + 1), smem, arguments),
        *((merge_launch(ENTRY, problem, optional, workspace_names),) if split else ()),
    )
    constants: dict[str, Scalar] = {
        "smem_bytes": smem,
        "ctas": int(ctas(config)),
        "consumer_registers": int(consumer_registers(config)),
        "producer_registers": int(producer_registers(config)),
        "ticket_argument": "ticket" if config.blocks else "nullptr",
        **spelled(maps),
        **read,
    }
    return Plan(launches, constants, spaces, maps)


def others(optional: tuple[str, ...]) -> tuple[str, ...]:
    """Arguments of a launch after its maps."""
    return ("lse", *_BATCH, *SCALARS, *optional)


def merge_launch(entry: str, problem: Problem, optional: tuple[str, ...], workspace_names: tuple[str, ...]) -> Launch:
    """The launch after `entry` that merges the parts it left in workspaces."""
    arguments = ("o", "lse", *SCALARS, *(name for name in optional if name != "o"), *workspace_names)
    return Launch(f"{entry}_merge", (merge_blocks(problem), 1, 1), MERGE_THREADS, 0, arguments)


def optional_arguments(problem: Problem, *, split: bool) -> tuple[tuple[str, ...], dict[str, Scalar]]:
    """The arguments that packed queries and a softcap add, and the constants that templates read for these, for
    workspaces, and in every case."""
    packed = problem.use_cu_seqlens_q
    return (*("o",) * packed, "cu_seqlens_q", "max_seqlen_q", "softcap"), {
        "longest_argument": "max_seqlen_q" if packed else "seq_q",
        "output_rows_argument": "o, o_seq_q_stride, o_heads_stride" if packed else "",
        "shares_argument": "shares" if split else "nullptr",
        "parts_argument": "part_o, part_rows" if split else "nullptr, nullptr",
        "window_box": WINDOW_BOX,
        "merge_threads": MERGE_THREADS,
    }


def default(problem: Problem, arch: Arch) -> Config:
    """Ping-pong warpgroups, with the largest tile that fits, up to 128 keys: more would mostly be masked on the
    diagonal.

    One warpgroup if it holds all rows of a sequence; three if their registers hold 128 keys or nearly so, since they
    share the loaded tiles. V in one panel, or in panels of 32 columns if they divide it and 64 does not. All heads that
    can share rows do, so that they read keys once.
    """
    D, heads = problem.head_dim, dense.packs(problem)[-1]
    columns = panel_width(D)
    rows = problem.longest * heads
    warpgroups = 1 if rows <= ROWS and D <= 192 else 3 if D <= 96 and rows > 2 * ROWS else 2
    for BN in range(128, 31, -16):
        config = Config(BN, warpgroups, 2, 1, warpgroups > 1, columns, 0, True, heads, 1, 0)
        registers = register_estimate(D, config, capped=problem.use_softcap)
        if fits(D, config, arch) and registers <= consumer_registers(config):
            equal, at_once = unpacked(problem), arch.sm_count * int(ctas(config))
            queries = queries_of_tile(equal, config)
            return replace(config, splits=splits(equal, BN, queries, blocks(equal, config), at_once))
    raise TemplateError(f"{arch.name} has no room for the smallest tile of head_dim {D}")


def splits(problem: Problem, BN: int, queries: int, blocks: int, at_once: int) -> int:
    """The fewest splits with which `blocks` blocks fill the SMs, but at least a few for sequences with few row tiles of
    `queries` queries, as in mma_sync."""
    max_splits = min(problem.reach, problem.seq_k) // (_LEAST * BN)
    ragged = problem.batch > 1 and problem.seq_q <= _TILES * queries
    min_splits = max(n for n in SPLITS if n == 1 or n <= min(RAGGED * ragged, max_splits))
    return max(filling(blocks, at_once, max_splits), min_splits)


IMPLEMENTATION = Implementation(
    name="wgmma",
    summary="for prefill: wgmma, K and V as boxes of pages by TMA, which one warp looks up ahead of the others",
    config=Config,
    refusal=refusal,
    space=space,
    plan=plan,
    default=default,
    blocks=lambda problem: (block(ENTRY, problem.head_dim),),
    work=work,
    unproven=True,
    example=Problem(seq_q=512),
)
