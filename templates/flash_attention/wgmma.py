"""flash_attention on wgmma (sm_90a): a producer copies K and V by TMA, and softmax runs over the products."""

from tuner.arch import Arch
from tuner.errors import TemplateError
from tuner.operator import Implementation, Launch, Plan
from tuner.space import Constraint, Space
from tuner.tensor_map import TensorMap

from .operator import Problem
from .wgmma_config import (
    WIDTHS,
    Config,
    consumer_registers,
    ctas,
    fits,
    producer_registers,
    register_estimate,
    smem_bytes,
)
from .wgmma_work import work

ENTRY = "flash_attention_wgmma"
MAX_GRID_YZ = 65535
_ROWS = 64  # of Q, a warpgroup


def refusal(problem: Problem, arch: Arch) -> str | None:
    if not arch.has_wgmma:
        return f"{arch.name} has no wgmma: it is an instruction of sm_90a"
    if problem.head_dim < 16:
        return f"head_dim {problem.head_dim}: the narrowest tile has 16 columns"
    if max(problem.heads, problem.batch) > MAX_GRID_YZ:
        return f"batch {problem.batch} or heads {problem.heads} exceeds {MAX_GRID_YZ}, the grid's limit in y and z"
    return None


def space(problem: Problem, arch: Arch) -> Space[Config]:
    D = problem.head_dim
    return Space(
        Config,
        choices={
            "BN": tuple(range(32, 257, 16)),
            "warpgroups": (1, 2, 3),
            "stages": (2, 3, 4),
            "overlap": (0, 1, 2),
            "ping_pong": (False, True),
            "value_columns": (0, *WIDTHS),
            "polynomial": (0, 4),
            "lazy_rescale": (False, True),
            "heavy_first": (True, False) if problem.causal else (False,),
        },
        constraints=(
            Constraint("ping-pong takes two warpgroups or more", lambda c: ~c.ping_pong | (c.warpgroups > 1)),
            Constraint("ping-pong orders the products of overlap 1", lambda c: ~c.ping_pong | (c.overlap == 1)),
            Constraint(
                "polynomials are worth their registers only while nothing else is in flight but P V",
                lambda c: (c.polynomial == 0) | (c.overlap == 1),
            ),
            Constraint(
                "a panel of V no wider than D, or one panel",
                lambda c: (c.value_columns < 2 * D) & ((c.value_columns == 0) | (c.value_columns >= min(D, 16))),
            ),
            Constraint(
                "several widths only where one does not divide D",
                lambda c: (c.value_columns != 0) | (D % 64 != 0),
            ),
            Constraint("the tiles fit the shared memory of an SM", lambda c: fits(D, c, arch)),
            Constraint(
                "O, scores and P fit the consumers' registers",
                lambda c: register_estimate(D, c) <= consumer_registers(c),
            ),
        ),
    )


def plan(problem: Problem, config: Config) -> Plan:
    smem = int(smem_bytes(problem.head_dim, config))
    grid = (-(-problem.seq_q // (_ROWS * config.warpgroups)), problem.heads, problem.batch)
    maps = tuple(
        TensorMap(f"{name}_{width}", name, (1, rows, 1, width), swizzle=2 * width)
        for name, rows in (("q", _ROWS), ("k", config.BN), ("v", config.BN), ("o", _ROWS))
        for width in WIDTHS
    )
    scalars = ("lse", "softmax_scale", "heads", "kv_heads", "seq_q", "seq_k")
    arguments = (*(each.name for each in maps), *scalars)
    return Plan(
        launches=(Launch(ENTRY, grid, 128 * (config.warpgroups + 1), smem, arguments),),
        constants={
            "smem_bytes": smem,
            "ctas": int(ctas(config)),
            "consumer_registers": int(consumer_registers(config)),
            "producer_registers": int(producer_registers(config)),
        },
        maps=maps,
    )


def default(problem: Problem, arch: Arch) -> Config:
    """Two warpgroups in turn, the largest tile up to 128 keys, V in panels of the widest width that divides D."""
    D = problem.head_dim
    columns = next((width for width in WIDTHS if D % width == 0), WIDTHS[-1])
    for BN in range(128, 31, -16):
        config = Config(BN, 2, 2, 1, True, columns, 0, False, problem.causal)
        if fits(D, config, arch) and register_estimate(D, config) <= consumer_registers(config):
            return config
    raise TemplateError(f"{arch.name} has no room for the smallest tile of head_dim {D}")


IMPLEMENTATION = Implementation(
    name="wgmma",
    summary="wgmma and TMA with producer and consumer warpgroups, exact for every head_dim from 16",
    config=Config,
    refusal=refusal,
    space=space,
    plan=plan,
    default=default,
    work=work,
    unproven=True,
)
