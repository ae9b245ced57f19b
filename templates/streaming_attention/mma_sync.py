"""streaming_attention on mma.sync (sm_80 and up): flash_attention's tiles, of which only those with a key are visited."""

from tuner.arch import Arch
from tuner.dtype import DType
from tuner.errors import TemplateError
from tuner.operator import Implementation, Launch, Plan
from tuner.space import Space

from ..flash_attention import mma_sync as dense
from ..flash_attention.mma_sync_config import q_in_ring, register_estimate, smem_budgets, smem_bytes
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
        return f"batch {problem.batch} or heads {problem.heads} exceeds {dense.MAX_GRID_YZ}, the grid's limit in y and z"
    return None


def space(problem: Problem, arch: Arch) -> Space[Config]:
    """flash_attention's for the same head_dim, each with and without skipping."""
    tiles = dense.space(DenseProblem(head_dim=problem.head_dim), arch)
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


# BM, BN, warps: the first that fits is the default.
_TILES = ((128, 64, 4), (64, 64, 4), (64, 32, 4), (32, 32, 2))
_REGISTERS = 215  # an estimate up to here compiles without spills on every arch


def default(problem: Problem, arch: Arch) -> Config:
    """The largest tile that neither spills nor exceeds an arch's shared memory."""
    for BM, BN, warps in _TILES:
        for budget in smem_budgets(arch):
            config = Config(BM, BN, warps, 1, 2, budget, 1, False, True, True, True)
            fits = smem_bytes(problem.head_dim, config) <= budget
            if fits and register_estimate(problem.head_dim, config) <= _REGISTERS:
                return config
    raise TemplateError(f"{arch.name} has no room for the smallest tile of head_dim {problem.head_dim}")


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
