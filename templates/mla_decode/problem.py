"""The problem of mla_decode: sizes, dtype, and the layout of the paged cache of latent rows."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tuner.errors import UsageError
from tuner.spec import Array, DType, extent, static

from ..flash_attention import operator as dense
from ..flash_attention.problem import MAX_ROWS
from ..paged_attention.problem import MAX_KEYS

HEAD_DIMS = tuple(range(16, 577, 16))
DTYPES = (*dense.DTYPES, DType.FP32)


@dataclass(frozen=True, slots=True)
class Problem:
    """The last T positions of a sequence attend its latent rows: each row is a key, and its first DV elements are the
    value. All query heads share them.

    A page holds `page_size` positions of one sequence, and a table has `max_pages` entries, so that a sequence has at
    most S = max_pages · page_size positions. The actual number is data. Query i of a sequence of n positions is at p =
    i + n - T and attends the rows j <= p, none if p is negative. Raises UsageError for sizes that no kernel supports.
    """

    head_dim: int = static("D: elements of a cache row, 16 to 576 in steps of 16", default=576, choices=HEAD_DIMS)
    head_dim_v: int = static("DV: the first elements of a row, which are its value", default=512, choices=HEAD_DIMS)
    dtype: DType = static("of q, kv_cache and o", default=DType.BF16, choices=DTYPES)
    batch: int = extent("B: sequences", default=64)
    heads: int = extent("H: query heads", default=128)
    seq_q: int = extent("T: queries of a sequence, its last positions", default=1)
    page_size: int = extent("positions of a page, a power of two", default=64)
    max_pages: int = extent("entries of a table", default=64)
    pages: int = extent("pages of the cache (0: the number of entries of all tables)", default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pages", self.pages or self.batch * self.max_pages)
        if refusal := next(_refusals(self), None):
            raise UsageError(refusal)

    @property
    def seq_k(self) -> int:
        """S: maximum number of positions per sequence."""
        return self.max_pages * self.page_size

    @property
    def kv_heads(self) -> int:
        """All heads share the cache."""
        return 1


def attended_rows(problem: Problem) -> Array:
    """How many rows each query attends if the table is full: int64 [T]."""
    return np.maximum(np.arange(problem.seq_q, dtype=np.int64) + 1 + problem.seq_k - problem.seq_q, 0)


def _refusals(problem: Problem) -> Iterator[str]:
    if problem.head_dim not in HEAD_DIMS:
        yield f"head_dim {problem.head_dim}: mla_decode supports 16 to 576 in steps of 16"
    if problem.head_dim_v not in HEAD_DIMS or problem.head_dim_v > problem.head_dim:
        yield f"head_dim_v {problem.head_dim_v}: mla_decode supports 16 to head_dim {problem.head_dim} in steps of 16"
    if problem.dtype not in DTYPES:
        name = getattr(problem.dtype, "value", problem.dtype)
        yield f"dtype {name}: mla_decode supports {', '.join(dtype.value for dtype in DTYPES)}"
    if problem.page_size < 1 or problem.page_size & (problem.page_size - 1):
        yield f"page_size {problem.page_size}: mla_decode supports powers of two"
    for name in ("batch", "heads", "seq_q", "page_size", "max_pages", "pages"):
        if not 1 <= getattr(problem, name) <= dense.MAX_SEQ:
            yield f"{name} {getattr(problem, name)}: mla_decode supports 1 to {dense.MAX_SEQ}"
    if problem.batch * problem.heads * problem.seq_q > MAX_ROWS:
        yield (
            f"batch {problem.batch}, heads {problem.heads}, seq_q {problem.seq_q}: too large; "
            f"batch · heads · seq_q goes up to {MAX_ROWS}"
        )
    if problem.seq_k > dense.MAX_SEQ or problem.batch * problem.seq_k > MAX_KEYS:
        yield (
            f"batch {problem.batch}, max_pages {problem.max_pages}, page_size {problem.page_size}: too large; "
            f"max_pages · page_size goes up to {dense.MAX_SEQ}, of all sequences together to {MAX_KEYS}"
        )
