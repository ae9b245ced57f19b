"""kda one token after the other, with the state in registers: for few tokens, for fp32, and if nothing else fits."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.arch import GPU, Arch
from tuner.spec import Block, Constraint, Implementation, Launch, Plan, Space, Work, limits

from ..launches import SCALARS, TENSORS, pool_strides, state_bytes
from ..operator import cost
from ..problem import Problem

ENTRY = "kda_recurrent"
WARP = 32


@dataclass(frozen=True, slots=True)
class Config:
    BV: int  # columns of the state per block
    columns: int  # columns per thread
    splits: int  # lanes that share a column: each holds every splits-th group of 4 rows
    BT: int  # tokens staged in shared memory at once


def space(problem: Problem, arch: Arch) -> Space[Config]:
    K, V = problem.key_dim, problem.value_dim
    return Space(
        Config,
        choices={
            "BV": (8, 16, 32, 64, 128),
            "columns": (1, 2, 4),
            "splits": (1, 2, 4, 8, 16, 32),
            "BT": (2, 4, 8, 16, 32),
        },
        constraints=(
            Constraint("blocks share the columns evenly", lambda c: V % c.BV == 0),
            Constraint("threads share a block's columns evenly", lambda c: c.BV % c.columns == 0),
            Constraint("lanes share a column in complete groups of 4 rows", lambda c: K % (4 * c.splits) == 0),
            Constraint("a block consists of complete warps", lambda c: threads(c) % WARP == 0),
            Constraint("a block has 32 to 512 threads", lambda c: (threads(c) >= WARP) & (threads(c) <= 512)),
            Constraint("every warp stages at least one token", lambda c: threads(c) <= c.BT * WARP),
            Constraint("the state fits the registers", lambda c: K // c.splits * c.columns <= 128),
            Constraint("the prefetched tokens fit the registers", lambda c: staged_registers(K, c) <= 64),
            *limits(arch, *_blocks(problem)),
        ),
    )


def threads(c: Any) -> Any:
    return c.BV // c.columns * c.splits


def staged_registers(K: int, c: Any) -> Any:
    """Elements that a thread prefetches while the previous tokens are computed."""
    return 3 * -(-K // WARP) * -(-c.BT * WARP // threads(c)) + -(-c.BT * c.BV // threads(c))


def smem_bytes(K: int, c: Any) -> Any:
    """Bytes of q, k and decay; v and o; beta and q·k: of BT tokens in fp32."""
    return 4 * c.BT * (3 * K + 2 * c.BV + 2)


def _blocks(problem: Problem) -> tuple[Block, ...]:
    return (Block(ENTRY, threads, lambda c: smem_bytes(problem.key_dim, c)),)


def plan(problem: Problem, config: Config) -> Plan:
    smem = int(smem_bytes(problem.key_dim, config))
    grid = (problem.value_dim // config.BV, problem.value_heads, problem.sequences)
    launch = Launch(ENTRY, grid, int(threads(config)), smem, (*TENSORS, *SCALARS))
    return Plan((launch,), {"smem_bytes": smem, **pool_strides(problem)})


_VALUES = 64  # elements of the state per thread


def default(problem: Problem, arch: Arch) -> Config:
    """Columns that fill complete vectors and sectors of stored states, and few enough values per thread that none
    spill.

    With a pool there are few tokens, so fewer are staged: more blocks fit, and more loads of states are in flight.
    """
    allowed = space(problem, arch)
    candidates = [
        Config(BV, columns, splits, BT)
        for columns in (4, 2, 1)
        for splits in (8, 16, 4)
        for BV in (32, 16)
        for BT in ((2, 4) if problem.inplace_final_state else (4,))
        if problem.key_dim // splits * columns <= _VALUES
    ]
    return next(config for config in candidates if allowed.refusal(config) is None)


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    """Global bytes and barriers are exact unless sequences are packed; instructions are the minimum that the algorithm
    requires."""
    K, warps = problem.key_dim, int(threads(config)) // WARP
    ctas = problem.value_dim // config.BV * problem.value_heads * problem.sequences
    steps, groups = ctas * problem.mean_len, -(-problem.mean_len // config.BT)
    values = K // config.splits * config.columns  # elements of the state per thread
    shuffles = 2 * config.columns * np.log2(config.splits)
    staged = -(-K // WARP)  # elements per lane, of each of q, k and g
    norms = 15 + 15 * problem.use_qk_l2norm_in_kernel  # instructions of a warp's three sums; q·k is always summed
    element, gate = problem.dtype.itemsize, problem.gate_dtype.itemsize
    token_bytes = K * (2 * element + gate) + 2 * element * config.BV + problem.beta_dtype.itemsize
    launch = Work(
        ctas=ctas,
        warps=warps,
        fma=steps * (warps * (4 * values + shuffles + 3 * config.columns) + 6 * staged + norms),
        mufu=steps * staged,
        alu=steps * (warps * shuffles + 3 * staged + norms),
        smem_wavefronts=steps * (warps * (4 * K // config.splits // 4 + config.columns) + 3 * staged),
        l2_bytes=float(steps * token_bytes + state_bytes(problem)),
        dram_bytes=float(cost(problem).bytes),
        barriers=ctas * 2 * groups,
        chain=problem.mean_len,
        stages=1 + config.BT,  # those of the next group of tokens
        # loads; shuffles; fma, at an eighth of the latency of either
        step_other=2 + np.log2(config.splits) + K / config.splits / 8,
    )
    return (launch,)


IMPLEMENTATION = Implementation(
    name="recurrent",
    summary="one token after the other, the state in registers, in fp32",
    config=Config,
    space=space,
    plan=plan,
    default=default,
    blocks=_blocks,
    work=work,
)
