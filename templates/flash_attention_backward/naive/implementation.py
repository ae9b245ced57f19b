"""flash_attention_backward in fp32 with one thread per few elements of a row: the oracle of the others."""

from dataclasses import replace
from math import gcd
from typing import Any

import numpy as np

from tuner.arch import GPU, Arch
from tuner.spec import Constraint, Implementation, Launch, Plan, Space, Work

from ...flash_attention.naive import implementation as forward
from ...flash_attention.naive.implementation import WARP, Config
from ...flash_attention.problem import attended_keys, unpacked
from ..operator import ARGUMENTS, DS_AUX, OPTIONAL, cost
from ..problem import Problem, key_rows, lse_gradient_row, query_rows

_ENTRY = "flash_attention_backward_naive"


def space(problem: Problem, arch: Arch) -> Space[Config]:
    """The space of the forward pass, whose threads share rows of DV elements; here they share rows of D as well."""
    D, rows_of_o = problem.head_dim, forward.space(problem, arch)
    divides_d = Constraint("threads share a row of D evenly", lambda c: D % c.columns == 0)
    return Space(Config, rows_of_o.choices, (*rows_of_o.constraints, divides_d))


def default(problem: Problem, _arch: Arch) -> Config:
    """The widest part of both rows that still fits the registers."""
    shared = gcd(problem.head_dim, problem.head_dim_v)
    crowded = problem.causal and problem.use_cu_seqlens and problem.use_softcap  # 64 columns spill from sm_100a on
    return Config(128, max(n for n in (8, 16, 24, 32, 40, 64)[: -1 if crowded else None] if shared % n == 0))


def plan(problem: Problem, config: Config) -> Plan:
    base = plan_of(_ENTRY, problem, config, tuple(argument.name for argument in (*ARGUMENTS, *OPTIONAL, DS_AUX)))
    argument_names, threads = base.launches[0].arguments, config.threads
    logit_launches = (Launch(f"{_ENTRY}_ds_aux", (-(-problem.heads // threads), 1, 1), threads, 0, argument_names),)
    launches = base.launches + logit_launches * problem.use_s_aux
    return replace(base, launches=launches, constants={**base.constants})


def plan_of(name: str, problem: Any, config: Config, arguments: tuple[str, ...]) -> Plan:
    """Two launches, `name`_dq and `name`_dkv, of a problem with the sizes of this one."""

    def launch(entry: str, blocks: int) -> Launch:
        return Launch(f"{name}_{entry}", (blocks, 1, 1), config.threads, 0, arguments)

    query_blocks, key_blocks = _blocks(problem, config)
    return Plan((launch("dq", query_blocks), launch("dkv", key_blocks)), lse_gradient_row(problem))


def _blocks(problem: Any, config: Config) -> tuple[int, int]:
    """Blocks of dQ, and of dK and dV, with one thread for each part of the wider of the two."""
    widest = max(problem.head_dim, problem.head_dim_v)
    items = (query_rows(problem) * problem.head_dim, key_rows(problem) * widest)
    query_blocks, key_blocks = (-(-work_item // config.columns // config.threads) for work_item in items)
    return query_blocks, key_blocks


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    """The work of packed sequences is counted as if their lengths were equal."""
    equal = unpacked(problem)
    launch_works = work_of_pairs(equal, config, int(np.sum(attended_keys(equal))), equal.seq_k, equal.seq_q)
    min_bytes = cost(problem).bytes / 2
    pass_works = tuple(
        replace(value, ctas=blocks, dram_bytes=max(value.dram_bytes, min_bytes))
        for value, blocks in zip(launch_works, _blocks(problem, config), strict=True)
    )
    return pass_works + (_work_of_logits(problem, config),) * problem.use_s_aux


def _work_of_logits(problem: Problem, config: Config) -> Work:
    """One thread per head reads all its rows of dO and O, one after another."""
    rows, DV = query_rows(problem), problem.head_dim_v
    moved = float(rows * (2 * DV * problem.dtype.itemsize + problem.lse_bytes))
    return Work(
        ctas=-(-problem.heads // config.threads),
        warps=config.threads // WARP,
        fma=rows * (DV + 2) / WARP,
        mufu=rows / WARP,
        alu=rows * (2 * DV + 8) / WARP,
        l2_bytes=moved,
        dram_bytes=moved,
        chain=problem.batch * problem.seq_q,
    )


def work_of_pairs(problem: Any, config: Config, attended: int, most_keys: int, most_queries: int) -> tuple[Work, ...]:
    """Work if the queries of a head attend `attended` keys in total, each at most `most_keys`.

    Every thread recomputes the scores of its row, and reads q, k, v and dout through L1 by itself.
    """
    D, DV, columns, element = problem.head_dim, problem.head_dim_v, config.columns, problem.dtype.itemsize
    pairs = problem.batch * problem.heads * attended / WARP
    query_blocks, key_blocks = _blocks(problem, config)

    def launch(ctas: int, shares: int, products: int, recomputed: int, chain: float, elements: int) -> Work:
        visits = pairs * shares
        return Work(
            ctas=ctas,
            warps=config.threads // WARP,
            fma=visits * (D + (1 + recomputed) * DV + products * columns + 4),
            mufu=visits,
            alu=visits * (2 * (D + DV) + columns),
            l2_bytes=visits * element * (2 * D + (2 + recomputed) * DV + products * columns),
            dram_bytes=float(element * elements + problem.lse_bytes * query_rows(problem)),
            chain=chain,
        )

    group, queries, keys = problem.heads // problem.kv_heads, query_rows(problem), key_rows(problem)
    for_dq = queries * 2 * (D + DV) + keys * (D + DV)
    for_dkv = queries * (D + 2 * DV) + keys * 2 * (D + DV)
    return (
        launch(query_blocks, D // columns, 1, 0, most_keys, for_dq),
        launch(key_blocks, max(D, DV) // columns, 2, 1, most_queries * group, for_dkv),
    )


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
