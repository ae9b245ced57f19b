"""The key tiles that each query tile visits: the counts of the loops of keys.cuh."""

from dataclasses import dataclass

import numpy as np

from tuner.spec import Array

from .problem import Problem


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys that each query tile attends; none for a tile beyond the last query. `Keys` of keys.cuh, one entry per
    tile.

    `first` and `last` are positions; all arrays are int64 [tiles].
    """

    first: Array
    last: Array
    window: int
    sinks: int

    @classmethod
    def of(cls, problem: Problem, rows: int, tiles: int, heads_a_row: int = 1) -> "Keys":
        """`tiles` tiles of `rows` rows; a row is one query, unless `heads_a_row` consecutive rows belong to the same
        query."""
        row = np.arange(tiles, dtype=np.int64) * rows
        before, count = problem.seq_k - problem.seq_q, problem.seq_q * heads_a_row
        last = (np.minimum(row + rows, count) - 1) // heads_a_row + before
        return cls(row // heads_a_row + before, np.where(row < count, last, -1), problem.window, problem.sinks)

    @property
    def begin(self) -> Array:
        """The first key of any window."""
        return np.maximum(self.first - self.window + 1, 0)

    @property
    def prefix(self) -> Array:
        """Keys that every query attends up to its position: the sinks, or all keys if no window starts after them."""
        return np.where(self.last - self.window + 1 > self.sinks, self.sinks, np.maximum(self.last + 1, 0))


@dataclass(frozen=True, slots=True)
class Walks:
    """The tiles of BN keys that each query tile visits: `Walk` of keys.cuh, one entry per query tile."""

    keys: Keys
    BN: int

    @property
    def prefix_tiles(self) -> Array:
        return -(-self.keys.prefix // self.BN)

    @property
    def window_begin(self) -> Array:
        return np.maximum(self.keys.begin, self.keys.prefix)

    @property
    def tiles(self) -> Array:
        return self.prefix_tiles + -(-self._window_keys // self.BN)

    @property
    def keys_read(self) -> Array:
        """Rows of K that are copied, without zero-filled rows."""
        return self.keys.prefix + self._window_keys

    @property
    def _window_keys(self) -> Array:
        return np.maximum(self.keys.last + 1 - self.window_begin, 0)

    def spans(self, queries: Keys, narrow: int) -> tuple[int, int]:
        """Number of full tiles and narrow spans that parts of these queries visit; `queries` are the parts,
        in order."""
        parts = len(queries.first) // len(self.keys.first)
        prefix, start = (np.repeat(bound, parts) for bound in (self.keys.prefix, self.window_begin))
        nothing = np.zeros_like(prefix)
        prefix_spans = self._spans(nothing, np.minimum(prefix, queries.last + 1), narrow)
        window_spans = self._spans(np.maximum(queries.begin - start, nothing), queries.last + 1 - start, narrow)
        tiles, narrows = (a + b for a, b in zip(prefix_spans, window_spans, strict=True))
        return tiles - narrows, narrows

    def _spans(self, begin: Array, end: Array, narrow: int) -> tuple[int, int]:
        """Number of tiles, counted from key 0, that contain a key in [begin, end), and of those that need only `narrow`
        keys."""
        first, last = begin // self.BN, (end - 1) // self.BN
        nonempty = begin < end
        in_first = np.minimum(end - first * self.BN, self.BN)
        span_begin = np.minimum((begin - first * self.BN) // 16 * 16, self.BN - narrow)
        narrow_first = in_first <= span_begin + narrow
        narrow_last = (last > first) & (end - last * self.BN <= narrow)
        return int(np.sum((last - first + 1)[nonempty])), int(
            np.sum(narrow_first[nonempty]) + np.sum(narrow_last[nonempty])
        )
