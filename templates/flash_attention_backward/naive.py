"""flash_attention_backward with one thread for a few elements of a row, in fp32: the oracle of the other."""

from dataclasses import replace
from typing import Any

import numpy as np

from tuner.arch import GPU
from tuner.operator import Implementation, Launch, Plan, Work

from ..flash_attention.naive import WARP, Config, default, space
from ..flash_attention.problem import unpacked, visible_keys
from .operator import ARGUMENTS, OPTIONAL, cost
from .optional import pointer, spelled, taken
from .problem import Problem

_ENTRY = "flash_attention_backward_naive"


def plan(problem: Problem, config: Config) -> Plan:
    found = plan_of(_ENTRY, problem, config, taken(problem, *(each.name for each in (*ARGUMENTS, *OPTIONAL))))
    return replace(found, constants={**found.constants, **spelled(problem)})


def plan_of(name: str, problem: Any, config: Config, takes: tuple[str, ...]) -> Plan:
    """Two launches, `name`_dq and `name`_dkv, of a problem with the sizes of this one."""

    def launch(entry: str, rows: int) -> Launch:
        return Launch(f"{name}_{entry}", (_blocks(rows, problem, config), 1, 1), config.threads, 0, takes)

    return Plan((launch("dq", query_rows(problem)), launch("dkv", key_rows(problem))), pointer(problem))


def query_rows(problem: Any) -> int:
    return problem.batch * problem.heads * problem.seq_q


def key_rows(problem: Any) -> int:
    return problem.batch * problem.kv_heads * problem.seq_k


def _blocks(rows: int, problem: Any, config: Config) -> int:
    return -(-rows * (problem.head_dim // config.columns) // config.threads)


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    """Of packed sequences as if their lengths were equal."""
    equal = unpacked(problem)
    found = work_of_pairs(equal, config, int(np.sum(visible_keys(equal))), equal.seq_k, equal.seq_q)
    rows = (query_rows(problem), key_rows(problem))
    least = cost(problem).bytes / 2
    return tuple(
        replace(each, ctas=_blocks(count, problem, config), dram_bytes=max(each.dram_bytes, least))
        for each, count in zip(found, rows, strict=True)
    )


def work_of_pairs(problem: Any, config: Config, attended: int, most_keys: int, most_queries: int) -> tuple[Work, ...]:
    """Work where the queries of a head attend `attended` keys in all, and one of them most_keys at most.

    Every thread computes the scores of its row anew, and reads q, k, v and dout through L1 for itself.
    """
    D, columns, element = problem.head_dim, config.columns, problem.dtype.itemsize
    pairs = problem.batch * problem.heads * attended * (D // columns) / WARP

    def tensors(of_queries: int, of_keys: int) -> float:
        rows = of_queries * query_rows(problem) + of_keys * key_rows(problem)
        return float(element * D * rows + problem.lse_bytes * query_rows(problem))

    def launch(rows: int, products: int, recomputed: int, chain: float, dram_bytes: float) -> Work:
        return Work(
            ctas=_blocks(rows, problem, config),
            warps=config.threads // WARP,
            mma=0,
            fma=pairs * ((2 + recomputed) * D + products * columns + 4),
            mufu=pairs,
            alu=pairs * (4 * D + columns),
            smem_wavefronts=0,
            l2_bytes=pairs * element * ((4 + recomputed) * D + products * columns),
            dram_bytes=dram_bytes,
            barriers=0,
            longest_cta=1,
            chain=chain,
        )

    group = problem.heads // problem.kv_heads
    return (
        launch(query_rows(problem), 1, 0, most_keys, tensors(4, 2)),
        launch(key_rows(problem), 2, 1, most_queries * group, tensors(3, 4)),
    )


IMPLEMENTATION = Implementation(
    name="naive",
    summary="one thread for a few elements of a row, fp32 arithmetic; the oracle of the other",
    config=Config,
    refusal=lambda _problem, _arch: None,
    space=space,
    plan=plan,
    default=default,
    work=work,
)
