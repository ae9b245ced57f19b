"""flash_attention with one thread for a few elements of a row, in fp32: the first step of the ladder."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tuner.arch import GPU, Arch
from tuner.spec import Constraint, Implementation, Launch, Plan, Space, Work

from ..operator import cost
from ..problem import Problem, attended_keys, unpacked

ENTRY = "flash_attention_naive"
WARP = 32


@dataclass(frozen=True, slots=True)
class Config:
    threads: int  # a block
    columns: int  # elements of a row of O that a thread holds; it computes the row's scores for them anew


def space(problem: Problem, _arch: Arch) -> Space[Config]:
    DV = problem.head_dim_v
    return Space(
        Config,
        choices={"threads": (32, 64, 128, 256), "columns": (8, 16, 24, 32, 40, 64, 80, 96, 128)},
        constraints=(Constraint("threads share a row evenly", lambda c: DV % c.columns == 0),),
    )


def plan(problem: Problem, config: Config) -> Plan:
    return Plan((Launch(ENTRY, (_blocks(problem, config), 1, 1), config.threads, 0),), {})


def default(problem: Problem, _arch: Arch) -> Config:
    """The widest share of a row that leaves every register in place."""
    return Config(128, max(n for n in (8, 16, 24, 32, 40, 64) if problem.head_dim_v % n == 0))


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    """Of packed sequences as if their lengths were equal."""
    equal = unpacked(problem)
    launch_work = work_of_pairs(equal, config, int(np.sum(attended_keys(equal))))
    return (
        replace(
            launch_work, ctas=_blocks(problem, config), dram_bytes=max(launch_work.dram_bytes, cost(problem).bytes)
        ),
    )


def work_of_pairs(problem: Any, config: Config, attended: int) -> Work:
    """Work where the queries of a head attend `attended` keys in all.

    Every thread reads q, k and v through L1 for itself; nothing passes through shared memory.
    """
    D, DV, columns = problem.head_dim, problem.head_dim_v, config.columns
    pairs = problem.batch * problem.heads * attended * (DV // columns) / WARP
    rows = problem.batch * problem.heads * problem.seq_q
    element = problem.dtype.itemsize
    tensors = (rows + problem.batch * problem.kv_heads * problem.seq_k) * (D + DV)
    return Work(
        ctas=_blocks(problem, config),
        warps=config.threads // WARP,
        fma=pairs * (D + 2 * columns + 4),
        mufu=pairs * 2,
        alu=pairs * (2 * D + columns),
        l2_bytes=pairs * element * (2 * D + columns),  # a warp's lanes mostly read the same key
        dram_bytes=tensors * element + 4 * rows,
        chain=problem.seq_k,
    )


def _blocks(problem: Problem, config: Config) -> int:
    items = problem.batch * problem.heads * problem.seq_q * (problem.head_dim_v // config.columns)
    return -(-items // config.threads)


IMPLEMENTATION = Implementation(
    name="naive",
    summary="one thread for a few elements of a row, fp32 arithmetic; the oracle of the others",
    config=Config,
    space=space,
    plan=plan,
    default=default,
    work=work,
    oracle=True,
)
