"""The search space of wgmma, and the sizes derived from it; every function accepts a config or columns of many
configs."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.arch import Arch
from tuner.spec import Block

from ..problem import Problem

ELEMENT = 2  # bytes of fp16 and bf16
ROWS = 64  # rows of Q per warpgroup
WIDTHS = (64, 32, 16)  # columns of a panel: rows of 128, 64 and 32 bytes, with a swizzle for each

_TILE_UNIT = 1024  # bytes of the period of the swizzle of 128-byte rows
_BARRIER = 8  # bytes of an mbarrier
_POSTS, _WORK = 2, 48  # work items posted ahead, and the bytes of one
_DRAWN = 4  # bytes of the next work item of a cluster
_SCHEDULE = 36  # bytes of the schedule
_FEW_ROW_TILES = 16
_PRODUCTS = 2048  # multiply-adds per clock and SM
_EXPONENTIALS = 16  # exponentials per clock and SM
# by warpgroups: with the producer's registers, all registers of an SM
_CONSUMER_REGISTERS = np.array([0, 216, 240, 160])
_PRODUCER_REGISTERS = np.array([0, 40, 24, 32])
# Registers besides scores, P and O. Measured: with fewer left, ptxas serializes every wgmma (C7512) and spills.
_OTHER_REGISTERS = 28
_OTHER_REGISTERS_OVER_BOTH = 36  # at 28, ptxas moves the exponentials after the wait that they are meant to precede
_SOFTCAP_REGISTERS = 32  # registers without which capped scores spill


@dataclass(frozen=True, slots=True)
class Tiles:
    BN: int  # keys per tile
    warpgroups: int  # consumer warpgroups, which compute 64 rows of Q each; one more loads
    stages: int  # slots for tiles of K, and the same number for V
    overlap: int  # what the exponentials of a tile overlap: 0 nothing, 1 the product with V, 2 both products
    ping_pong: bool  # warpgroups alternate in issuing their products
    # columns of a panel of V: one wgmma spans panels of one width; 0: 64, 32 and 16, one wgmma for each
    value_columns: int
    polynomial: int  # one in this many exponentials is computed on the FMA pipe; 0: none
    lazy_rescale: bool  # O is rescaled only when a maximum grows by more than a factor of 2^8


@dataclass(frozen=True, slots=True)
class Config(Tiles):
    heavy_first: bool  # causal: row tiles with the most keys first
    # query heads of a KV head that share a tile's rows, at most the largest power of two that divides their number
    packed_heads: int
    cluster: int  # blocks that load K and V for each other by multicast; 1: each for itself
    blocks: int  # persistent blocks per device at one block per SM; 0: one block per row tile


def packed(heads: int, kv_heads: int, c: Any) -> Any:
    """Query heads that share a tile's rows: the config's number, at most the largest power of two that divides heads /
    kv_heads."""
    group = heads // kv_heads
    return np.minimum(c.packed_heads, group & -group)


def row_tiles(problem: Problem, c: Any) -> Any:
    """Row tiles of one head, or of the heads that share them; for packed sequences, of the longest."""
    queries = ROWS * c.warpgroups // packed(problem.heads, problem.kv_heads, c)
    return -(-problem.longest // queries)


def ctas(c: Any) -> Any:
    """Blocks per SM: a single consumer warpgroup leaves half of the registers free."""
    return np.where(c.warpgroups == 1, 2, 1)


def walkers(work_items: int, c: Config) -> int:
    """Blocks of a persistent grid, or clusters of them, for `work_items` items: row tiles, or groups of as many as a
    cluster has blocks. Few work items get half as many blocks, so that tests cover blocks with several.
    """
    max_blocks = work_items if work_items > _FEW_ROW_TILES else -(-work_items // 2)
    return min(c.blocks * int(ctas(c)) // c.cluster, max_blocks)


def consumer_registers(c: Any) -> Any:
    """Registers of a consumer thread."""
    return _CONSUMER_REGISTERS[c.warpgroups] - _ceded_registers(c)


def producer_registers(c: Any) -> Any:
    """Registers of a thread of the producer warpgroup."""
    return _PRODUCER_REGISTERS[c.warpgroups] + 2 * _ceded_registers(c)


def _ceded_registers(c: Any) -> Any:
    """Registers that each of two consumer warpgroups cedes to the producer of a persistent grid, which spills
    with 24."""
    return np.where((c.warpgroups == 2) & (c.blocks != 0), 8, 0)


def summed(DV: int, c: Any) -> Any:
    """Columns of O that are computed: DV, or complete panels if they have several widths."""
    return np.where(c.value_columns == 0, round_up(DV, 16), DV)


def widest_product(DV: int, c: Any) -> Any:
    """N of the widest wgmma: the keys of a tile, or the columns of V that it spans."""
    return np.maximum(c.BN, np.where(c.value_columns == 0, round_up(DV, 16) // 64 * 64, DV))


def register_estimate(D: int, c: Any, DV: int = 0, *, capped: bool = False) -> Any:
    """Registers of a consumer thread: O, scores (two sets for overlap 2), P in 16 bits, and the rest. DV: columns of O
    (0: D)."""
    widest = max(D, DV)
    scores = np.where(c.overlap == 2, 2, 1) * c.BN / 2
    over_both = _OTHER_REGISTERS_OVER_BOTH + 20 * (widest > 128) + 24 * (widest > 224)
    other_registers = np.where(c.overlap == 2, over_both, _OTHER_REGISTERS)
    return scores + c.BN / 4 + summed(DV or D, c) / 2 + other_registers + (_SOFTCAP_REGISTERS if capped else 0)


def l2_share(D: int, c: Any, l2_bytes: float, DV: int = 0) -> Any:
    """How long L2 is busy with the keys and values of a tile, as a fraction of the time of its products or
    exponentials, if each block loads for itself; `l2_bytes` per clock and SM. DV: head_dim_v (0: D).
    """
    columns = round_up(D, 16) + (DV or D)  # columns of a key and its value
    rows = ROWS * c.warpgroups
    return ELEMENT * columns / l2_bytes / (rows * max(columns / _PRODUCTS, 1 / _EXPONENTIALS))


def smem_bytes(D: int, c: Any, DV: int = 0) -> Any:
    """Shared memory of a block, in bytes: Q, later O, the rings of K and V, their barriers, and the posted work items.
    DV: head_dim_v (0: D)."""
    padded, padded_v = round_up(D, 16), round_up(DV or D, 16)  # Q Kᵀ consumes 16 columns per step
    uniform = round_up(DV or D, np.maximum(c.value_columns, 1))
    values = np.where(c.value_columns == 0, padded_v, uniform)
    ring = c.stages * (tile_bytes(ELEMENT * padded, c.BN) + tile_bytes(ELEMENT * values, c.BN))
    barriers = 2 * c.warpgroups + 4 * c.stages + _POSTS + 2
    work_bytes = _POSTS * _WORK + _DRAWN + _SCHEDULE
    return c.warpgroups * tile_bytes(ELEMENT * max(padded, padded_v), ROWS) + ring + _BARRIER * barriers + work_bytes


def block(entry: str, D: int, DV: int = 0) -> Block:
    """Limits of a block of producer and consumer warpgroups. DV: head_dim_v (0: D)."""
    return Block(entry, lambda c: 128 * (c.warpgroups + 1), lambda c: smem_bytes(D, c, DV), ctas=ctas)


def fits(D: int, c: Any, arch: Arch, DV: int = 0) -> Any:
    """Whether the shared memory of an SM suffices for the blocks that share it. DV: head_dim_v (0: D)."""
    return arch.fits_smem(smem_bytes(D, c, DV), ctas(c))


def panel_width(D: int) -> int:
    """Columns of a panel by default: one panel, or panels of 32 columns if they divide D and 64 does not, or of 64 with
    zeros in the last."""
    return next((width for width in WIDTHS[::-1] if width >= D), 32 if D % 64 == 32 else 64)


def tile_bytes(row_bytes: Any, rows: Any) -> Any:
    """Shared memory of a tile, rounded up to where the next one may begin."""
    return round_up(row_bytes * rows, _TILE_UNIT)


def round_up(value: Any, unit: Any) -> Any:
    """The least multiple of `unit` that is no less than `value`."""
    return -(-value // unit) * unit
