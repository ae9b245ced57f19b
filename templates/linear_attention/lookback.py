"""linear_attention in one pass over the tensors: tiles learn from earlier ones what they start from."""

from dataclasses import dataclass

from tuner.arch import GPU, Arch
from tuner.dtype import DType
from tuner.operator import Implementation, Launch, Plan, Work, Workspace
from tuner.space import Space

from .optional import INPUTS, OUTPUTS, SCALARS, pointers, taken
from .problem import Problem
from .tiles import (
    WARP,
    budget_constraints,
    default_budget,
    default_tile,
    shape_constraints,
    smem_budgets,
    smem_bytes,
    staged,
    widths,
)
from .work import PAIR, blocks, row_tiles, state_bytes, tile_beta_bytes, tiled

CLEAR_THREADS = 256
TICKET = 16  # bytes of shared memory for the block's ticket, which keep what follows it aligned


@dataclass(frozen=True, slots=True)
class Config:
    BT: int  # tokens a tile
    BK: int  # channels a tile, over all heads
    threads: int  # a block
    width: int  # channels a thread, loaded at once
    keep_weights: bool  # σ(k) stays in registers between its two uses; or is computed twice
    smem_budget: int  # bytes a block may use: q, k and v arrive there where they fit, in registers otherwise


def space(problem: Problem, arch: Arch) -> Space[Config]:
    return Space(
        Config,
        choices={
            "BT": (8, 16, 32, 64, 128, 256, 512),
            "BK": (32, 64, 128, 256),
            "threads": (64, 128, 256, 512),
            "width": widths(problem),
            "keep_weights": (False, True),
            "smem_budget": smem_budgets(arch),
        },
        constraints=(*shape_constraints(problem, arch), *budget_constraints(problem, arch, TICKET)),
    )


def plan(problem: Problem, config: Config) -> Plan:
    tiles, channels = row_tiles(problem, config), problem.channels
    flags = tiles * -(-channels // config.BK) * config.BK // WARP
    smem = int(smem_bytes(problem, config, TICKET))
    arguments = taken(problem, *INPUTS, *OUTPUTS, *SCALARS)
    clear = ("batch", "seq_len", "heads", "flags", "ticket")
    return Plan(
        launches=(
            Launch("linear_attention_clear", (-(-flags // CLEAR_THREADS), 1, 1), CLEAR_THREADS, 0, clear),
            Launch(
                "linear_attention_lookback",
                (blocks(problem, config), 1, 1),
                config.threads,
                smem,
                (*arguments, "sums", "ends", "flags", "ticket"),
            ),
        ),
        constants={
            "staged": bool(staged(problem, config, TICKET)),
            "smem_bytes": smem,
            "clear_threads": CLEAR_THREADS,
            **pointers(problem),
        },
        workspaces=(
            Workspace("sums", DType.FP32, (tiles, channels, 2)),
            Workspace("ends", DType.FP32, (tiles, channels, 2)),
            Workspace("flags", DType.INT32, (flags,)),
            Workspace("ticket", DType.INT32, (1,)),
        ),
    )


def default(problem: Problem, arch: Arch) -> Config:
    BT, BK, threads, width = default_tile(problem)
    return default_budget(problem, arch, lambda budget: Config(BT, BK, threads, width, False, budget), TICKET)


def work(problem: Problem, config: Config, gpu: GPU) -> Work:
    """Every tensor once. Between blocks: a tile's sum, its end, and one look back at a neighbour that is done."""
    tiles, channels = row_tiles(problem, config), problem.channels
    pairs = PAIR * channels * (2 * tiles - problem.batch + tiles - problem.batch)
    clears = 4 * (tiles * -(-channels // config.BK) * config.BK // WARP + 1)
    return tiled(
        problem,
        config,
        gpu,
        ctas=blocks(problem, config),
        tensors_read=3,
        exchanged=pairs + clears + tile_beta_bytes(problem, config) + state_bytes(problem, 2),
        state_sweeps=2,
        folds=2,
        chain=3,
        in_shared=bool(staged(problem, config, TICKET)),
    )


IMPLEMENTATION = Implementation(
    name="lookback",
    summary="one pass: tiles publish their sums and look back at earlier ones; every tensor moves once",
    config=Config,
    refusal=lambda _problem, _arch: None,
    space=space,
    plan=plan,
    default=default,
    work=work,
)
