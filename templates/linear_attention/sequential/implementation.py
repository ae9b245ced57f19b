"""linear_attention with one thread for a vector of channels of a sequence, its next tokens on their way."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.arch import GPU, Arch
from tuner.spec import Block, Implementation, Launch, Plan, Space, Work, limits

from ..problem import Problem
from ..tiles import widths
from ..work import per_thread

ENTRY = "linear_attention_sequential"
THREADS = 2**15  # about what fills a GPU


@dataclass(frozen=True, slots=True)
class Config:
    threads: int  # a block
    width: int  # channels a thread, loaded at once
    ahead: int  # tokens that are on their way while as many are computed


def space(problem: Problem, arch: Arch) -> Space[Config]:
    return Space(
        Config,
        choices={"threads": (32, 64, 128, 256), "width": widths(problem), "ahead": (1, 2, 4, 8, 16)},
        constraints=limits(arch, _block(problem)),
    )


def _block(problem: Problem) -> Block:
    return Block(ENTRY, lambda c: c.threads, lambda _: 0, lambda c: register_estimate(problem, c))


def register_estimate(problem: Problem, c: Any) -> Any:
    """A thread's: q, k and v of twice `ahead` tokens and their addresses, s, n, what they lost and β of each channel,
    and 40 more."""
    vectors = 6 * np.maximum(problem.dtype.itemsize * c.width / 4, 1)
    return c.ahead * (vectors + 8) + 6 * c.width + 40


def plan(problem: Problem, config: Config) -> Plan:
    blocks = -(-problem.sequences * problem.channels // (config.threads * config.width))
    return Plan((Launch(ENTRY, (blocks, 1, 1), config.threads, 0),), {})


def default(problem: Problem, _arch: Arch) -> Config:
    """The widest vectors that leave threads enough to fill a GPU, or 4 bytes; small blocks, since threads are few."""
    items = problem.sequences * problem.channels
    wide = [width for width in widths(problem) if items // width >= THREADS or width * problem.dtype.itemsize <= 4]
    return Config(32, wide[-1], 8 if wide[-1] * problem.dtype.itemsize <= 4 else 4)


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    """Nothing is read twice."""
    return (per_thread(problem, config.threads, config.width, config.ahead, compensation=12),)


IMPLEMENTATION = Implementation(
    name="sequential",
    summary="one thread for a vector of channels, one token after the other, the next ones on their way",
    config=Config,
    space=space,
    plan=plan,
    default=default,
    blocks=lambda problem: (_block(problem),),
    work=work,
)
