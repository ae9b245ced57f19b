"""flash_attention for few queries: warps and blocks split the keys, and a second launch merges the blocks' results."""

import numpy as np

from tuner.arch import GPU, Arch
from tuner.spec import Implementation, Plan, Work

from ..arguments import optional_refusal
from ..mma_sync.work import with_softcap
from ..operator import cost
from ..problem import Problem, visible_keys
from . import config as shared
from .config import Config
from .work import Walked, work_of_walks


def refusal(problem: Problem, arch: Arch) -> str | None:
    if problem.use_cu_seqlens:
        return "use_cu_seqlens: split_keys cannot merge parts of packed sequences; use streaming_attention for decoding"
    return shared.refusal(problem, arch) or optional_refusal(problem)


def plan(problem: Problem, config: Config) -> Plan:
    return shared.plan(problem, config, "flash_attention")


def default(problem: Problem, arch: Arch) -> Config:
    return shared.default(problem, arch, problem.seq_k)


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    attend, *merge = work_of_walks(problem, config, walked(problem, config), cost(problem))
    if problem.use_softcap:
        attend = with_softcap(problem.head_dim, attend, problem.head_dim_v)
    return (attend, *merge)


def walked(problem: Problem, config: Config) -> Walked:
    """A row tile visits the keys that its last query attends: earlier queries attend no others."""
    group = problem.heads // problem.kv_heads
    end = (np.arange(shared.row_tiles(problem, config), dtype=np.int64) + 1) * config.BM
    last = (np.minimum(end, problem.seq_q * group) - 1) // group
    keys = visible_keys(problem)[last]
    return Walked(-(-keys // config.BN), int(np.sum(keys)))


IMPLEMENTATION = Implementation(
    name="split_keys",
    summary="for few queries: tensor cores, query heads of a KV head as rows, keys split over warps and blocks",
    config=Config,
    refusal=refusal,
    space=shared.space,
    plan=plan,
    default=default,
    blocks=lambda problem: (shared.block("flash_attention", problem),),
    work=work,
)
