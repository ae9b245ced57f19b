"""kda in fp32 with one thread per column of the state: the baseline."""

from dataclasses import dataclass
from typing import Any

from tuner.arch import GPU, Arch
from tuner.spec import Block, Constraint, Implementation, Launch, Plan, Space, Work, limits

from ..launches import SCALARS, TENSORS, pool_strides, state_bytes
from ..operator import cost
from ..problem import Problem

ENTRY = "kda_naive"
WARP = 32


@dataclass(frozen=True, slots=True)
class Config:
    threads: int  # threads per block, each for a column of the state


def space(problem: Problem, arch: Arch) -> Space[Config]:
    return Space(
        Config,
        choices={"threads": (32, 64, 128, 256)},
        constraints=(
            *limits(arch, _block(problem)),
            Constraint("at most one warp of a block has no columns", lambda c: c.threads < problem.value_dim + WARP),
        ),
    )


def _block(problem: Problem) -> Block:
    return Block(ENTRY, lambda c: c.threads, lambda c: _smem_bytes(problem, c.threads))


def plan(problem: Problem, config: Config) -> Plan:
    grid = (_blocks(problem, config), problem.value_heads, problem.sequences)
    smem = _smem_bytes(problem, config.threads)
    launch = Launch(ENTRY, grid, config.threads, smem, (*TENSORS, *SCALARS))
    return Plan((launch,), {"smem_bytes": smem, **pool_strides(problem)})


def default(_problem: Problem, _arch: Arch) -> Config:
    return Config(WARP)


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    """Every thread reads q, k and g through L1 by itself, and passes over its column twice per token."""
    K = problem.key_dim
    blocks = _blocks(problem, config) * problem.value_heads * problem.sequences
    warps = config.threads // WARP
    steps = blocks * warps * problem.mean_len  # tokens, summed over warps
    norms = 2 * K * problem.use_qk_l2norm_in_kernel
    element, gate = problem.dtype.itemsize, problem.gate_dtype.itemsize
    launch = Work(
        ctas=blocks,
        warps=warps,
        fma=steps * (5 * K + norms),
        mufu=steps * K,
        alu=steps * 3 * K,
        # four accesses to the column; g, k, k and q through L1, which is as fast
        smem_wavefronts=steps * (8 * K + norms),
        l2_bytes=steps * (K * (2 * element + gate) + 2 * element * WARP) + state_bytes(problem),
        dram_bytes=cost(problem).bytes,
        chain=problem.mean_len * max(1, 2 * K // WARP),  # two passes, in which 32 rows take as long as a loop step
    )
    return (launch,)


def _smem_bytes(problem: Problem, threads: Any) -> Any:
    return 4 * problem.key_dim * threads


def _blocks(problem: Problem, config: Config) -> int:
    return -(-problem.value_dim // config.threads)


IMPLEMENTATION = Implementation(
    name="naive",
    summary="one thread per column of the state, fp32 arithmetic; the oracle of the others",
    config=Config,
    space=space,
    plan=plan,
    default=default,
    blocks=lambda problem: (_block(problem),),
    work=work,
    oracle=True,
)
