"""mla_decode in fp32 with one thread per few elements of a row: the baseline."""

from dataclasses import replace

import numpy as np

from tuner.arch import GPU
from tuner.spec import Implementation, Plan, Work

from ...flash_attention.naive import implementation as dense
from ...flash_attention.naive.implementation import Config
from ..operator import cost
from ..problem import Problem, attended_rows


def plan(problem: Problem, config: Config) -> Plan:
    (launch,) = dense.plan(problem, config).launches  # type: ignore[arg-type]  # only sizes are read
    return Plan((replace(launch, entry="mla_decode_naive"),), {})


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    attended = attended_rows(problem)
    pair_work = dense.work_of_pairs(problem, config, int(np.sum(attended)))
    return (replace(pair_work, dram_bytes=cost(problem).bytes, chain=float(np.max(attended))),)


IMPLEMENTATION = Implementation(
    name="naive",
    summary="one thread per few elements of a row, fp32 arithmetic; the oracle of the others, and the one for fp32",
    config=Config,
    space=dense.space,
    plan=plan,
    default=dense.default,
    work=work,
    oracle=True,
)
