"""What paged_attention computes on: sizes, dtype, window and sinks, and how a cache holds its keys in pages."""

from collections.abc import Iterator
from dataclasses import dataclass

from tuner.dtype import DType
from tuner.errors import UsageError
from tuner.operator import extent, static

from ..flash_attention import operator as dense

DTYPES = (*dense.DTYPES, DType.FP32)
MAX_KEYS = 2**34  # of all tables: the kernels count them by 16 in int32


@dataclass(frozen=True, slots=True)
class Problem:
    """The last T of a sequence's positions attend keys, per batch and head; heads / kv_heads heads share one of K, V.

    A page holds `page_size` positions of one sequence; `max_pages` of them are a table's, so that S = max_pages ·
    page_size is the most positions that a sequence has. How many it has is data. The query at position p attends the
    keys j <= p with j < sinks or p - j < window; query i of a sequence of n positions is at p = i + n - T, and attends
    nothing where that is negative.
    Raises UsageError for sizes that no kernel takes.
    """

    head_dim: int = static("D: elements of a head, 8 to 256 in steps of 8", default=128, choices=dense.HEAD_DIMS)
    dtype: DType = static("of q, k_cache, v_cache and o", default=DType.BF16, choices=DTYPES)
    use_softcap: bool = static("scores x become softcap · tanh(x / softcap)", default=False)
    batch: int = extent("B: sequences", default=16)
    heads: int = extent("H: query heads", default=32)
    kv_heads: int = extent("HK: heads of K and V, a divisor of heads (0: as many as heads)", default=8)
    seq_q: int = extent("T: queries of a sequence, its last positions", default=1)
    page_size: int = extent("positions of a page, a power of two", default=16)
    max_pages: int = extent("pages that a table has room for", default=512)
    pages: int = extent("pages of the cache (0: as many as all tables have room for)", default=0)
    window: int = extent("W: keys that a query attends up to its own (0: all)", default=0)
    sinks: int = extent("keys from the first on that every query attends as well, 0 and more", default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        object.__setattr__(self, "pages", self.pages or self.batch * self.max_pages)
        object.__setattr__(self, "window", self.window or self.seq_k)
        if refusal := next(_refusals(self), None):
            raise UsageError(refusal)
        dense.check_sizes("paged_attention", self, DTYPES)

    @property
    def head_dim_v(self) -> int:
        """Values are as wide as keys."""
        return self.head_dim

    @property
    def seq_k(self) -> int:
        """S: positions that a table has pages for."""
        return self.max_pages * self.page_size

    @property
    def reach(self) -> int:
        """Keys that all queries of a sequence together attend, where there are that many."""
        return self.sinks + self.window + self.seq_q - 1


def _refusals(problem: Problem) -> Iterator[str]:
    if problem.page_size < 1 or problem.page_size & (problem.page_size - 1):
        yield f"page_size {problem.page_size}: paged_attention takes powers of two"
    for name, least in (("max_pages", 1), ("pages", 1), ("window", 1), ("sinks", 0)):
        if not least <= getattr(problem, name) <= dense.MAX_SEQ:
            yield f"{name} {getattr(problem, name)}: paged_attention takes {least} to {dense.MAX_SEQ}"
    if problem.batch * problem.seq_k > MAX_KEYS:
        yield (
            f"batch {problem.batch}, max_pages {problem.max_pages}, page_size {problem.page_size}: too large; "
            f"batch · max_pages · page_size goes up to {MAX_KEYS}"
        )
