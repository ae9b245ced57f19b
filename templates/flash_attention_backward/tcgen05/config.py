"""The search space of tcgen05, and the sizes derived from it; every function accepts a config or columns of many
configs."""

from dataclasses import dataclass
from typing import Any

from ...flash_attention.tcgen05.config import ROWS
from ...flash_attention.wgmma.config import round_up, tile_bytes
from ..wgmma.config import VALUES_BYTES, row_bytes

WARPGROUPS = 2  # consumer warpgroups
WIDEST = 64  # columns of a tile per thread

_BARRIER, _ADDRESS = 8, 8  # bytes of an mbarrier, and of the address of tensor memory with its padding


@dataclass(frozen=True, slots=True)
class Config:
    BM_kv: int  # queries per tile that streams through a block of keys
    kv_row_tiles: int  # tiles of 128 keys; two warpgroups share one, or have one each
    kv_stages: int  # slots for tiles of Q, and the same number for dO
    kv_polynomial: int  # one pair in this many exponentials is computed on the FMA pipe; 0: none
    BN_q: int  # keys per tile that streams through a block of queries
    q_row_tiles: int  # tiles of 128 queries
    q_stages: int  # slots for tiles of K, and the same number for V
    q_polynomial: int
    columns: int  # columns of a panel: narrow panels waste no columns, wide ones need fewer boxes


def kv_columns(D: int, DV: int, c: Any) -> Any:
    """Columns of tensor memory: dK and dV, S and dP, P and dS in 16 bits."""
    return c.kv_row_tiles * (round_up(D, 16) + round_up(DV, 16) + 3 * c.BM_kv)


def q_columns(D: int, c: Any) -> Any:
    """Columns of tensor memory: dQ, S and dP, and dS in 16 bits."""
    return c.q_row_tiles * (round_up(D, 16) + 2 * c.BN_q + c.BN_q // 2)


def kv_smem_bytes(D: int, DV: int, c: Any, *, packed: bool = False) -> Any:
    """Shared memory of a block of keys: K, V, the rings of Q, dO and their values, barriers."""
    return _smem_bytes(row_bytes(D, DV, c), c.kv_row_tiles, c.BM_kv, c.kv_stages, VALUES_BYTES) + _BARRIER * packed


def q_smem_bytes(D: int, DV: int, c: Any, *, packed: bool = False) -> Any:
    """Shared memory of a block of queries: Q, dO, the rings of K and V, barriers."""
    return _smem_bytes(row_bytes(D, DV, c), c.q_row_tiles, c.BN_q, c.q_stages, 0) + _BARRIER * packed


def _smem_bytes(rows: tuple[Any, Any], row_tiles: Any, tile: Any, stages: Any, values: int) -> Any:
    owned_bytes = sum(tile_bytes(row, ROWS) for row in rows)
    streamed_bytes = sum(tile_bytes(row, tile) for row in rows)
    barriers = _BARRIER * (row_tiles + 4 * stages + 8 * row_tiles)
    return row_tiles * owned_bytes + stages * (streamed_bytes + values * tile) + barriers + _ADDRESS
