"""The search space of wgmma_once, and the sizes derived from it; every function accepts a config or columns of many
configs."""

from dataclasses import dataclass
from typing import Any

from ...flash_attention.wgmma.config import ELEMENT
from ..wgmma.config import ROWS, VALUES_BYTES, padded

WARPGROUPS = 2  # consumer warpgroups
TILE_ROWS = 64  # queries per tile: the rows of dQ that one wgmma computes
BLOCK_KEYS = ROWS * WARPGROUPS
_LAUNCHED = 168  # registers per thread at launch; warpgroups redistribute them

_SUM = 4  # bytes of fp32
_TILE_UNIT = 1024  # bytes of the period of the swizzle of 128-byte rows
_BARRIER = 8  # bytes of an mbarrier
_OTHER_REGISTERS = 28  # registers besides sums, scores and products
_OTHER_HELD = 2  # additional registers per held operand


@dataclass(frozen=True, slots=True)
class Config:
    stages: int  # slots for tiles of Q, and the same number for dO
    parts: int  # parts of dQ that wait in shared memory to be added in order
    held: int  # operands K and V held in registers: 1 holds K
    columns: int  # columns of a panel: narrow panels waste no columns, wide ones need fewer boxes


def registers(*, packed: bool) -> tuple[int, int]:
    """Registers of a consumer thread, and of the others: a producer of packed sequences spills with 24."""
    spare = 40 if packed else 24
    return (_LAUNCHED * (WARPGROUPS + 1) - spare) // WARPGROUPS, spare


def widest(*, packed: bool) -> int:
    """The largest head_dim whose sums leave enough registers for scores."""
    return 112 if packed else 128


def register_estimate(D: int, held: Any) -> Any:
    """Registers per thread: the sums of dK and dV, scores, products, P and dS in 16 bits, held operands, and the
    rest."""
    return D + 1.25 * TILE_ROWS + held * (4 * -(-D // 16) + _OTHER_HELD) + _OTHER_REGISTERS


def part_bytes(D: int) -> int:
    """Bytes of a tile's part of dQ."""
    return _SUM * TILE_ROWS * D


def smem_bytes(D: int, c: Any, *, packed: bool) -> Any:
    """Bytes of K, V, the rings of Q, dO and their values; dS of two tiles; parts; barriers and the index of the
    block."""
    row = ELEMENT * padded(D, c.columns)
    owned_bytes, ring = 2 * BLOCK_KEYS * row, c.stages * TILE_ROWS * (2 * row + VALUES_BYTES)
    copied = owned_bytes + ring + _BARRIER * (WARPGROUPS + 4 * c.stages + packed)
    slopes = 2 * ELEMENT * BLOCK_KEYS * TILE_ROWS
    aligned = -(-copied // _TILE_UNIT) * _TILE_UNIT
    return aligned + slopes + c.parts * part_bytes(D) + _BARRIER * (5 + 2 * c.parts)
