"""The search space of segmented, and the sizes derived from it besides those of prep_scan."""

from dataclasses import dataclass
from typing import Any

from tuner.spec import Block, Constraint

from ..prep_scan.config import Config as ScanConfig
from ..problem import Problem
from ..sizes import MAX_BLOCKS

MERGE_STAGES = 4
MERGE_ROWS = 16  # rows of a map per tile
FP32 = 4  # bytes of one fp32


@dataclass(frozen=True, slots=True)
class Config(ScanConfig):
    segments: int  # segments of a sequence, scanned in parallel
    scan_min_ctas: int  # blocks of map and scan that must fit the registers of an SM
    merge_columns: int  # columns of the state per thread of merge


def within_grid(problem: Problem) -> Constraint:
    """All segments of all sequences are one dim of a launch."""
    return Constraint("segments fit the grid", lambda c: problem.sequences * c.segments <= MAX_BLOCKS)


def exceeds_grid(problem: Problem, segments: int) -> str | None:
    """Why not even the fewest segments of each sequence fit the grid."""
    if problem.sequences * segments > MAX_BLOCKS:
        return f"{problem.sequences} sequences: segments would exceed the grid, and this many need none"
    return None


def merge_threads(K: int) -> int:
    return 2 * K


def merge_block(K: int) -> Block:
    return Block("kda_merge", lambda _: merge_threads(K), lambda c: merge_smem_bytes(K, c), name="a block of merge")


def merge_smem_bytes(K: int, c: Any) -> Any:
    """Bytes of a ring of tiles of the maps, and of two states: the one being read and the one being written."""
    return FP32 * K * (MERGE_STAGES * MERGE_ROWS + 4 * c.merge_columns)
