"""Configs with small tiles, so that small problems have several tiles."""

from typing import Any

from tuner.arch import ARCHES

SMALL_TILES: dict[str, Any] = {
    "BM": 64,
    "BN": 32,
    "warps": 4,
    "d_warps": 1,
    "stages": 2,
    "smem_budget": ARCHES["sm_90a"].smem_per_block,
    "min_ctas": 1,
    "q_in_registers": False,
    "swizzle": True,
    "lazy_rescale": False,
}
