"""fused_wgmma's choices, and the sizes that follow: warpgroups that carry a state, and warps that prepare chunks."""

from dataclasses import dataclass
from typing import Any

from tuner.spec import DType

from ..operands import BF16 as OPERANDS
from ..prep_scan.config import BF16, WARP, image_bytes, prep_smem_bytes, used_image_bytes
from ..problem import Problem

COLUMNS = 64  # of the state, a warpgroup: the rows of a wgmma
CARRIERS = 4  # warps of it, of which each has 16 of the columns
_VALUE_STAGES = 4  # chunks whose values a carrier has, or has on their way
_MBARRIERS = 16  # bytes of a stage's two
_SWIZZLED = 1024  # bytes, at a multiple of which what wgmma reads begins
FEW = 4  # producers, beside which, and one warpgroup that carries, every thread may have 255 registers
MOST = 12  # warps of a block
_LAUNCHED_REGISTERS = 168  # a thread's, of so many warps
CARRIER_REGISTERS = 152  # a thread's beside more than those few, once the carriers have given some to the producers


@dataclass(frozen=True, slots=True)
class Config:
    columns: int  # of the state, a block
    cluster: int  # blocks of a head that share the chunks that each of them prepares
    stages: int  # slots for chunks, in every block
    producers: int  # warps of a block that prepare chunks in turn


@dataclass(frozen=True, slots=True)
class Shape:
    """What a Config of fused also says, and here follows from the problem."""

    C: int  # tokens per chunk
    rows: int  # columns of the state, a warp
    partials: int  # sums that the state's product with k is split into
    prep_groups: int  # threads that share four channels of a chunk


def shape(K: int) -> Shape:
    return Shape(16, 16, 1, 4 * WARP // K)


def threads(c: Any) -> Any:
    return WARP * (carriers(c) + c.producers)


def carriers(c: Any) -> Any:
    """Warps that carry a block's columns."""
    return c.columns // COLUMNS * CARRIERS


def few(c: Any) -> Any:
    """Whether every thread may have 255 registers: then no warp gives any to another."""
    return threads(c) <= WARP * (CARRIERS + FEW)


def crowded(problem: Problem) -> bool:
    """Whether a producer finds lengths of rows of 128 channels, each of which all its threads share, or decays of any
    size: beside more warps than a few, 328 bytes of them would spill."""
    return (problem.use_qk_l2norm_in_kernel or not problem.safe_gate) and problem.key_dim == WARP * 4


def overfull(problem: Problem) -> bool:
    """Whether even 255 registers of a producer spill: 64 bytes, by ptxas 13.5."""
    raw = problem.use_gate_in_kernel and problem.gate_dtype is DType.FP32
    return crowded(problem) and problem.use_qk_l2norm_in_kernel and raw and not problem.safe_gate


def ahead(problem: Problem, c: Config) -> bool:
    """Whether producers have the registers for a chunk that is on its way."""
    lengths = problem.use_qk_l2norm_in_kernel and problem.key_dim == WARP * 4
    return bool(few(c)) and not (lengths and problem.gate_dtype is DType.FP32)


def producer_registers(c: Config) -> int:
    """A thread's, with what the carriers gave: a block has no others than those it was launched with."""
    given = (_LAUNCHED_REGISTERS - CARRIER_REGISTERS) * int(carriers(c)) // c.producers
    return _LAUNCHED_REGISTERS + given // 8 * 8


def smem_bytes(problem: Problem, c: Any) -> Any:
    """Of a block: images; what its producers work in; values of some chunks; barriers."""
    K, chunk = problem.key_dim, shape(problem.key_dim)
    stage = -(-image_bytes(K, chunk.C, OPERANDS) // _SWIZZLED) * _SWIZZLED
    producer = -(-prep_smem_bytes(K, chunk, OPERANDS, problem.use_qk_l2norm_in_kernel) // 128) * 128
    values = _VALUE_STAGES * BF16 * chunk.C * c.columns
    return c.stages * (stage + _MBARRIERS) + c.producers * producer + values


def copied_bytes(K: int) -> int:
    """Of a chunk, to each block that did not prepare it: an image."""
    return int(used_image_bytes(K, shape(K).C, OPERANDS))
