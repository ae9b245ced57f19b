"""kda in one launch on mma.sync (sm_80 and up): some warps prepare chunks, others carry the state through them."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from tuner.arch import GPU, Arch
from tuner.errors import TemplateError
from tuner.operator import Implementation, Launch, Plan, Work
from tuner.space import Constraint, Space

from .operands import BF16 as BF16_OPERANDS
from .operands import Operands, operands_of
from .operator import cost
from .optional import TENSORS, pointers, state_bytes, taken
from .prep_scan import refusal as refused_by_chunks
from .prep_scan_config import (
    BF16,
    WARP,
    prep_smem_bytes,
    prep_threads,
    stage_bytes,
    thread_registers,
    token_registers,
    tokens_fit,
)
from .prep_scan_work import instructions, prep_mma, prepared_row_bytes, scan_mma, step_mma, step_other
from .problem import Problem

ENTRY = "kda_fused"


@dataclass(frozen=True, slots=True)
class Config:
    C: int  # tokens a chunk
    BV: int  # columns of the state a block; every block of a head prepares its chunks anew
    rows: int  # of them, a warp: rows of the transposed state
    stages: int  # slots for chunks
    partials: int  # sums that the state's product with k is split into: shorter chains of mma
    prep_groups: int  # threads that share four channels of a chunk, each C / prep_groups tokens
    producers: int  # groups of threads that prepare chunks in turn


def threads(K: int, c: Any) -> Any:
    return c.BV // c.rows * WARP + c.producers * prep_threads(K, c)


def smem_bytes(problem: Problem, c: Any) -> Any:
    """A ring of images with their values, and what each group of producers works in."""
    K, operands = problem.key_dim, operands_of(problem)
    producer = -(-prep_smem_bytes(K, c, operands, problem.use_qk_l2norm_in_kernel) // 128) * 128
    return c.stages * stage_bytes(K, c, operands, problem.dtype.itemsize) + c.producers * producer


def register_estimate(K: int, c: Any, operands: Operands = BF16_OPERANDS, a_token: int = 3) -> Any:
    """Registers a thread: the larger of what carries the state and what prepares chunks, `a_token` of which hold q, k
    and g of each token."""
    tokens = c.rows * c.C / 32
    packed = operands.registers / (operands.step / 2)  # of an operand, to those of its accumulators
    other = 40 + 6 * (operands.nbytes - BF16) + 8 * (operands.registers - 4)
    carries = c.rows * K / 32 + tokens * (1 + packed + c.partials) + other
    return np.maximum(carries, np.maximum(100 + a_token * c.C // c.prep_groups, c.C + 60))


def refusal(problem: Problem, arch: Arch) -> str | None:
    if reason := refused_by_chunks(problem, arch):
        return reason
    if _fitting(problem, arch) is None:
        return (
            f"no block on {arch.name} has shared memory and registers for chunks of key_dim {problem.key_dim} in "
            f"{problem.operands} and for what prepares them: use prep_scan"
        )
    return None


def space(problem: Problem, arch: Arch) -> Space[Config]:
    K, V, operands = problem.key_dim, problem.value_dim, operands_of(problem)
    return Space(
        Config,
        choices={
            "C": (16, 32),
            "BV": (16, 32, 48, 64, 96, 128, 256),
            "rows": (16, 32),
            "stages": (2, 3, 4),
            "partials": (1, 2),
            "prep_groups": (1, 2, 4, 8, 16),
            "producers": (1, 2, 3, 4),
        },
        constraints=(
            Constraint("blocks share the columns of the state evenly", lambda c: V % c.BV == 0),
            Constraint("warps share the columns of a block evenly", lambda c: c.BV % c.rows == 0),
            Constraint("a producer has 1 to 16 tokens", tokens_fit),
            Constraint(
                "a stage is always filled by the same producers, so that its barriers keep their order",
                lambda c: c.stages % c.producers == 0,
            ),
            Constraint("a group of producers is whole warps", lambda c: prep_threads(K, c) % WARP == 0),
            Constraint("a block has at most 1024 threads", lambda c: threads(K, c) <= arch.threads_per_block),
            Constraint(
                "the stages and the producers fit the shared memory",
                lambda c: smem_bytes(problem, c) <= arch.smem_per_block,
            ),
            Constraint(
                "the state fits the registers",
                lambda c: (
                    register_estimate(K, c, operands, token_registers(problem)) <= thread_registers(threads(K, c), arch)
                ),
            ),
        ),
    )


def plan(problem: Problem, config: Config) -> Plan:
    K = problem.key_dim
    names = (*TENSORS, "scale", "lower_bound", "seq_len", "heads", "value_heads")
    operands = operands_of(problem)
    smem = int(smem_bytes(problem, config))
    grid = (problem.value_dim // config.BV, problem.value_heads, problem.sequences)
    launch = Launch(ENTRY, grid, int(threads(K, config)), smem, taken(problem, *names))
    return Plan((launch,), {"operands": operands.cuda, "smem_bytes": smem, **pointers(problem)})


# Threads that leave each 168 registers, or 255, where no arch spills.
_THREADS = {"bf16": 384, "tf32": 384, "fp32": 256}
BLOCKS = 128  # as many as a large device has SMs
LONG = 256  # tokens: shorter chains do not pay for chunks that more blocks prepare


def default(problem: Problem, arch: Arch) -> Config:
    """Half of a wide state a block, or less where a large device has an SM for each. Four groups of producers where
    registers and shared memory hold them."""
    found = _fitting(problem, arch)
    if found is None:
        raise TemplateError(f"{arch.name} has no room for the smallest chunk of key_dim {problem.key_dim}")
    return found


def _fitting(problem: Problem, arch: Arch) -> Config | None:
    found = space(problem, arch)
    for BV, (groups, stages, producers) in product(_widths(problem), _turns(problem)):
        config = Config(16, BV, 16, stages, 1, groups, producers)
        if threads(problem.key_dim, config) <= _THREADS[problem.operands] and found.refusal(config) is None:
            return config
    return None


def _widths(problem: Problem) -> Iterator[int]:
    heads = problem.sequences * problem.value_heads
    if problem.mean_len >= LONG:
        yield from (BV for BV in (16, 32, 48) if heads * (problem.value_dim // BV) <= BLOCKS)
    yield from (64, 48, 32, 16)


def _turns(problem: Problem) -> Iterator[tuple[int, int, int]]:
    """prep_groups, stages and producers. Eight tokens a thread take the fewest instructions; beside a gate of the
    kernel's own they spill."""
    if problem.operands == "bf16" and not problem.use_gate_in_kernel:
        yield 2, 4, 4
    yield from ((groups, *turns) for groups in (4, 8, 2, 16) for turns in ((4, 2), (2, 2), (2, 1)))


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    """mma, bytes and barriers are exact unless sequences are packed; other instructions are those that the mathematics
    needs."""
    K, V, C, operands = problem.key_dim, problem.value_dim, config.C, operands_of(problem)
    NT, heads = -(-problem.mean_len // C), problem.sequences * problem.value_heads
    blocks, chunks = V // config.BV, heads * NT
    mma = chunks * (blocks * prep_mma(K, C, operands) + V // 16 * scan_mma(K, C, operands))
    prep, scan = instructions(problem, config)
    element = problem.dtype.itemsize
    row = blocks * prepared_row_bytes(problem) + 2 * element * V
    launch = Work(
        ctas=blocks * heads,
        warps=int(threads(K, config)) // WARP,
        mma=mma,
        fma=chunks * (blocks * prep.fma + scan.fma),
        mufu=chunks * blocks * 2 * C * K / WARP,
        alu=chunks * (blocks * prep.alu + scan.alu),
        smem_wavefronts=chunks * (blocks * prep.wavefronts + scan.wavefronts),
        l2_bytes=float(problem.batch * problem.seq_len * problem.value_heads * row + state_bytes(problem)),
        dram_bytes=float(cost(problem).bytes),
        barriers=heads * blocks * (5 * NT + max(0, NT - config.stages)),
        longest_cta=1,
        chain=1 + NT,  # the first chunk is prepared before the state can move
        stages=config.stages,
        tf32=operands.tf32(mma),
        step_mma=step_mma(K, config, operands),
        step_other=step_other(config),
    )
    return (launch,)


IMPLEMENTATION = Implementation(
    name="fused",
    summary="one launch without a workspace: warps that prepare chunks beside warps that carry the state",
    config=Config,
    refusal=refusal,
    space=space,
    plan=plan,
    default=default,
    work=work,
)
