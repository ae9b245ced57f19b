"""fused_wgmma's choices, and the sizes that follow: a warpgroup that carries a state, and warps that prepare chunks."""

from dataclasses import dataclass
from typing import Any

from .operands import BF16 as OPERANDS
from .prep_scan_config import BF16, WARP, image_bytes, prep_smem_bytes, used_image_bytes
from .problem import Problem

COLUMNS = 64  # of the state, a block: the rows of a wgmma
CARRIERS = 4  # warps, of which each has 16 of the columns
_VALUE_STAGES = 4  # chunks whose values a carrier has, or has on their way
_MBARRIERS = 16  # bytes of a stage's two
_SWIZZLED = 1024  # bytes, at a multiple of which what wgmma reads begins
FEW = 4  # producers, beside which every thread may have 255 registers
# A thread's beside more, once the carriers have given some to the producers: of 12 warps as many as they are launched
# with, 168 each. A block has no others to give.
CARRIER_REGISTERS = 152
PRODUCER_REGISTERS = 176


@dataclass(frozen=True, slots=True)
class Config:
    cluster: int  # blocks of a head that share the chunks that each of them prepares
    stages: int  # slots for chunks, in every block
    producers: int  # warps of a block that prepare chunks in turn


@dataclass(frozen=True, slots=True)
class Shape:
    """What a Config of fused also says, and here follows from the problem."""

    C: int  # tokens a chunk
    rows: int  # columns of the state, a warp
    partials: int  # sums that the state's product with k is split into
    prep_groups: int  # threads that share four channels of a chunk


def shape(K: int) -> Shape:
    return Shape(16, 16, 1, 4 * WARP // K)


def threads(c: Any) -> Any:
    return WARP * (CARRIERS + c.producers)


def ahead(c: Config) -> bool:
    """Whether producers have the registers for a chunk that is on its way: then no warp gives any to another."""
    return c.producers <= FEW


def smem_bytes(problem: Problem, c: Any) -> Any:
    """Of a block: images; what its producers work in; values of some chunks; barriers."""
    K, chunk = problem.key_dim, shape(problem.key_dim)
    stage = -(-image_bytes(K, chunk.C, OPERANDS) // _SWIZZLED) * _SWIZZLED
    producer = -(-prep_smem_bytes(K, chunk, OPERANDS, problem.use_qk_l2norm_in_kernel) // 128) * 128
    values = _VALUE_STAGES * BF16 * chunk.C * COLUMNS
    return c.stages * (stage + _MBARRIERS) + c.producers * producer + values


def copied_bytes(K: int) -> int:
    """Of a chunk, to each block that did not prepare it: an image."""
    return int(used_image_bytes(K, shape(K).C, OPERANDS))
