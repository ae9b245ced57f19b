"""paged_attention in fp32 with one thread per few elements of a row: the baseline."""

from dataclasses import replace

from tuner.arch import GPU
from tuner.spec import Implementation, Plan, Work

from ...flash_attention.naive.implementation import Config, default, space
from ...streaming_attention.naive.implementation import plan_of, work_of
from ..operator import cost
from ..problem import Problem, optional_constants, unpacked


def plan(problem: Problem, config: Config) -> Plan:
    return replace(plan_of("paged_attention_naive", problem, config), constants=optional_constants(problem))


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    """Packed queries are counted as if each sequence had the same number."""
    (launch_work,) = work_of(unpacked(problem), config, cost(problem))
    (launch,) = plan(problem, config).launches
    return (replace(launch_work, ctas=launch.grid[0]),)


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
