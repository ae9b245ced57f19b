"""flash_attention in fp32 with one thread per few elements of a row: the baseline."""

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
    threads: int  # threads per block
    columns: int  # elements of a row of O per thread, which recomputes the scores of the row for them


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
    """The widest part of a row that still fits the registers."""
    return Config(128, max(n for n in (8, 16, 24, 32, 40, 64) if problem.head_dim_v % n == 0))


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    """The work of packed sequences is counted as if their lengths were equal."""
    equal = unpacked(problem)
    launch_work = work_of_pairs(equal, config, int(np.sum(attended_keys(equal))))
    return (
        replace(
            launch_work, ctas=_blocks(problem, config), dram_bytes=max(launch_work.dram_bytes, cost(problem).bytes)
        ),
    )


def work_of_pairs(problem: Any, config: Config, attended: int) -> Work:
    """Work if the queries of a head attend `attended` keys in total.

    Every thread reads q, k and v through L1 by itself; shared memory is not used.
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
        l2_bytes=pairs * element * (2 * D + columns),  # most lanes of a warp read the same key
        dram_bytes=tensors * element + 4 * rows,
        chain=problem.seq_k,
    )


def _blocks(problem: Problem, config: Config) -> int:
    items = problem.batch * problem.heads * problem.seq_q * (problem.head_dim_v // config.columns)
    return -(-items // config.threads)


IMPLEMENTATION = Implementation(
    name="naive",
    summary="one thread per few elements of a row, fp32 arithmetic; the oracle of the others",
    config=Config,
    space=space,
    plan=plan,
    default=default,
    work=work,
    oracle=True,
)
