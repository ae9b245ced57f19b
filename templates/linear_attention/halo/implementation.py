"""linear_attention for β bounded below 1: a tile rereads the preceding tokens that affect the fp32 result."""

import math
from dataclasses import dataclass

import numpy as np

from tuner.arch import GPU, Arch
from tuner.spec import Block, Implementation, Launch, Plan, Space, Work

from ..operator import ARGUMENTS, cost
from ..problem import Problem
from ..tiles import Shape, register_estimate, shape_constraints, sum_bytes, tile_block, widths
from ..work import blocks, state_bytes, tile_beta_bytes, tiled

MAX_BETA = 0.95  # above, the halo is longer than any tile
PRECISION_BITS = 24  # the omitted tokens contribute less than half an ulp of n


ENTRY = "linear_attention_halo"


@dataclass(frozen=True, slots=True)
class Config(Shape):
    """A config of tiles in registers."""


def refusal(problem: Problem, _arch: Arch) -> str | None:
    if problem.beta_bound > MAX_BETA:
        return f"beta_bound {problem.beta_bound}: must be at most {MAX_BETA}, or the halo gets too long"
    if problem.use_initial_state:
        return "use_initial_state: an initial state may outweigh any number of tokens"
    return None


def reach_bits(problem: Problem) -> float:
    """log2 of the factor 1 / β^W at which omitted tokens are negligible: the largest ratio of two weights, times
    2^24."""
    return PRECISION_BITS + problem.key_floor * math.log2(math.e)


def reach(problem: Problem) -> int:
    """W: tokens before a tile that it rereads, with β at its bound."""
    return math.ceil(reach_bits(problem) / -math.log2(problem.beta_bound)) if problem.beta_bound else 0


def space(problem: Problem, arch: Arch) -> Space[Config]:
    return Space(
        Config,
        choices={
            "BT": (4, 8, 16, 32, 64, 128, 256, 512, 1024),
            "BK": (32, 64, 128, 256),
            "threads": (64, 128, 256, 512),
            "width": widths(problem),
            "min_ctas": (1, 2, 3, 4, 6, 8),
            "keep_weights": (False, True),
        },
        constraints=(*shape_constraints(problem, arch, _block(problem)),),
    )


def _block(problem: Problem) -> Block:
    return tile_block(ENTRY, sum_bytes, lambda c: register_estimate(problem, c, in_registers=True))


def plan(problem: Problem, config: Config) -> Plan:
    arguments = tuple(argument.name for argument in ARGUMENTS if argument.name != "initial_state")
    launch = Launch(ENTRY, (blocks(problem, config), 1, 1), config.threads, sum_bytes(config), arguments)
    constants = {"smem_bytes": sum_bytes(config), "reach_bits": reach_bits(problem)}
    return Plan((launch,), constants)


def default(problem: Problem, _arch: Arch) -> Config:
    """8 tokens of the widest vector per thread, or 4 with packed sequences; long tiles, which reread few tokens."""
    width = widths(problem)[-1]
    return Config((16 if problem.varlen else 32) * width, 32, 128, width, 1, False)


def halo_tokens(problem: Problem, config: Config) -> int:
    """Tokens that the tiles of one row reread, with β at its bound and without packed sequences."""
    starts = np.arange(0, problem.seq_len, config.BT)
    return int(np.sum(np.minimum(starts, reach(problem))))


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    """k and v of the halo are extra reads, mostly from L2: the preceding tile has just read them."""
    reread_tokens = halo_tokens(problem, config)
    share = reread_tokens / problem.seq_len
    launch = tiled(
        problem,
        config,
        ctas=blocks(problem, config),
        tensors_read=3,
        exchanged=2 * reread_tokens * problem.batch * problem.channels * problem.dtype.itemsize
        + tile_beta_bytes(problem, config)
        + state_bytes(problem, 0),
        dram_bytes=cost(problem).bytes,
        weight_sweeps=(1 if config.keep_weights else 2) + share,
        state_sweeps=2 + share,
        folds=2,
        chain=2 + math.ceil(reach(problem) / config.BT),
        in_shared=False,
    )
    return (launch,)


IMPLEMENTATION = Implementation(
    name="halo",
    summary="β bounded below 1: a tile rereads the preceding tokens that matter, and no block waits for another",
    config=Config,
    refusal=refusal,
    space=space,
    plan=plan,
    default=default,
    blocks=lambda problem: (_block(problem),),
    work=work,
    example=Problem(beta_bound=0.9, key_floor=10),
)
