"""What wgmma is free to choose, and the sizes that follow; every function takes a config or columns of many."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.arch import Arch
from tuner.spec import Block

from ..problem import Problem

ELEMENT = 2  # bytes of fp16 and bf16
ROWS = 64  # of Q, a warpgroup
WIDTHS = (64, 32, 16)  # columns of a panel: rows of 128, 64 and 32 bytes, one swizzle each

_TILE_UNIT = 1024  # bytes: the swizzle of 128-byte rows repeats
_BARRIER = 8  # bytes
_POSTS, _WORK = 2, 48  # row tiles that are known at a time, and the bytes of one
_DRAWN = 4  # bytes: what a cluster takes next
_SCHEDULE = 36  # bytes
_FEW_ROW_TILES = 16
_PRODUCTS = 2048  # multiply-adds a clock and SM
_EXPONENTIALS = 16  # a clock and SM
_CONSUMER_REGISTERS = np.array([0, 216, 240, 160])  # by warpgroups: with the producer's, all that an SM has
_PRODUCER_REGISTERS = np.array([0, 40, 24, 32])
# Registers besides scores, P and O. Measured: with fewer left, ptxas serializes every wgmma (C7512) and spills.
_OTHER_REGISTERS = 28
_OTHER_REGISTERS_OVER_BOTH = 36  # at 28 the exponentials sink behind the wait that they are to run before
_SOFTCAP_REGISTERS = 32  # with fewer, scores that are capped spill


@dataclass(frozen=True, slots=True)
class Tiles:
    BN: int  # keys per tile
    warpgroups: int  # that compute, 64 rows of Q each; one more loads
    stages: int  # slots for tiles of K, and as many of V
    overlap: int  # what a tile's exponentials run over: 0 nothing, 1 the product with V, 2 both products
    ping_pong: bool  # warpgroups issue their products in turn
    value_columns: int  # of a panel of V: one wgmma spans panels of one width; 0: 64, 32 and 16, a wgmma for each
    polynomial: int  # one exponential in so many is computed on the FMA pipe; 0: none
    lazy_rescale: bool  # O is scaled only when a maximum grows by more than a factor of 2^8


@dataclass(frozen=True, slots=True)
class Config(Tiles):
    heavy_first: bool  # causal: the row tiles with most keys first
    packed_heads: int  # query heads of a KV head that share a tile's rows, as far as their number has this power of two
    cluster: int  # blocks that load K and V for each other, by multicast; 1: each for itself
    blocks: int  # that walk over the row tiles, on each SM's share of blocks; 0: a block for each row tile


def packed(heads: int, kv_heads: int, c: Any) -> Any:
    """Query heads that share a tile's rows: the choice, or what heads / kv_heads has of that power of two."""
    group = heads // kv_heads
    return np.minimum(c.packed_heads, group & -group)


def row_tiles(problem: Problem, c: Any) -> Any:
    """Of one head, or of the heads that share them; of packed sequences, the longest's."""
    queries = ROWS * c.warpgroups // packed(problem.heads, problem.kv_heads, c)
    return -(-problem.longest // queries)


def ctas(c: Any) -> Any:
    """Blocks that share an SM: one warpgroup alone leaves half of the registers."""
    return np.where(c.warpgroups == 1, 2, 1)


def walkers(taken: int, c: Config) -> int:
    """Blocks of a persistent grid, or clusters of them, for what is to be taken: row tiles, or as many as a cluster has
    blocks. Half as many as those where they are few, so that checks see them walk.
    """
    most = taken if taken > _FEW_ROW_TILES else -(-taken // 2)
    return min(c.blocks * int(ctas(c)) // c.cluster, most)


def consumer_registers(c: Any) -> Any:
    """Registers of a thread that computes."""
    return _CONSUMER_REGISTERS[c.warpgroups] - _moved(c)


def producer_registers(c: Any) -> Any:
    """Registers of a thread of the warpgroup that loads."""
    return _PRODUCER_REGISTERS[c.warpgroups] + 2 * _moved(c)


def _moved(c: Any) -> Any:
    """Registers that each of two warpgroups leaves to the loader, where that takes row tiles: with 24 it spills."""
    return np.where((c.warpgroups == 2) & (c.blocks != 0), 8, 0)


def summed(DV: int, c: Any) -> Any:
    """Columns of O that are computed: DV, or whole panels where these are of several widths."""
    return np.where(c.value_columns == 0, round_up(DV, 16), DV)


def widest_product(DV: int, c: Any) -> Any:
    """N of the widest wgmma: the keys of a tile, or the columns of V that it spans."""
    return np.maximum(c.BN, np.where(c.value_columns == 0, round_up(DV, 16) // 64 * 64, DV))


def register_estimate(D: int, c: Any, DV: int = 0, *, capped: bool = False) -> Any:
    """Registers of a thread that computes: O, scores (two sets for overlap 2), P in 16 bits, and the rest. DV: of O (0:
    D)."""
    widest = max(D, DV)
    scores = np.where(c.overlap == 2, 2, 1) * c.BN / 2
    over_both = _OTHER_REGISTERS_OVER_BOTH + 20 * (widest > 128) + 24 * (widest > 224)
    rest = np.where(c.overlap == 2, over_both, _OTHER_REGISTERS)
    return scores + c.BN / 4 + summed(DV or D, c) / 2 + rest + (_SOFTCAP_REGISTERS if capped else 0)


def l2_share(D: int, c: Any, l2_bytes: float, DV: int = 0) -> Any:
    """How long L2 is busy with the keys and values of a tile, as a share of the time that its products or exponentials
    take, where each block loads for itself; `l2_bytes` a clock and SM. DV: of values (0: D).
    """
    columns = round_up(D, 16) + (DV or D)  # of a key and its value
    rows = ROWS * c.warpgroups
    return ELEMENT * columns / l2_bytes / (rows * max(columns / _PRODUCTS, 1 / _EXPONENTIALS))


def smem_bytes(D: int, c: Any, DV: int = 0) -> Any:
    """Shared memory of a block, in bytes: Q, or O in its place, the rings of K and V, their barriers, and what is to be
    computed. DV: of values (0: D)."""
    padded, padded_v = round_up(D, 16), round_up(DV or D, 16)  # Q Kᵀ takes 16 columns a step
    uniform = round_up(DV or D, np.maximum(c.value_columns, 1))
    values = np.where(c.value_columns == 0, padded_v, uniform)
    ring = c.stages * (tile_bytes(ELEMENT * padded, c.BN) + tile_bytes(ELEMENT * values, c.BN))
    barriers = 2 * c.warpgroups + 4 * c.stages + _POSTS + 2
    taken = _POSTS * _WORK + _DRAWN + _SCHEDULE
    return c.warpgroups * tile_bytes(ELEMENT * max(padded, padded_v), ROWS) + ring + _BARRIER * barriers + taken


def block(entry: str, D: int, DV: int = 0) -> Block:
    """A block of producer and consumer warpgroups. DV: of values (0: D)."""
    return Block(entry, lambda c: 128 * (c.warpgroups + 1), lambda c: smem_bytes(D, c, DV), ctas=ctas)


def fits(D: int, c: Any, arch: Arch, DV: int = 0) -> Any:
    """Whether an SM has the shared memory for the blocks that are to share it. DV: of values (0: D)."""
    return arch.fits_smem(smem_bytes(D, c, DV), ctas(c))


def panel_width(D: int) -> int:
    """Columns of a panel by default: one panel, or panels of 32 columns where these are exact and 64 are not, or of 64
    with zeros in the last."""
    return next((width for width in WIDTHS[::-1] if width >= D), 32 if D % 64 == 32 else 64)


def tile_bytes(row_bytes: Any, rows: Any) -> Any:
    """Shared memory of a tile, up to where the next one may begin."""
    return round_up(row_bytes * rows, _TILE_UNIT)


def round_up(value: Any, unit: Any) -> Any:
    """The least multiple of `unit` that is no less than `value`."""
    return -(-value // unit) * unit
