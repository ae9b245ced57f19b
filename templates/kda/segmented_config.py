"""What segmented is free to choose, and the sizes that follow besides those of prep_scan."""

from dataclasses import dataclass
from typing import Any

from .prep_scan_config import Config as ScanConfig

MERGE_STAGES = 4
MERGE_ROWS = 16  # of a map, a tile
FP32 = 4  # bytes


@dataclass(frozen=True, slots=True)
class Config(ScanConfig):
    segments: int  # of a sequence, scanned side by side
    scan_min_ctas: int  # blocks of map and scan that the registers of an SM must hold
    merge_columns: int  # of the state, a thread of merge


def merge_threads(K: int) -> int:
    return 2 * K


def merge_smem_bytes(K: int, c: Any) -> Any:
    """A ring of tiles of the maps, and two states: the one that is read and the one that is written."""
    return FP32 * K * (MERGE_STAGES * MERGE_ROWS + 4 * c.merge_columns)
