"""paged_attention on mma.sync (sm_80 and up), for prompts: flash_attention's tiles, gathered out of pages."""

from dataclasses import asdict, replace

from tuner.arch import GPU, Arch
from tuner.operator import Implementation, Launch, Plan, Work
from tuner.space import Constraint, Space

from ..flash_attention import mma_sync as dense
from ..flash_attention.mma_sync_config import q_in_ring, register_estimate, smem_budgets, smem_bytes
from ..flash_attention.operator import Problem as DenseProblem
from ..flash_attention.split_keys_config import refusal
from .mma_sync_config import Config
from .mma_sync_work import work as work_when_full
from .optional import with_softcap
from .problem import Problem

ENTRY = "paged_attention_mma_sync"


def space(problem: Problem, arch: Arch) -> Space[Config]:
    """flash_attention's for the same head_dim, each with narrow spans of several widths and without."""
    tiles = dense.space(_dense(problem), arch)
    choices = {name: values for name, values in tiles.choices.items() if name != "heavy_first"}
    constraints = (
        *tiles.constraints,
        Constraint("a narrow span is half a tile at most", lambda c: 2 * c.narrow <= c.BN),
        Constraint("P V takes 16 keys a step", lambda c: c.narrow % (16 * c.d_warps) == 0),
    )
    return Space(Config, {**choices, "narrow": (0, 16, 32, 64)}, constraints)


def plan(problem: Problem, config: Config) -> Plan:
    D, rows = problem.head_dim, problem.seq_q * (problem.heads // problem.kv_heads)
    smem = int(smem_bytes(D, config))
    launch = Launch(ENTRY, (-(-rows // config.BM), problem.kv_heads, problem.batch), 32 * config.warps, smem)
    return with_softcap(problem, Plan((launch,), {"smem_bytes": smem, "q_in_ring": bool(q_in_ring(D, config))}))


_FEW = 64  # rows that four warps take 16 each of
_REGISTERS = 180  # flash_attention's default with a higher estimate spills with the masks and pages here


def default(problem: Problem, arch: Arch) -> Config:
    """flash_attention's for the same head_dim, with narrow spans of half a tile; and fewer rows where there are few."""
    D, tile = problem.head_dim, dense.default(_dense(problem), arch)
    if register_estimate(D, tile) > _REGISTERS and tile.BN > 32:
        tile = replace(tile, BN=32)
    if problem.seq_q * (problem.heads // problem.kv_heads) <= _FEW:
        tile = replace(tile, BM=_FEW, warps=4)
    fits = (replace(tile, smem_budget=budget) for budget in smem_budgets(arch))
    fields = asdict(next(each for each in fits if smem_bytes(D, each) <= each.smem_budget))
    del fields["heavy_first"]
    return Config(**fields, narrow=tile.BN // 2)


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    return (work_when_full(problem, config),)


def _dense(problem: Problem) -> DenseProblem:
    """The problem without pages, sinks and window."""
    return DenseProblem(head_dim=problem.head_dim, dtype=problem.dtype)


IMPLEMENTATION = Implementation(
    name="mma_sync",
    summary="for prompts: tensor cores, tiles of all query heads of a KV head against keys out of pages",
    config=Config,
    refusal=refusal,
    space=space,
    plan=plan,
    default=default,
    work=work,
)
