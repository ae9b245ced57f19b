"""What mma_sync is free to choose: flash_attention_backward's tiles, how closely edges of a window are followed, and
how the queries of the sinks are shared out."""

from dataclasses import dataclass
from typing import Any

from ...flash_attention.mma_sync.config import row_bytes
from ...flash_attention_backward.mma_sync.config import VALUES_BYTES, kv_columns
from ...flash_attention_backward.mma_sync.config import Config as DenseConfig

SINK_KEYS = 16  # of a block: the rows of one mma


@dataclass(frozen=True, slots=True)
class Config(DenseConfig):
    narrow: int  # keys that a warp of dQ takes of a tile where it attends no others; 0: always the whole tile
    BM_sink: int  # queries a step of the blocks of sinks
    sink_warps: int  # which share these queries
    sink_stages: int
    sink_splits: int  # blocks that share the queries of the same sinks


def sink_smem_bytes(D: int, c: Any) -> Any:
    """K and V of the sinks, and slots for Q, dO and their rows' values, where the warps' sums lie afterwards."""
    row = row_bytes(D, True)
    return 2 * SINK_KEYS * row + c.sink_stages * c.BM_sink * (2 * row + VALUES_BYTES)


def sink_register_estimate(D: int, c: Any) -> Any:
    """Registers a thread, as for dK and dV of other keys."""
    return 8 * kv_columns(D, c) + c.BM_sink / c.sink_warps + 40
