"""paged_attention on wgmma (sm_90a), for prompts: flash_attention's kernel, with K and V copied out of pages by TMA."""

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
_LEAST = 4  # tiles of keys a share
_TILES = 4  # of rows, up to which a sequence has few


def refusal(problem: Problem, arch: Arch) -> str | None:
    return without_boxes(problem) or dense.refusal(problem, arch)


def without_boxes(problem: Problem) -> str | None:
    """Why no kernel on boxes of pages serves a problem; None if one may."""
    if problem.page_size < LEAST_BOX:
        return f"page_size {problem.page_size}: boxes of TMA have {LEAST_BOX} rows of a page or more"
    if problem.use_s_aux:
        return "use_s_aux: its sums are over keys alone; mma_sync and split_keys add a head's logit to them"
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
                "blocks that walk take whole row tiles: shares are for as many blocks as can run at a time",
                lambda c: (c.blocks == 0) | (c.splits == 1),
            ),
            Constraint("a panel of V no wider than V, or one panel", lambda c: c.value_columns < 2 * D),
            *limits(arch, block(ENTRY, D)),
            Constraint(
                "a wgmma of N > 192 takes more than the 128 registers with which one or three warpgroups are launched",
                lambda c: (c.warpgroups == 2) | (widest_product(D, c) <= 192),
            ),
            Constraint(
                "O, scores and P fit the consumers' registers",
                lambda c: register_estimate(D, c, capped=capped) <= consumer_registers(c),
            ),
        ),
    )


def plan(problem: Problem, config: Config) -> Plan:
    """A block for each share of a row tile of heads; where queries are packed, for as many tiles as there may be."""
    split, heads = config.splits > 1, heads_of_tile(problem, config)
    D, rows, keys = problem.head_dim, (1, ROWS // heads, heads), (1, box_rows(problem, config), 1)
    maps = attention_maps(D, D, config.value_columns, rows, keys, "_cache")
    smem, grid = int(smem_bytes(D, config)), blocks(problem, config)
    spaces = parts(problem, (grid, ROWS * config.warpgroups)) if split else ()
    spaces += (Workspace("ticket", DType.INT32, (1,), exchanged=True),) if config.blocks else ()
    left = tuple(workspace.name for workspace in spaces)
    optional, read = optional_arguments(problem, split=split)
    given = (*(tensor_map.name for tensor_map in maps), *others(optional), *left)
    launches = (
        *((Launch(f"{ENTRY}_clear", (1, 1, 1), WARP, 0, left),) if config.blocks else ()),
        Launch(ENTRY, (grid, 1, 1), 128 * (config.warpgroups + 1), smem, given),
        *((merge_launch(ENTRY, problem, optional, left),) if split else ()),
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
    """What a launch takes behind its maps."""
    return ("lse", *_BATCH, *SCALARS, *optional)


def merge_launch(entry: str, problem: Problem, optional: tuple[str, ...], left: tuple[str, ...]) -> Launch:
    """Behind that of `entry`, of the parts that it left in workspaces."""
    taken = ("o", "lse", *SCALARS, *(name for name in optional if name != "o"), *left)
    return Launch(f"{entry}_merge", (merge_blocks(problem), 1, 1), MERGE_THREADS, 0, taken)


def optional_arguments(problem: Problem, *, split: bool) -> tuple[tuple[str, ...], dict[str, Scalar]]:
    """The arguments that packed queries and a softcap bring; what templates read of these, of workspaces and of what
    all have in common."""
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
    """Warpgroups in turn, with the largest tile that fits of up to 128 keys: more on the diagonal are mostly hidden.

    One warpgroup where a sequence has no more rows; three where their registers hold 128 keys or nearly so, since they
    share what is loaded. V in one panel, or in panels of 32 columns where these are exact and 64 are not. All heads
    that can share rows do: they read keys once.
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
    """The fewest with which so many blocks fill the SMs; but some for sequences with few row tiles of so many queries,
    as mma_sync has them."""
    most = min(problem.reach, problem.seq_k) // (_LEAST * BN)
    ragged = problem.batch > 1 and problem.seq_q <= _TILES * queries
    least = max(n for n in SPLITS if n == 1 or n <= min(RAGGED * ragged, most))
    return max(filling(blocks, at_once, most), least)


IMPLEMENTATION = Implementation(
    name="wgmma",
    summary="for prompts: wgmma, K and V as boxes of pages by TMA, which one warp looks up ahead of the others",
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
