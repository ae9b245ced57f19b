"""The problem of flash_attention: sizes, dtype, packed sequences, windows, and options of the scores."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from tuner.errors import UsageError
from tuner.spec import Array, DType, Precision, extent, static

HEAD_DIMS = tuple(range(8, 257, 8))
DTYPES = (DType.BF16, DType.FP16)
MAX_ROWS = 2**31 - 2**10  # rows of Q over batch and heads: int32 in the kernels, with room for one more tile
MAX_SEQ = 2**30  # positions are int32 in the kernels, with room for one more tile


@dataclass(frozen=True, slots=True)
class Problem:
    """T = seq_q queries attend S = seq_k keys, per batch and head; heads / kv_heads query heads share a head of K, V.

    Values, and hence the outputs, may be wider or narrower than queries and keys: heads of head_dim_v elements.

    Causal is bottom-right aligned: query i attends the keys j <= i + S - T, so the last query attends every key. With
    packed sequences, T and S count the rows of all N sequences, whose lengths are data; each query attends keys of its
    own sequence, and causal applies within it.

    With s_aux, the softmax of a head includes one extra logit, whose value is 0.

    With a window, query i, whose own key is p = i + S - T, attends the keys from p - window_left to p + window_right.
    Raises UsageError for sizes that no kernel supports.
    """

    head_dim: int = static("D: elements of a head, 8 to 256 in steps of 8", default=128, choices=HEAD_DIMS)
    dtype: DType = static("of q, k, v and o", default=DType.BF16, choices=(*DTYPES, DType.FP32))
    causal: bool = static("query i attends keys up to i + seq_k - seq_q only", default=False)
    use_cu_seqlens: bool = static("sequences of any lengths are packed into one", default=False)
    use_softcap: bool = static("scores x become softcap · tanh(x / softcap)", default=False)
    precision: Precision = static(
        "of the operands of matrix products (dtype: that of the tensors); tf32 is for fp32 tensors",
        default=Precision.DTYPE,
        choices=tuple(Precision),
    )
    head_dim_v: int = static(
        "DV: elements of a head of v and o, 8 to 256 in steps of 8 (0: head_dim)", default=0, choices=(0, *HEAD_DIMS)
    )
    use_window: bool = static("a query attends the keys near its own: window_left, window_right", default=False)
    use_s_aux: bool = static("s_aux, one logit per head, is added to the softmax denominator", default=False)
    batch: int = extent("B", default=4)
    heads: int = extent("H: query heads", default=16)
    kv_heads: int = extent("HK: heads of K and V, a divisor of heads (0: equal to heads)", default=0)
    seq_q: int = extent("T: queries", default=4096)
    seq_k: int = extent("S: keys (0: equal to seq_q)", default=0)
    boundaries: int = extent("N + 1: entries of cu_seqlens_q and of cu_seqlens_k; 0 without", default=0)
    max_seqlen_q: int = extent("queries of the longest packed sequence (0: seq_q)", default=0)
    window_left: int = extent("keys before its own that a query attends, with use_window (-1: all)", default=1024)
    window_right: int = extent("keys after its own, with use_window and not causal (-1: all)", default=1024)

    def __post_init__(self) -> None:
        if self.precision is Precision.FP32 and self.dtype is DType.FP32:  # equal problems have equal names
            object.__setattr__(self, "precision", Precision.DTYPE)
        object.__setattr__(self, "head_dim_v", self.head_dim_v or self.head_dim)
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        object.__setattr__(self, "seq_k", self.seq_k or self.seq_q)
        longest = min(self.max_seqlen_q or self.seq_q, self.seq_q) * self.use_cu_seqlens
        object.__setattr__(self, "max_seqlen_q", longest)
        object.__setattr__(self, "boundaries", max(self.boundaries, 2) * self.use_cu_seqlens)
        if refusal := next(_window_refusals(self), None):
            raise UsageError(refusal)
        object.__setattr__(self, "window_left", self.use_window * _reach(self.window_left, self.seq_k))
        behind = _reach(self.window_right, self.seq_q)
        object.__setattr__(self, "window_right", (self.use_window and not self.causal) * behind)
        check_sizes("flash_attention", self, (*DTYPES, DType.FP32))
        if refusal := next(_refusals(self), None):
            raise UsageError(refusal)

    @property
    def sequences(self) -> int:
        """N: the batch size, or the number of packed sequences."""
        return self.boundaries - 1 if self.use_cu_seqlens else self.batch

    @property
    def s_aux_heads(self) -> int:
        """Entries of s_aux."""
        return self.heads * self.use_s_aux

    @property
    def longest(self) -> int:
        """Queries of the longest sequence."""
        return self.max_seqlen_q if self.use_cu_seqlens else self.seq_q


def _reach(keys: int, all_keys: int) -> int:
    """Extent of a window to one side, at most `all_keys`; -1 means all."""
    return all_keys if keys < 0 else min(keys, all_keys)


def _window_refusals(problem: Problem) -> Iterator[str]:
    for name in ("window_left", "window_right"):
        if getattr(problem, name) < -1:
            yield f"{name} {getattr(problem, name)}: flash_attention supports 0 or more, or -1 for all"


def _refusals(problem: Problem) -> Iterator[str]:
    if problem.precision not in tuple(Precision):
        yield f"precision {problem.precision}: flash_attention supports {', '.join(p.value for p in Precision)}"
    elif problem.precision is not Precision.DTYPE and problem.dtype is not DType.FP32:
        yield f"precision {problem.precision.value}: {problem.dtype.value} operands are not converted; it is for fp32"
    if problem.use_cu_seqlens and problem.batch != 1:
        yield f"batch {problem.batch}: cu_seqlens packs all sequences into a batch of 1"
    if problem.max_seqlen_q < 0:
        yield f"max_seqlen_q {problem.max_seqlen_q}: flash_attention supports 1 or more, or 0 for seq_q"


def check_sizes(operator: str, problem: Any, dtypes: tuple[DType, ...]) -> None:
    """Raises UsageError for a head width, dtype, number of heads or length that no kernel of `operator` supports."""
    for name in ("head_dim", "head_dim_v"):
        if getattr(problem, name) not in HEAD_DIMS:
            raise UsageError(f"{name} {getattr(problem, name)}: {operator} supports 8 to 256 in steps of 8")
    if problem.dtype not in dtypes:
        name = getattr(problem.dtype, "value", problem.dtype)
        raise UsageError(f"dtype {name}: {operator} supports {', '.join(d.value for d in dtypes)}")
    for name in ("batch", "heads", "kv_heads", "seq_q", "seq_k"):
        if getattr(problem, name) < 1:
            raise UsageError(f"{name} {getattr(problem, name)}: {operator} supports 1 or more")
    if problem.heads % problem.kv_heads:
        raise UsageError(f"kv_heads {problem.kv_heads} does not divide heads {problem.heads}")
    if max(problem.seq_q, problem.seq_k) > MAX_SEQ or problem.batch * problem.heads * problem.seq_q > MAX_ROWS:
        raise UsageError(
            f"batch {problem.batch}, heads {problem.heads}, seq_q {problem.seq_q}, seq_k {problem.seq_k}: too large; "
            f"sequences go up to {MAX_SEQ}, batch · heads · seq_q up to {MAX_ROWS}"
        )


def unpacked(problem: Problem) -> Problem:
    """A batch of as many sequences of equal length, the mean rounded down, as a stand-in to predict packed
    sequences."""
    if not problem.use_cu_seqlens:
        return problem
    N = problem.sequences
    seq_q, seq_k = max(problem.seq_q // N, 1), max(problem.seq_k // N, 1)
    return replace(problem, use_cu_seqlens=False, batch=min(N, problem.seq_q), seq_q=seq_q, seq_k=seq_k)


@lru_cache(maxsize=2)  # called for each config of a space
def visible_keys(problem: Problem) -> Array:
    """End of the keys that each query attends, from key 0 or `first_keys` on: int64 [T], read-only."""
    last = own_keys(problem) + problem.window_right
    limited = problem.causal or problem.use_window
    counts: Array = np.clip(last + 1, 0, problem.seq_k) if limited else np.full_like(last, problem.seq_k)
    counts.flags.writeable = False
    return counts


@lru_cache(maxsize=2)
def first_keys(problem: Problem) -> Array:
    """The first key that each query attends, if any: int64 [T], read-only."""
    positions = own_keys(problem)
    first: Array = (
        np.clip(positions - problem.window_left, 0, problem.seq_k) if problem.use_window else np.zeros_like(positions)
    )
    first.flags.writeable = False
    return first


def attended_keys(problem: Problem) -> Array:
    """How many keys each query attends: int64 [T]."""
    counts: Array = visible_keys(problem) - first_keys(problem)
    return counts


def plain(problem: Any) -> Problem:
    """The problem of the same width and dtype in which every query attends every key, for any attention."""
    return Problem(head_dim=problem.head_dim, dtype=problem.dtype)


def own_keys(problem: Any) -> Array:
    """Key positions of the queries; the last query is at the last key: int64 [T]."""
    return np.arange(problem.seq_q, dtype=np.int64) + problem.seq_k - problem.seq_q
