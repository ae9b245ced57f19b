"""The search space of segmented_fused, and the sizes derived from it besides those of fused."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..fused.config import Config as FusedConfig
from ..fused.config import block_bytes, block_threads
from ..problem import Problem


@dataclass(frozen=True, slots=True)
class Config(FusedConfig):
    segments: int  # segments of a sequence, scanned in parallel
    map_columns: int  # columns of B and A together, per block of map
    map_rows: int  # columns per warp
    merge_columns: int  # columns of the state per thread of merge


def scan_threads(K: int, c: Any) -> Any:
    return block_threads(K, c, c.BV, c.rows)


def map_threads(K: int, c: Any) -> Any:
    """Threads of the launch in which some blocks scan the first segment."""
    return np.maximum(scan_threads(K, c), block_threads(K, c, c.map_columns, c.map_rows))


def map_values(problem: Problem, c: Any) -> Any:
    """Columns of v that a block of map reserves space for."""
    return np.minimum(c.map_columns, problem.value_dim)


def map_bytes(problem: Problem, c: Any) -> Any:
    return np.maximum(block_bytes(problem, c, c.BV), block_bytes(problem, c, map_values(problem, c)))
