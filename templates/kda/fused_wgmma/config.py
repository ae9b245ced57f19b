"""The search space of fused_wgmma, and the sizes derived from it: consumer warpgroups carry a state, and producer warps
prepare chunks."""

from dataclasses import dataclass
from typing import Any

from tuner.spec import DType

from ..operands import BF16 as OPERANDS
from ..prep_scan.config import BF16, WARP, image_bytes, prep_smem_bytes, used_image_bytes
from ..problem import Problem

COLUMNS = 64  # columns of the state per warpgroup: the rows of a wgmma
CARRIERS = 4  # warps of it, each with 16 of the columns
_VALUE_STAGES = 4  # chunks whose values a consumer holds or has in flight
_MBARRIERS = 16  # bytes of the two mbarriers of a stage
_SWIZZLED = 1024  # bytes to which operands of wgmma are aligned
FEW = 4  # producers next to which, with one consumer warpgroup, every thread may have 255 registers
MOST = 12  # warps per block
_LAUNCHED_REGISTERS = 168  # registers per thread, at launch with that many warps
CARRIER_REGISTERS = 152  # registers per thread with more producers, after consumers ceded registers


@dataclass(frozen=True, slots=True)
class Config:
    columns: int  # columns of the state per block
    cluster: int  # blocks of a head that share the chunks that each of them prepares
    stages: int  # slots for chunks, in every block
    producers: int  # warps of a block that prepare chunks in turn


@dataclass(frozen=True, slots=True)
class Shape:
    """The fields of a Config of fused that follow from the problem here."""

    C: int  # tokens per chunk
    rows: int  # columns of the state per warp
    partials: int  # accumulators that the product of the state with k is split into
    prep_groups: int  # threads that share four channels of a chunk


def shape(K: int) -> Shape:
    return Shape(16, 16, 1, 4 * WARP // K)


def threads(c: Any) -> Any:
    return WARP * (carriers(c) + c.producers)


def carriers(c: Any) -> Any:
    """Consumer warps, which carry a block's columns."""
    return c.columns // COLUMNS * CARRIERS


def few(c: Any) -> Any:
    """Whether every thread may have 255 registers, so that no warp cedes any."""
    return threads(c) <= WARP * (CARRIERS + FEW)


def crowded(problem: Problem) -> bool:
    """Whether a producer normalizes rows of 128 channels, which all its threads share, or supports decays of any size:
    with more than a few warps, 328 bytes would spill."""
    return (problem.use_qk_l2norm_in_kernel or not problem.safe_gate) and problem.key_dim == WARP * 4


def overfull(problem: Problem) -> bool:
    """Whether a producer spills even with 255 registers: 64 bytes with ptxas 13.5."""
    raw = problem.use_gate_in_kernel and problem.gate_dtype is DType.FP32
    return crowded(problem) and problem.use_qk_l2norm_in_kernel and raw and not problem.safe_gate


def ahead(problem: Problem, c: Config) -> bool:
    """Whether producers have enough registers to prefetch a chunk."""
    lengths = problem.use_qk_l2norm_in_kernel and problem.key_dim == WARP * 4
    return bool(few(c)) and not (lengths and problem.gate_dtype is DType.FP32)


def producer_registers(c: Config) -> int:
    """Registers per producer thread, including those that the consumers ceded: the block's total is fixed at launch."""
    ceded = (_LAUNCHED_REGISTERS - CARRIER_REGISTERS) * int(carriers(c)) // c.producers
    return _LAUNCHED_REGISTERS + ceded // 8 * 8


def smem_bytes(problem: Problem, c: Any) -> Any:
    """Shared memory of a block: images; scratch space of producers; values of some chunks; barriers."""
    K, chunk = problem.key_dim, shape(problem.key_dim)
    stage = -(-image_bytes(K, chunk.C, OPERANDS) // _SWIZZLED) * _SWIZZLED
    producer = -(-prep_smem_bytes(K, chunk, OPERANDS, problem.use_qk_l2norm_in_kernel) // 128) * 128
    values = _VALUE_STAGES * BF16 * chunk.C * c.columns
    return c.stages * (stage + _MBARRIERS) + c.producers * producer + values


def copied_bytes(K: int) -> int:
    """Bytes of a chunk copied to each block that did not prepare it: an image."""
    return int(used_image_bytes(K, shape(K).C, OPERANDS))
