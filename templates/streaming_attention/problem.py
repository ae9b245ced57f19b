"""The problem of streaming_attention: sizes, dtype, window and sinks, and the layout of the cache."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tuner.errors import UsageError
from tuner.spec import Array, DType, extent, static

from ..flash_attention import operator as dense
from ..flash_attention.problem import own_keys

DTYPES = (*dense.DTYPES, DType.FP32)


@dataclass(frozen=True, slots=True)
class Problem:
    """The last T of S positions attend keys, per batch and head; heads / kv_heads query heads share a head of K, V.

    The query at position p attends the keys j <= p with j < sinks or p - j < window: its own key is part of the window,
    and no key counts twice. Query i is at p = i + S - T, and attends nothing if p is negative.

    A rolling cache has `slots` slots: the key at position j is in slot j while j < slots, and from then on in slot
    sinks + (j - sinks) mod (slots - sinks). Otherwise every key has its own slot. In a ragged batch, each sequence has
    its own number of positions S, which is data; `seq_k` is then the number of slots. Raises UsageError for sizes that
    no kernel supports.
    """

    head_dim: int = static("D: elements of a head, 8 to 256 in steps of 8", default=128, choices=dense.HEAD_DIMS)
    dtype: DType = static("of q, k, v and o", default=DType.BF16, choices=DTYPES)
    rolling: bool = static("k and v are a circular cache after the sinks", default=False)
    ragged: bool = static("cache_seqlens holds the number of positions of each sequence", default=False)
    batch: int = extent("B", default=1)
    heads: int = extent("H: query heads", default=32)
    kv_heads: int = extent("HK: heads of K and V, a divisor of heads (0: equal to heads)", default=0)
    seq_q: int = extent("T: queries", default=16384)
    seq_k: int = extent("S: positions so far (0: equal to slots, or to seq_q; ragged: slots)", default=0)
    slots: int = extent("keys that k and v hold (0: all; rolling: the attended ones)", default=0)
    window: int = extent("W: keys that a query attends up to its own, 1 or more", default=1024)
    sinks: int = extent("first keys of a sequence that every query attends in addition, 0 or more", default=4)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        object.__setattr__(self, "seq_k", self.seq_k or self.slots or self.seq_q)
        object.__setattr__(self, "slots", self.slots or self._least_slots)
        object.__setattr__(self, "seq_k", self.slots if self.ragged else self.seq_k)
        dense.check_sizes("streaming_attention", self, DTYPES)
        if refusal := next(_refusals(self), None):
            raise UsageError(refusal)

    @property
    def head_dim_v(self) -> int:
        """Columns of V: always head_dim."""
        return self.head_dim

    @property
    def reach(self) -> int:
        """Maximum number of keys that all queries together attend."""
        return self.sinks + self.window + self.seq_q - 1

    @property
    def sequences(self) -> int:
        """Entries of cache_seqlens; 0 if the batch is not ragged."""
        return self.batch * self.ragged

    @property
    def _least_slots(self) -> int:
        """The minimum number of slots; a ragged rolling cache may hold any number of positions."""
        if not self.rolling:
            return self.seq_k
        return self.reach if self.ragged else min(self.seq_k, self.reach)


def _refusals(problem: Problem) -> Iterator[str]:
    for name, minimum in (("window", 1), ("sinks", 0)):
        if not minimum <= getattr(problem, name) <= dense.MAX_SEQ:
            yield f"{name} {getattr(problem, name)}: streaming_attention supports {minimum} to {dense.MAX_SEQ}"
    if not problem.rolling and problem.slots != problem.seq_k:
        yield f"slots {problem.slots}: must equal seq_k {problem.seq_k}, unless the cache is rolling"
    if not problem._least_slots <= problem.slots <= dense.MAX_SEQ:
        of_all = "" if problem.ragged else f" of {problem.seq_k}"
        attended = f"{problem.reach if problem.ragged else min(problem.seq_k, problem.reach)}{of_all} keys"
        yield (
            f"slots {problem.slots}: {problem.seq_q} queries with window {problem.window} and {problem.sinks} sinks "
            f"attend {attended}, and all of them must be in the cache"
        )


def attended_keys(problem: Problem) -> Array:
    """How many keys each query attends: int64 [T]; for a ragged batch, if the cache is full."""
    return np.clip(own_keys(problem) + 1, 0, problem.window + problem.sinks)


def attends(problem: Problem) -> Array:
    """Whether each query attends the key at each position: bool [T, S]."""
    position = own_keys(problem)[:, None]
    key = np.arange(problem.seq_k)
    visible: Array = (key <= position) & ((key < problem.sinks) | (position - key < problem.window))
    return visible


def slots(problem: Problem) -> Array:
    """The slot of each position: int64 [S]."""
    position = np.arange(problem.seq_k)
    wrapped = problem.sinks + (position - problem.sinks) % max(problem.slots - problem.sinks, 1)
    return np.where(position < problem.slots, position, wrapped)
