"""Bank conflicts: the wavefronts of one access to shared memory, for the cost model and `tuner inspect`."""

import numpy as np

from tuner.backends.ptx.state.values import Array
from tuner.backends.ptx.state.wave import WARP

BANK = 4  # bytes per bank and clock


def shared_wavefronts(at: Array, lanes: Array, width: int) -> tuple[tuple[float, ...], Array]:
    """Return ((requests, distinct addresses, 0, wavefronts), no sectors).

    For 8-byte and 16-byte accesses, halves and quarters of a warp are served one at a time.
    """
    warps = lanes // WARP
    together = WARP * BANK // max(width, BANK)  # lanes per wavefront
    groups = warps * WARP + lanes % WARP // together
    words = at[:, None] // BANK + np.arange(max(1, width // BANK))
    pairs = np.unique(np.repeat(groups, words.shape[1]) * (1 << 32) + words.ravel() % (1 << 32))
    group, bank = pairs >> 32, pairs & 31
    _, where, count = np.unique(group * 32 + bank, return_index=True, return_counts=True)
    owners, first = np.unique(group[where], return_index=True)
    turns = int(np.maximum.reduceat(count, first).sum())
    return (len(np.unique(warps)), distinct_pairs(warps, at), 0, turns), owners[:0]


def distinct_pairs(warps: Array, values: Array) -> int:
    """Return the number of distinct values per warp, summed over the warps."""
    return len(np.unique(warps * (1 << 42) + values))
