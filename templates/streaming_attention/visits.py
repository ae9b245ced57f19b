"""Which tiles of keys tiles of queries visit: the counts of the loops of keys.cuh."""

from dataclasses import dataclass

import numpy as np

from tuner.operator import Array

from .operator import Problem

_NO_LIMIT = 1 << 40


@dataclass(frozen=True, slots=True)
class Keys:
    """What each tile of queries attends; of a tile past the last query, nothing. `Keys` of keys.cuh, one entry a tile.

    `first` and `last` are positions, all arrays int64 [tiles].
    """

    first: Array
    last: Array
    window: int
    sinks: int

    @classmethod
    def of(cls, problem: Problem, rows: int, tiles: int, heads_a_row: int = 1) -> "Keys":
        """`tiles` tiles of `rows` rows; a row is one query, unless `heads_a_row` rows in turn are of the same query."""
        row = np.arange(tiles, dtype=np.int64) * rows
        before, count = problem.seq_k - problem.seq_q, problem.seq_q * heads_a_row
        last = (np.minimum(row + rows, count) - 1) // heads_a_row + before
        return cls(row // heads_a_row + before, np.where(row < count, last, -1), problem.window, problem.sinks)

    @property
    def begin(self) -> Array:
        """The first key of any window."""
        return np.maximum(self.first - self.window + 1, 0)

    def count(self, start: Array, unit: int, limit: Array) -> Array:
        """Of the `limit` units of `unit` keys from `start` on, those with an attended key."""
        end = np.clip((self.last - start) // unit + 1, 0, limit)
        of_sinks = np.clip(-((start - self.sinks) // unit), 0, end)
        of_window = np.clip((self.first - self.window + 1 - start) // unit, 0, end)
        return of_sinks + end - np.maximum(of_sinks, of_window)


@dataclass(frozen=True, slots=True)
class Walks:
    """The tiles of BN keys that each tile of queries visits: `Walk` of keys.cuh, one entry a tile of queries."""

    keys: Keys
    BN: int

    @property
    def sink_tiles(self) -> Array:
        return -(-np.minimum(self.keys.sinks, self.keys.begin) // self.BN)

    @property
    def window_begin(self) -> Array:
        return np.maximum(self.keys.begin, self.sink_tiles * self.BN)

    @property
    def tiles(self) -> Array:
        window = np.maximum(self.keys.last + 1 - self.window_begin, 0)
        return self.sink_tiles + -(-window // self.BN)

    @property
    def keys_read(self) -> Array:
        """Rows of K that are copied, without those that become zeros."""
        sink_end = self.sink_tiles * self.BN
        of_sinks = np.minimum(np.where(self.keys.begin >= sink_end, self.keys.sinks, self.keys.last + 1), sink_end)
        return of_sinks + np.maximum(self.keys.last + 1 - self.window_begin, 0)

    def visited(self, queries: Keys, unit: int) -> int:
        """Units of `unit` keys of these tiles that parts of their queries attend; `queries` are the parts, in order."""
        parts = len(queries.first) // len(self.keys.first)
        sink_units = np.repeat(self.sink_tiles * (self.BN // unit), parts)
        of_sinks = queries.count(np.zeros_like(sink_units), unit, sink_units)
        window_begin = np.repeat(self.window_begin, parts)
        of_window = queries.count(window_begin, unit, np.full_like(window_begin, _NO_LIMIT))
        return int(np.sum(of_sinks + of_window))
