"""streaming_attention_backward in fp32 with one thread per few elements of a row: the oracle, and the kernel for
fp32."""

import numpy as np

from tuner.arch import GPU
from tuner.spec import Implementation, Plan, Work

from ...flash_attention.naive.implementation import Config, default, space
from ...flash_attention_backward.naive import implementation as dense
from ...streaming_attention.problem import attended_keys
from ..operator import ARGUMENTS
from ..problem import Problem


def plan(problem: Problem, config: Config) -> Plan:
    arguments = tuple(argument.name for argument in ARGUMENTS)
    return dense.plan_of("streaming_attention_backward_naive", problem, config, arguments)


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    attended = attended_keys(problem.forward)
    most_queries = problem.seq_q if problem.first_keys else min(problem.window, problem.seq_q)
    return dense.work_of_pairs(problem, config, int(np.sum(attended)), int(np.max(attended)), most_queries)


IMPLEMENTATION = Implementation(
    name="naive",
    summary="one thread per few elements of a row, fp32 arithmetic; the oracle of the others, and the one for fp32",
    config=Config,
    space=space,
    plan=plan,
    default=default,
    work=work,
    oracle=True,
)
