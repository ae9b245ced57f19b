"""linear_attention with one thread per channel of a sequence: the baseline."""

from dataclasses import dataclass

from tuner.arch import GPU, Arch
from tuner.spec import Implementation, Launch, Plan, Space, Work

from ..problem import Problem
from ..work import per_thread

ENTRY = "linear_attention_naive"


@dataclass(frozen=True, slots=True)
class Config:
    threads: int  # threads per block


def space(_problem: Problem, _arch: Arch) -> Space[Config]:
    return Space(Config, choices={"threads": (32, 64, 128, 256)})


def plan(problem: Problem, config: Config) -> Plan:
    blocks = -(-problem.sequences * problem.channels // config.threads)
    return Plan((Launch(ENTRY, (blocks, 1, 1), config.threads, 0),), {})


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    """Nothing is read twice; loads are dependent."""
    return (per_thread(problem, config.threads, width=1, ahead=1),)


IMPLEMENTATION = Implementation(
    name="naive",
    summary="one thread per channel, one token after the other; the oracle of the others",
    config=Config,
    space=space,
    plan=plan,
    default=lambda _problem, _arch: Config(128),
    work=work,
    oracle=True,
)
