"""streaming_attention in fp32 with one thread per few elements of a row: the baseline."""

from dataclasses import replace
from typing import Any

import numpy as np

from tuner.arch import GPU, Arch
from tuner.spec import Cost, DType, Implementation, Plan, Work

from ...flash_attention.naive import implementation as dense
from ...flash_attention.naive.implementation import Config
from ..operator import cost
from ..problem import Problem, attended_keys


def default(problem: Any, arch: Arch) -> Config:
    """The default of flash_attention, except where it spills: 64 columns of fp32, at D = 256 on sm_120a."""
    config = dense.default(problem, arch)
    return replace(config, columns=32) if problem.dtype is DType.FP32 and config.columns == 64 else config


def plan(problem: Problem, config: Config) -> Plan:
    return plan_of("streaming_attention_naive", problem, config)


def plan_of(entry: str, problem: Any, config: Config) -> Plan:
    """The launch of `entry` for a problem with the sizes of this one."""
    (launch,) = dense.plan(problem, config).launches
    return Plan((replace(launch, entry=entry),), {})


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    return work_of(problem, config, cost(problem))


def work_of(problem: Any, config: Config, cost: Cost) -> tuple[Work, ...]:
    """Work if queries attend a window and sinks, with the tensor bytes of `cost`."""
    attended = attended_keys(problem)
    pair_work = dense.work_of_pairs(problem, config, int(np.sum(attended)))
    return (replace(pair_work, dram_bytes=cost.bytes, chain=float(np.max(attended))),)


IMPLEMENTATION = Implementation(
    name="naive",
    summary="one thread per few elements of a row, fp32 arithmetic; the oracle of the others, and the one for fp32",
    config=Config,
    space=dense.space,
    plan=plan,
    default=default,
    work=work,
    oracle=True,
)
