"""kda in one launch on mma.sync (sm_80 and up): producer warps prepare chunks, consumer warps carry the state."""

from collections.abc import Iterator
from typing import Any

from tuner.arch import Arch
from tuner.spec import Block, Constraint, DType, Fields, Implementation, Launch, Plan, Space, first_fit, limits

from ..launches import SCALARS, TENSORS, pool_strides
from ..operands import operands_of
from ..prep_scan.config import by_registers
from ..prep_scan.implementation import refusal as refused_by_chunks
from ..problem import Problem
from .config import CHOICES, Config, block_bytes, block_threads, chunk_block, turns
from .work import work

ENTRY = "kda_fused"


def threads(K: int, c: Any) -> Any:
    return block_threads(K, c, c.BV, c.rows)


def refusal(problem: Problem, arch: Arch) -> str | None:
    if reason := refused_by_chunks(problem, arch):
        return reason
    if next(_fitting(problem, arch), None) is None:
        return (
            f"no block on {arch.name} has shared memory and registers for chunks of key_dim {problem.key_dim} in "
            f"{problem.operands} and for the warps that prepare them: use prep_scan"
        )
    return None


def space(problem: Problem, arch: Arch) -> Space[Config]:
    K, V = problem.key_dim, problem.value_dim
    return Space(
        Config,
        choices={
            "C": (16, 32),
            "BV": (16, 32, 48, 64, 96, 128, 256),
            **CHOICES,
        },
        constraints=(
            Constraint("blocks share the columns of the state evenly", lambda c: V % c.BV == 0),
            Constraint("warps share the columns of a block evenly", lambda c: c.BV % c.rows == 0),
            *turns(K),
            *limits(arch, block(ENTRY, problem)),
        ),
    )


def block(entry: str, problem: Problem) -> Block:
    K = problem.key_dim
    return chunk_block(entry, problem, lambda c: threads(K, c), lambda c: block_bytes(problem, c, c.BV))


def plan(problem: Problem, config: Config) -> Plan:
    K = problem.key_dim
    operands = operands_of(problem)
    smem = int(block_bytes(problem, config, config.BV))
    grid = (problem.value_dim // config.BV, problem.value_heads, problem.sequences)
    launch = Launch(ENTRY, grid, int(threads(K, config)), smem, (*TENSORS, *SCALARS))
    registers = by_registers(problem, config)
    constants: Fields = {"operands": operands.cuda, "smem_bytes": smem, "by_registers": registers}
    return Plan((launch,), {**constants, **pool_strides(problem)})


# Block sizes at which a thread has 168 registers, or 255, and no arch spills.
_THREADS = {"bf16": 384, "tf32": 384, "fp32": 256}
_WIDEST_FP32 = 160  # channels: with fp32 operands, a warp's state of 192 channels spills in each config
_THREADS_OF_CHUNKS = 256  # if a thread has the 16 tokens of a chunk: 255 registers
SHORT = (16, 32, 64)  # key_dim for which one warp prepares a chunk with at most eight tokens per thread
LONG = 256  # tokens: for shorter sequences, preparing chunks in more blocks is not profitable


def default(problem: Problem, arch: Arch) -> Config:
    """Columns per block according to the SMs of a large device, and as many groups of producers as registers and shared
    memory allow, of one warp each if they have enough registers."""
    return first_fit(_fitting(problem, arch), arch, f"the smallest chunk of key_dim {problem.key_dim}")


def _fitting(problem: Problem, arch: Arch) -> Iterator[Config]:
    if problem.operands == "fp32" and problem.key_dim > _WIDEST_FP32:
        return
    allowed = space(problem, arch)
    for config in _candidates(problem, arch):
        max_threads = _THREADS_OF_CHUNKS if config.prep_groups == 1 else threads_with_registers(problem)
        if threads(problem.key_dim, config) <= max_threads and allowed.refusal(config) is None:
            yield config


def threads_with_registers(problem: Problem) -> int:
    """Threads of a block at which each has enough registers. With in-kernel normalization and gates of any size, 168
    registers spill 8 to 16 bytes."""
    gated = problem.use_gate_in_kernel and problem.use_qk_l2norm_in_kernel and not problem.safe_gate
    return 256 if gated else _THREADS[problem.operands]


def _candidates(problem: Problem, arch: Arch) -> Iterator[Config]:
    for BV in widths(problem, arch):
        if warps_prepare_chunks(problem):
            small_groups = (4,) if BV > 16 else ()
            yield from (Config(16, BV, rows_of(BV), groups, 1, 1, groups) for groups in (7, 6, *small_groups))
        # four groups, at 168 registers, spill up to 16 bytes
        if _normalization_spills(problem) and arch.compute_capability >= 100:
            yield Config(16, BV, rows_of(BV), 3, 1, 2, 3)
        for groups, stages, producers in producing(problem):
            yield Config(16, BV, 32 if BV == 128 else 16, stages, 1, groups, producers)


def warps_prepare_chunks(problem: Problem) -> bool:
    """Whether one warp prepares a chunk of long keys, 16 tokens per thread: it issues three quarters of the
    instructions of two warps, and takes 1.5 times as long. In-kernel normalization with fp32 gates spills."""
    return _long_keys(problem) and problem.mean_len >= LONG and not _normalization_spills(problem)


def _long_keys(problem: Problem) -> bool:
    return problem.operands == "bf16" and problem.key_dim == 128


def _normalization_spills(problem: Problem) -> bool:
    return _long_keys(problem) and problem.use_qk_l2norm_in_kernel and problem.gate_dtype is DType.FP32


def rows_of(BV: int) -> int:
    """Columns per warp next to such producers: few warps have many registers, and wide ones read images half as
    often."""
    return 32 if BV % 32 == 0 else 16


def widths(problem: Problem, arch: Arch) -> Iterator[int]:
    """Columns per block, the best first: 64, or fewer if a large device has an SM for each block. If it has too few
    even for blocks of 64, blocks are as wide as registers allow, so that fewer blocks prepare each chunk."""
    heads, sms = problem.sequences * problem.value_heads, arch.sm_count
    if problem.mean_len >= LONG:
        yield from (BV for BV in (16, 32, 48) if heads * (problem.value_dim // BV) <= sms)
    if heads * problem.value_dim > 64 * sms and _warps_carry_128(problem, arch):
        yield 128
    yield from (64, 48, 32, 16)


def _warps_carry_128(problem: Problem, arch: Arch) -> bool:
    """Whether the registers suffice: producers of one warp leave enough. Long keys spill 8 bytes on sm_100a with
    in-kernel normalization and a bounded gate with dt_bias."""
    if problem.key_dim in SHORT:
        return problem.operands == "bf16"
    full = problem.use_qk_l2norm_in_kernel and problem.use_lower_bound and problem.use_dt_bias
    return warps_prepare_chunks(problem) and not (full and arch.has_tcgen05)


def producing(problem: Problem) -> Iterator[tuple[int, int, int]]:
    """prep_groups, stages and producers. Groups of one warp need two barriers each instead of three, so that there may
    be more. Eight tokens per thread need fewer instructions than four."""
    if problem.operands == "bf16":
        if problem.key_dim in SHORT:
            yield from ((128 // problem.key_dim, turns, turns) for turns in (7, 6, 5))
        yield 2, 4, 4
    yield from ((groups, *turns) for groups in (4, 8, 2, 16) for turns in ((4, 2), (2, 2), (2, 1)))


IMPLEMENTATION = Implementation(
    name="fused",
    summary="one launch without a workspace: producer warps prepare chunks, consumer warps carry the state",
    config=Config,
    refusal=refusal,
    space=space,
    plan=plan,
    default=default,
    blocks=lambda problem: (block(ENTRY, problem),),
    work=work,
)
