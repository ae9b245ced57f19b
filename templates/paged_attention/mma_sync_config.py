"""What mma_sync is free to choose: flash_attention's tiles, how closely the edges of masks are followed, and
whether blocks share the keys of a tile of rows."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Config:
    BM: int  # rows a block: queries times the query heads of a KV head
    BN: int  # keys a tile
    warps: int
    d_warps: int  # warps that share their rows: each multiplies a part of the keys, then a part of D
    stages: int  # slots for tiles of K and V: one is read while the others are filled
    smem_budget: int  # bytes a block may use; Q in registers has a place of its own only where it fits
    min_ctas: int  # blocks that the registers of an SM must hold
    q_in_registers: bool  # or read again from shared memory for each tile
    swizzle: bool  # chunks of a row permuted, or rows padded to an odd number of chunks
    lazy_rescale: bool  # O is scaled only when a maximum grows by more than a factor of 2^8
    narrow: int  # keys that a warp takes of a tile where it attends no others; 0: always the whole tile
    splits: int  # shares of a row tile's keys, on average, that blocks take and another launch merges

    @property
    def rows_per_warp(self) -> int:
        return self.BM * self.d_warps // self.warps
