"""streaming_attention_backward on mma.sync (sm_80 and up): dK and dV by blocks of keys, separately for the sinks, then
dQ."""

from dataclasses import asdict
from functools import partial
from typing import Any

from tuner.arch import Arch
from tuner.errors import TemplateError
from tuner.spec import Block, Constraint, DType, Implementation, Launch, Plan, Space, Workspace, limits

from ...flash_attention_backward.mma_sync import implementation as dense
from ...flash_attention_backward.mma_sync.config import WARP
from ...streaming_attention.mma_sync import implementation as forward
from ..problem import Problem
from .config import SINK_KEYS, Config, sink_register_estimate, sink_smem_bytes
from .work import MERGE_THREADS, merge_blocks, sink_blocks, window_blocks, work

_ENTRY = "streaming_attention_backward_"
_SIZES = ("batch", "heads", "kv_heads", "seq_q", "seq_k", "window", "sinks", "softmax_scale")
_PASS = ("dout", "q", "k", "v", "row_values")


def refusal(problem: Problem, arch: Arch) -> str | None:
    """The refusal of the forward pass."""
    return forward.refusal(problem.forward, arch)


def space(problem: Problem, arch: Arch) -> Space[Config]:
    """The space of flash_attention_backward for the same head_dim, plus the parameters of sinks and window edges."""
    D, tiles = problem.head_dim, dense.space(problem, arch)
    choices = {
        **tiles.choices,
        "narrow": (0, 16, 32),
        "BM_sink": (16, 32, 64, 128),
        "sink_warps": (1, 2, 4, 8),
        "sink_stages": (2, 3),
        "sink_splits": (1, 2, 4, 8, 16, 32, 64, 128),
    }
    return Space(Config, choices, (*tiles.constraints, *_constraints(D, arch)))


def _constraints(D: int, arch: Arch) -> tuple[Constraint, ...]:
    return (
        Constraint("a narrow span is half a tile at most", lambda c: 2 * c.narrow <= c.BN_q),
        Constraint(
            "a warp computes 16 or 32 queries of the sinks",
            lambda c: (c.BM_sink == 16 * c.sink_warps) | (c.BM_sink == 32 * c.sink_warps),
        ),
        *limits(arch, _sinks(D)),
    )


def _sinks(D: int) -> Block:
    smem, registers = partial(sink_smem_bytes, D), partial(sink_register_estimate, D)
    return Block(f"{_ENTRY}sinks", lambda c: WARP * c.sink_warps, smem, registers, name="a block of sinks")


def plan(problem: Problem, config: Config) -> Plan:
    B, H, HK, T = problem.batch, problem.heads, problem.kv_heads, problem.seq_q
    constants = {
        **dense.constants_of(problem, config),
        "merge_threads": MERGE_THREADS,
        "sink_smem_bytes": int(sink_smem_bytes(problem.head_dim, config)),
    }

    def launch(name: str, blocks: int, threads: int, smem_bytes: int, arguments: tuple[str, ...], heads: int) -> Launch:
        return Launch(_ENTRY + name, (blocks, heads, B), threads, smem_bytes, (*arguments, *_SIZES))

    sinks, sums = max(sink_blocks(problem, config), 1), 2 * constants["kv_columns"] * 128
    return Plan(
        launches=(
            dense.rows_launch(f"{_ENTRY}rows", problem),
            launch(
                "dkv",
                window_blocks(problem, config),
                WARP * config.kv_warps,
                constants["kv_smem_bytes"],
                (*_PASS, "dk", "dv"),
                HK,
            ),
            launch("sinks", sinks, WARP * config.sink_warps, constants["sink_smem_bytes"], (*_PASS, "sink_sums"), HK),
            launch("merge", merge_blocks(problem, config), MERGE_THREADS, 0, ("sink_sums", "dk", "dv"), HK),
            launch("dq", -(-T // config.BM_q), WARP * config.q_warps, constants["q_smem_bytes"], (*_PASS, "dq"), H),
        ),
        constants=constants,
        workspaces=(dense.row_values(problem), Workspace("sink_sums", DType.FP32, (B, HK, sinks, sums))),
    )


_SINKS = ((64, 4), (32, 2), (16, 1))  # queries per step, and warps: the first that fits is the default
_BLOCKS = 256  # blocks of sinks: enough to fill a large GPU


def default(problem: Problem, arch: Arch) -> Config:
    """The default of flash_attention_backward for the same head_dim, with narrow spans of half a tile of keys."""
    tiles: dict[str, Any] = asdict(dense.default(problem, arch))
    tiles["narrow"] = tiles["BN_q"] // 2 if tiles["BN_q"] > 16 else 0
    tiles_of_sinks = problem.batch * problem.kv_heads * max(-(-problem.first_keys // SINK_KEYS), 1)
    splits = next((n for n in (1, 2, 4, 8, 16, 32, 64) if n * tiles_of_sinks >= _BLOCKS), 128)
    for BM, warps in _SINKS:
        config = Config(**tiles, BM_sink=BM, sink_warps=warps, sink_stages=2, sink_splits=splits)
        if arch.fits_smem(sink_smem_bytes(problem.head_dim, config)):
            return config
    raise TemplateError(f"{arch.name} has no room for the smallest tiles of head_dim {problem.head_dim}")


IMPLEMENTATION = Implementation(
    name="mma_sync",
    summary="tensor cores through mma.sync over the tiles that attend each other; queries of sinks split over blocks",
    config=Config,
    refusal=refusal,
    space=space,
    plan=plan,
    default=default,
    blocks=lambda problem: (
        *dense.blocks_of("streaming_attention_backward", problem.head_dim, problem.head_dim_v),
        _sinks(problem.head_dim),
    ),
    work=work,
)
