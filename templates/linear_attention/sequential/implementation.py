"""linear_attention with one thread per vector of channels of a sequence, which prefetches its next tokens."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.arch import GPU, Arch
from tuner.spec import Block, Implementation, Launch, Plan, Space, Work, limits

from ..problem import Problem
from ..tiles import widths
from ..work import per_thread

ENTRY = "linear_attention_sequential"
THREADS = 2**15  # approximately what fills a GPU


@dataclass(frozen=True, slots=True)
class Config:
    threads: int  # threads per block
    width: int  # channels per thread, loaded at once
    ahead: int  # tokens in flight while the same number is computed


def space(problem: Problem, arch: Arch) -> Space[Config]:
    return Space(
        Config,
        choices={"threads": (32, 64, 128, 256), "width": widths(problem), "ahead": (1, 2, 4, 8, 16)},
        constraints=limits(arch, _block(problem)),
    )


def _block(problem: Problem) -> Block:
    return Block(ENTRY, lambda c: c.threads, lambda _: 0, lambda c: register_estimate(problem, c))


def register_estimate(problem: Problem, c: Any) -> Any:
    """Registers per thread: q, k and v of twice `ahead` tokens and their addresses, s, n, their compensation terms and
    β of each channel, and 40 more."""
    vectors = 6 * np.maximum(problem.dtype.itemsize * c.width / 4, 1)
    return c.ahead * (vectors + 8) + 6 * c.width + 40


def plan(problem: Problem, config: Config) -> Plan:
    blocks = -(-problem.sequences * problem.channels // (config.threads * config.width))
    return Plan((Launch(ENTRY, (blocks, 1, 1), config.threads, 0),), {})


def default(problem: Problem, _arch: Arch) -> Config:
    """The widest vectors that leave enough threads to fill a GPU, or 4 bytes; small blocks, since there are few
    threads."""
    items = problem.sequences * problem.channels
    wide = [width for width in widths(problem) if items // width >= THREADS or width * problem.dtype.itemsize <= 4]
    return Config(32, wide[-1], 8 if wide[-1] * problem.dtype.itemsize <= 4 else 4)


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    """Nothing is read twice."""
    return (per_thread(problem, config.threads, config.width, config.ahead, compensation=12),)


IMPLEMENTATION = Implementation(
    name="sequential",
    summary="one thread per vector of channels, one token after the other, with prefetching",
    config=Config,
    space=space,
    plan=plan,
    default=default,
    blocks=lambda problem: (_block(problem),),
    work=work,
)
