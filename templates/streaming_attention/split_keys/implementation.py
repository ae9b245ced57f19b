"""streaming_attention for few queries: warps and blocks split the keys, and a second launch merges the blocks'
results."""

import numpy as np

from tuner.arch import GPU, Arch
from tuner.spec import Implementation, Plan, Work

from ...flash_attention.split_keys import config as shared
from ...flash_attention.split_keys.config import Config
from ...flash_attention.split_keys.work import Walked, work_of_walks
from ..operator import cost
from ..problem import Problem
from ..visits import Keys, Walks


def plan(problem: Problem, config: Config) -> Plan:
    return shared.plan(problem, config, "streaming_attention")


def default(problem: Problem, arch: Arch) -> Config:
    return shared.default(problem, arch, min(problem.reach, problem.seq_k))


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    keys = Keys.of(problem, config.BM, shared.row_tiles(problem, config), problem.heads // problem.kv_heads)
    walks = Walks(keys, config.BN)
    walked = Walked(walks.tiles, int(np.sum(walks.keys_read)))
    return work_of_walks(problem, config, walked, cost(problem))


IMPLEMENTATION = Implementation(
    name="split_keys",
    summary="for few queries: tensor cores, query heads of a KV head as rows, keys split over warps and blocks",
    config=Config,
    refusal=shared.refusal,
    space=shared.space,
    plan=plan,
    default=default,
    blocks=lambda problem: (shared.block("streaming_attention", problem),),
    work=work,
)
