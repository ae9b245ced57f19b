"""The search space of mma_sync: flash_attention_backward's tiles, the granularity at which window edges are followed,
and how the queries of the sinks are split."""

from dataclasses import dataclass
from typing import Any

from ...flash_attention.mma_sync.config import row_bytes
from ...flash_attention_backward.mma_sync.config import VALUES_BYTES, kv_columns
from ...flash_attention_backward.mma_sync.config import Config as DenseConfig

SINK_KEYS = 16  # keys per block: the rows of one mma


@dataclass(frozen=True, slots=True)
class Config(DenseConfig):
    narrow: int  # keys of a tile that a dQ warp computes if it attends no others; 0: always the complete tile
    BM_sink: int  # queries per step of the blocks of sinks
    sink_warps: int  # warps that share these queries
    sink_stages: int
    sink_splits: int  # blocks that split the queries of the same sinks


def sink_smem_bytes(D: int, c: Any) -> Any:
    """Bytes of K and V of the sinks, and slots for Q, dO and the values of their rows, later reused for the warps'
    sums."""
    row = row_bytes(D, True)
    return 2 * SINK_KEYS * row + c.sink_stages * c.BM_sink * (2 * row + VALUES_BYTES)


def sink_register_estimate(D: int, c: Any) -> Any:
    """Registers per thread, as for dK and dV of other keys."""
    return 8 * kv_columns(D, c) + c.BM_sink / c.sink_warps + 40
