"""The search space of wgmma, and the sizes derived from it; every function accepts a config or columns of many
configs."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...flash_attention.wgmma.config import ELEMENT, WIDTHS, round_up, tile_bytes

ROWS = 64  # rows per warpgroup
VALUES_BYTES = 8  # shift and delta of a query

_BARRIER = 8  # bytes of an mbarrier
# registers of a consumer thread, by number of warpgroups: wgmma/kernel.cu.jinja
_REGISTERS = np.array([0, 216, 240, 160])
_OTHER_REGISTERS = 28  # registers besides sums, scores and products
_OF_CAPS = np.array([0, 26, 8, 12])  # additional registers, by warpgroups, if capped scores produce both P and dS


@dataclass(frozen=True, slots=True)
class Config:
    BM_kv: int  # queries per tile that streams through a block of keys
    kv_warpgroups: int  # consumer warpgroups, with 64 keys each; one more loads
    kv_stages: int  # slots for tiles of Q, and the same number for dO
    kv_split: bool  # two warpgroups share the same 64 keys: one sums dK, the other dV
    kv_chained: bool  # products of a tile are issued while the dK product of the previous tile is in flight
    BN_q: int  # keys per tile that streams through a block of queries
    q_warpgroups: int  # consumer warpgroups, with 64 queries each
    q_stages: int  # slots for tiles of K, and the same number for V
    columns: int  # columns of a panel: narrow panels waste no columns, wide ones need fewer boxes


def ctas(warpgroups: Any) -> Any:
    """Blocks per SM: a single consumer warpgroup leaves half of the registers free."""
    return np.where(warpgroups == 1, 2, 1)


def registers(warpgroups: Any, *, packed: bool) -> Any:
    """Registers of a consumer thread; the producer, which needs more for packed sequences, gets the rest of the
    block's."""
    return _REGISTERS[warpgroups] - np.where(warpgroups == 2, 8 * packed, 0)


def kv_register_estimate(D: int, DV: int, c: Any, *, capped: bool = False) -> Any:
    """Registers of a thread that sums dK and dV: the sums, scores, products, P and dS in 16 bits, and the rest. If
    split, a thread that sums dV has no products and no dS."""
    unsplit = (D + DV) / 2 + np.where(c.kv_chained, 1.5, 1.25) * c.BM_kv + _OF_CAPS[c.kv_warpgroups] * capped
    split = np.maximum(D / 2 + 1.25 * c.BM_kv, DV / 2 + 0.75 * c.BM_kv)
    return np.where(c.kv_split, split, unsplit) + _OTHER_REGISTERS


def q_register_estimate(D: int, c: Any) -> Any:
    """Registers of a thread that sums dQ, whose caps need no more registers."""
    return D / 2 + 1.25 * c.BN_q + _OTHER_REGISTERS


def kv_owners(c: Any) -> Any:
    """Sets of 64 keys per block."""
    return np.where(c.kv_split, c.kv_warpgroups // 2, c.kv_warpgroups)


def kv_smem_bytes(D: int, DV: int, c: Any, *, packed: bool = False) -> Any:
    """Shared memory of a block of keys: K, V, the rings of Q, dO and their values, barriers."""
    return _smem_bytes(row_bytes(D, DV, c), kv_owners(c), c.BM_kv, c.kv_stages, VALUES_BYTES) + _BARRIER * packed


def q_smem_bytes(D: int, DV: int, c: Any, *, packed: bool = False) -> Any:
    """Shared memory of a block of queries: Q, dO, the rings of K and V, barriers."""
    return _smem_bytes(row_bytes(D, DV, c), c.q_warpgroups, c.BN_q, c.q_stages, 0) + _BARRIER * packed


def panel(D: int, columns: Any) -> Any:
    """Columns of a panel of a tensor with D columns: fewer than `columns` if one narrower panel suffices."""
    return np.minimum(columns, min((width for width in WIDTHS if width >= D), default=WIDTHS[0]))


def padded(D: int, columns: Any) -> Any:
    """Columns of complete panels."""
    return round_up(D, panel(D, columns))


def row_bytes(D: int, DV: int, c: Any) -> tuple[Any, Any]:
    """Bytes of a row of Q or K, and of dO or V."""
    return ELEMENT * padded(D, c.columns), ELEMENT * padded(DV, c.columns)


def _smem_bytes(rows: tuple[Any, Any], owners: Any, tile: Any, stages: Any, values: int) -> Any:
    owned_bytes = sum(tile_bytes(row, ROWS) for row in rows)
    streamed_bytes = sum(tile_bytes(row, tile) for row in rows)
    return owners * owned_bytes + stages * (streamed_bytes + values * tile) + _BARRIER * (owners + 4 * stages)
