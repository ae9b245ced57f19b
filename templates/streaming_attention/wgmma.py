"""streaming_attention on wgmma (sm_90a): flash_attention's kernel over the tiles that hold sinks and windows."""

from functools import cache

from tuner.arch import Arch
from tuner.errors import TemplateError
from tuner.operator import Implementation, Plan
from tuner.space import Constraint, Space
from tuner.tensor_map import TensorMap

from ..flash_attention import wgmma as dense
from ..flash_attention.wgmma_config import ROWS, WIDTHS, consumer_registers, fits, packed, register_estimate
from .problem import Problem
from .wgmma_config import Config, row_tiles
from .wgmma_work import PIECE, work

ENTRY = "streaming_attention_wgmma"
_SCALARS = ("lse", "softmax_scale", "batch", "heads", "kv_heads", "seq_q", "seq_k", "window", "sinks")


def refusal(problem: Problem, arch: Arch) -> str | None:
    if problem.rolling:
        return "rolling: boxes of keys are copied as if in order"
    return dense.refusal(problem, arch)


def space(problem: Problem, arch: Arch) -> Space[Config]:
    return Space(
        Config,
        choices={
            "BN": tuple(range(32, 257, 16)),
            "warpgroups": (1, 2, 3),
            "stages": (2, 3, 4),
            "overlap": (0, 1, 2),
            "ping_pong": (False, True),
            "value_columns": (0, *WIDTHS),
            "polynomial": (0, 8),
            "lazy_rescale": (False, True),
            "packed_heads": dense.packs(problem),
            "blocks": (0, *dense.sm_counts(arch)),
        },
        constraints=(
            *dense.tile_constraints(problem.head_dim, arch, capped=False),
            Constraint(
                "what overlaps nothing is there to be compared with: a block a row tile",
                lambda c: (c.overlap > 0) | (c.blocks == 0),
            ),
            Constraint(
                "ragged batches take panels of V of one width: ptxas serializes several",
                lambda c: (c.value_columns != 0) | (not problem.ragged),
            ),
        ),
    )


def plan(problem: Problem, config: Config) -> Plan:
    heads = int(packed(problem.heads, problem.kv_heads, config))
    taken = row_tiles(problem, config) * (problem.heads // heads) * problem.batch
    lengths = ("cache_seqlens",) if problem.ragged else ()
    constants = {"cache_seqlens_pointer": "cache_seqlens" if problem.ragged else "nullptr"}
    maps = _maps(ROWS // heads, heads, config.BN)
    return dense.block_plan(ENTRY, problem.head_dim, config, taken, maps, (*_SCALARS, *lengths), constants)


@cache
def _maps(queries: int, heads: int, keys: int) -> tuple[TensorMap, ...]:
    """For each width of panel; a warpgroup's rows are `queries` of `heads`, and keys come as tiles or in pieces."""
    whole = {"q": (1, queries, heads), "k": (1, keys, 1), "v": (1, keys, 1), "o": (1, queries, heads)}
    pieces = dict.fromkeys(("k", "v"), (1, PIECE, 1))
    return (
        *(each for name, box in whole.items() for each in dense.panel_maps(name, box)),
        *(each for name, box in pieces.items() for each in dense.panel_maps(name, box, f"_rows{PIECE}")),
    )


def default(problem: Problem, arch: Arch) -> Config:
    """Two warpgroups in turn, whose rows all heads of a KV head share, with up to 128 keys a tile."""
    D = problem.head_dim
    columns = next((width for width in WIDTHS[::-1] if width >= D), 32 if D % 64 == 32 else 64)
    for BN in range(128, 31, -16):
        config = Config(BN, 2, 2, 1, True, columns, 0, True, dense.packs(problem)[-1], 0)
        if fits(D, config, arch) and register_estimate(D, config) <= consumer_registers(config):
            return config
    raise TemplateError(f"{arch.name} has no room for the smallest tile of head_dim {D}")


IMPLEMENTATION = Implementation(
    name="wgmma",
    summary="wgmma and TMA over the tiles that hold sinks and windows, exact for every head_dim from 16",
    config=Config,
    refusal=refusal,
    space=space,
    plan=plan,
    default=default,
    work=work,
    unproven=True,
)
