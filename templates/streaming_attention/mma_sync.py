"""streaming_attention on mma.sync (sm_80 and up): flash_attention's tiles, as far as they hold a key."""

from dataclasses import asdict

from tuner.arch import Arch
from tuner.dtype import DType
from tuner.operator import Implementation, Launch, Plan
from tuner.space import Space

from ..flash_attention import mma_sync as dense
from ..flash_attention.mma_sync_config import q_in_ring, smem_bytes
from ..flash_attention.operator import Problem as DenseProblem
from .mma_sync_config import Config
from .mma_sync_work import work
from .operator import Problem

ENTRY = "streaming_attention_mma_sync"


def refusal(problem: Problem, _arch: Arch) -> str | None:
    if problem.dtype is DType.FP32:
        return "dtype fp32: mma.sync multiplies 16-bit operands"
    if problem.rolling:
        return "rolling: tiles of keys are read as if in order"
    if max(problem.heads, problem.batch) > dense.MAX_GRID_YZ:
        return f"batch {problem.batch} or heads {problem.heads} exceeds {dense.MAX_GRID_YZ}, a grid's limit in y and z"
    return None


def space(problem: Problem, arch: Arch) -> Space[Config]:
    """flash_attention's for the same head_dim, each with and without skipping."""
    tiles = dense.space(_dense(problem), arch)
    choices = {name: values for name, values in tiles.choices.items() if name != "heavy_first"}
    return Space(Config, {**choices, "skip_steps": (True, False)}, tiles.constraints)


def plan(problem: Problem, config: Config) -> Plan:
    D = problem.head_dim
    grid = (-(-problem.seq_q // config.BM), problem.heads, problem.batch)
    smem = int(smem_bytes(D, config))
    return Plan(
        launches=(Launch(ENTRY, grid, 32 * config.warps, smem),),
        constants={"smem_bytes": smem, "q_in_ring": bool(q_in_ring(D, config))},
    )


def default(problem: Problem, arch: Arch) -> Config:
    """flash_attention's for the same head_dim, with skipping."""
    tile = asdict(dense.default(_dense(problem), arch))
    del tile["heavy_first"]
    return Config(**tile, skip_steps=True)


def _dense(problem: Problem) -> DenseProblem:
    """The problem without sinks and window."""
    return DenseProblem(head_dim=problem.head_dim, dtype=problem.dtype)


IMPLEMENTATION = Implementation(
    name="mma_sync",
    summary="tensor cores through mma.sync over the tiles that hold an attended key, exact for every head_dim",
    config=Config,
    refusal=refusal,
    space=space,
    plan=plan,
    default=default,
    work=work,
)
