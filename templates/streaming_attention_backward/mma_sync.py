"""streaming_attention_backward on mma.sync (sm_80 and up): dK and dV by blocks of keys, the sinks' apart, then dQ."""

from dataclasses import asdict
from typing import Any

from tuner.arch import Arch
from tuner.dtype import DType
from tuner.errors import TemplateError
from tuner.operator import Implementation, Launch, Plan, Workspace
from tuner.space import Constraint, Space

from ..flash_attention.mma_sync import MAX_GRID_YZ
from ..flash_attention_backward import mma_sync as dense
from ..flash_attention_backward.mma_sync_config import (
    WARP,
    kv_columns,
    kv_smem_bytes,
    q_smem_bytes,
    register_limit,
)
from ..flash_attention_backward.mma_sync_work import row_lanes
from ..flash_attention_backward.optional import pointer, taken
from ..flash_attention_backward.problem import Problem as DenseProblem
from .mma_sync_config import SINK_KEYS, Config, sink_register_estimate, sink_smem_bytes
from .mma_sync_work import MERGE_THREADS, merge_blocks, sink_blocks, window_blocks, work
from .problem import Problem

_ENTRY = "streaming_attention_backward_"
_SCALARS = ("batch", "heads", "kv_heads", "seq_q", "seq_k", "window", "sinks")
_PASS = ("dout", "q", "k", "v", "row_values")


def refusal(problem: Problem, _arch: Arch) -> str | None:
    if problem.dtype is DType.FP32:
        return "dtype fp32: mma.sync multiplies 16-bit operands"
    if max(problem.heads, problem.batch) > MAX_GRID_YZ:
        return f"batch {problem.batch} or heads {problem.heads} exceeds {MAX_GRID_YZ}, a grid's limit in y and z"
    return None


def space(problem: Problem, arch: Arch) -> Space[Config]:
    """flash_attention_backward's for the same head_dim, with what the sinks and the edges of a window add."""
    D, tiles = problem.head_dim, dense.space(_dense(problem), arch)
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
            "a warp takes 16 or 32 queries of the sinks",
            lambda c: (c.BM_sink == 16 * c.sink_warps) | (c.BM_sink == 32 * c.sink_warps),
        ),
        Constraint(
            "a block of sinks fits the shared memory of an SM", lambda c: sink_smem_bytes(D, c) <= arch.smem_per_block
        ),
        Constraint(
            "sums, scores and products of the sinks fit the registers",
            lambda c: sink_register_estimate(D, c) <= register_limit(c.sink_warps, 1, arch),
        ),
    )


def plan(problem: Problem, config: Config) -> Plan:
    D, B, H, HK, T = problem.head_dim, problem.batch, problem.heads, problem.kv_heads, problem.seq_q
    columns, sizes = int(kv_columns(D, config)), (*_SCALARS, "softmax_scale")
    smem = {
        "kv_smem_bytes": int(kv_smem_bytes(D, config)),
        "sink_smem_bytes": int(sink_smem_bytes(D, config)),
        "q_smem_bytes": int(q_smem_bytes(D, config)),
    }

    def launch(name: str, blocks: int, threads: int, smem_bytes: int, arguments: tuple[str, ...], heads: int) -> Launch:
        return Launch(_ENTRY + name, (blocks, heads, B), threads, smem_bytes, (*arguments, *sizes))

    row_blocks = -(-B * H * T * row_lanes(D) // dense.ROW_THREADS)
    of_rows = taken(problem, "dout", "o", "lse", "dlse", "row_values", "batch", "heads", "seq_q")
    return Plan(
        launches=(
            Launch(f"{_ENTRY}rows", (row_blocks, 1, 1), dense.ROW_THREADS, 0, of_rows),
            launch(
                "dkv",
                window_blocks(problem, config),
                WARP * config.kv_warps,
                smem["kv_smem_bytes"],
                (*_PASS, "dk", "dv"),
                HK,
            ),
            launch(
                "sinks",
                max(sink_blocks(problem, config), 1),
                WARP * config.sink_warps,
                smem["sink_smem_bytes"],
                (*_PASS, "sink_sums"),
                HK,
            ),
            launch("merge", merge_blocks(problem, config), MERGE_THREADS, 0, ("sink_sums", "dk", "dv"), HK),
            launch("dq", -(-T // config.BM_q), WARP * config.q_warps, smem["q_smem_bytes"], (*_PASS, "dq"), H),
        ),
        constants={
            "row_threads": dense.ROW_THREADS,
            "row_lanes": row_lanes(D),
            "merge_threads": MERGE_THREADS,
            "kv_columns": columns,
            **smem,
            **pointer(problem),
        },
        workspaces=(
            Workspace("row_values", DType.FP32, (B, H, T, 2)),
            Workspace("sink_sums", DType.FP32, (B, HK, max(sink_blocks(problem, config), 1), 2 * columns * 128)),
        ),
    )


_SINKS = ((64, 4), (32, 2), (16, 1))  # queries a step, and warps: the first that fits is the default
_BLOCKS = 256  # of sinks: enough to fill a large GPU


def default(problem: Problem, arch: Arch) -> Config:
    """flash_attention_backward's for the same head_dim, with narrow spans of half a tile of keys."""
    tiles: dict[str, Any] = asdict(dense.default(_dense(problem), arch))
    tiles["narrow"] = tiles["BN_q"] // 2 if tiles["BN_q"] > 16 else 0
    alike = problem.batch * problem.kv_heads * max(-(-problem.first_keys // SINK_KEYS), 1)
    splits = next((n for n in (1, 2, 4, 8, 16, 32, 64) if n * alike >= _BLOCKS), 128)
    for BM, warps in _SINKS:
        config = Config(**tiles, BM_sink=BM, sink_warps=warps, sink_stages=2, sink_splits=splits)
        if sink_smem_bytes(problem.head_dim, config) <= arch.smem_per_block:
            return config
    raise TemplateError(f"{arch.name} has no room for the smallest tiles of head_dim {problem.head_dim}")


def _dense(problem: Problem) -> DenseProblem:
    """The problem without sinks and window."""
    return DenseProblem(head_dim=problem.head_dim, dtype=problem.dtype)


IMPLEMENTATION = Implementation(
    name="mma_sync",
    summary="tensor cores through mma.sync over the tiles that attend each other; the sinks' queries are shared out",
    config=Config,
    refusal=refusal,
    space=space,
    plan=plan,
    default=default,
    work=work,
)
