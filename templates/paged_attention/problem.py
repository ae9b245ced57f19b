"""The problem of paged_attention: sizes, dtype, window and sinks, and the layout of the paged cache."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tuner.errors import UsageError
from tuner.spec import DType, Scalar, extent, static

from ..flash_attention import operator as dense

DTYPES = (*dense.DTYPES, DType.FP32)
EIGHT_BITS = (DType.FP8_E4M3,)
MAX_KEYS = 2**34  # keys of all tables: the kernels count them by 16 in int32


@dataclass(frozen=True, slots=True)
class Problem:
    """The last T positions of a sequence attend keys, per batch and head; heads / kv_heads heads share one of K, V.

    A page holds `page_size` positions of one sequence, and a table has `max_pages` entries, so that a sequence has at
    most S = max_pages · page_size positions. The actual number is data. The query at position p attends the keys j <= p
    with j < sinks or p - j < window; query i of a sequence of n positions is at p = i + n - T, and attends nothing if p
    is negative. If queries are packed, T counts those of all N sequences, whose numbers are data: with n_q of them,
    query i is at p = i + n - n_q. With an 8-bit cache, keys and values are its elements times k_descale and v_descale,
    one scale per sequence and KV head, if these are passed. Raises UsageError for sizes that no kernel supports.
    """

    head_dim: int = static("D: elements of a head, 8 to 256 in steps of 8", default=128, choices=dense.HEAD_DIMS)
    dtype: DType = static("of q and o", default=DType.BF16, choices=DTYPES)
    kv_cache_dtype: DType = static(
        "of k_cache and v_cache: an 8-bit dtype, or that of q", default=DType.BF16, choices=(*DTYPES, *EIGHT_BITS)
    )
    use_softcap: bool = static("scores x become softcap · tanh(x / softcap)", default=False)
    use_s_aux: bool = static("s_aux, one logit per head, is added to the softmax denominator", default=False)
    use_cu_seqlens_q: bool = static("any number of queries per sequence, packed into one batch entry", default=False)
    batch: int = extent("B: sequences; 1 with packed queries", default=16)
    heads: int = extent("H: query heads", default=32)
    kv_heads: int = extent("HK: heads of K and V, a divisor of heads (0: equal to heads)", default=8)
    seq_q: int = extent("T: queries of a sequence, its last positions; packed: of all", default=1)
    page_size: int = extent("positions of a page, a power of two", default=16)
    max_pages: int = extent("entries of a table", default=512)
    pages: int = extent("pages of the cache (0: the number of entries of all tables)", default=0)
    window: int = extent("W: keys that a query attends up to its own (0: all)", default=0)
    sinks: int = extent("first keys of a sequence that every query attends in addition, 0 or more", default=0)
    sequences: int = extent("N: sequences whose queries are packed (0: batch)", default=0)
    max_seqlen_q: int = extent("queries of the longest packed sequence (0: seq_q)", default=0)
    descales: int = extent("sequences of k_descale and v_descale (0: not passed; otherwise all)", default=0)

    def __post_init__(self) -> None:
        packed = self.use_cu_seqlens_q
        if not self.eight_bits:
            object.__setattr__(self, "kv_cache_dtype", self.dtype)
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        object.__setattr__(self, "sequences", (packed and self.sequences) or self.batch)
        object.__setattr__(self, "max_seqlen_q", packed * min(self.max_seqlen_q or self.seq_q, self.seq_q))
        object.__setattr__(self, "pages", self.pages or self.sequences * self.max_pages)
        object.__setattr__(self, "window", self.window or self.seq_k)
        object.__setattr__(self, "descales", self.sequences if self.descales else 0)
        if refusal := next(_refusals(self), None):
            raise UsageError(refusal)
        dense.check_sizes("paged_attention", self, DTYPES)

    @property
    def eight_bits(self) -> bool:
        """Whether the cache holds 8-bit elements."""
        return self.kv_cache_dtype in EIGHT_BITS

    @property
    def head_dim_v(self) -> int:
        """Columns of V: always head_dim."""
        return self.head_dim

    @property
    def seq_k(self) -> int:
        """S: maximum number of positions per sequence."""
        return self.max_pages * self.page_size

    @property
    def boundaries(self) -> int:
        """Entries of cu_seqlens_q."""
        return (self.sequences + 1) * self.use_cu_seqlens_q

    @property
    def s_aux_heads(self) -> int:
        """Entries of s_aux."""
        return self.heads * self.use_s_aux

    @property
    def longest(self) -> int:
        """Queries of the longest sequence."""
        return self.max_seqlen_q if self.use_cu_seqlens_q else self.seq_q

    @property
    def reach(self) -> int:
        """Maximum number of keys that all queries of a sequence attend together."""
        return self.sinks + self.window + self.longest - 1


def _refusals(problem: Problem) -> Iterator[str]:
    if problem.page_size < 1 or problem.page_size & (problem.page_size - 1):
        yield f"page_size {problem.page_size}: paged_attention supports powers of two"
    for name, minimum in (("max_pages", 1), ("pages", 1), ("window", 1), ("sinks", 0)):
        if not minimum <= getattr(problem, name) <= dense.MAX_SEQ:
            yield f"{name} {getattr(problem, name)}: paged_attention supports {minimum} to {dense.MAX_SEQ}"
    if problem.use_cu_seqlens_q and problem.batch != 1:
        yield f"batch {problem.batch}: cu_seqlens_q packs the queries of all sequences into a batch of 1"
    if problem.eight_bits and problem.head_dim % 16:
        yield f"head_dim {problem.head_dim}: rows of an 8-bit cache are a multiple of 16 bytes"
    if problem.descales and not problem.eight_bits:
        yield f"k_descale, v_descale: they need an 8-bit cache, and this one is {problem.kv_cache_dtype.value}"
    for name in ("sequences", "max_seqlen_q"):
        if getattr(problem, name) < 0:
            yield f"{name} {getattr(problem, name)}: paged_attention supports 1 or more, or 0 for the default"
    if problem.sequences * problem.seq_k > MAX_KEYS:
        yield (
            f"sequences {problem.sequences}, max_pages {problem.max_pages}, page_size {problem.page_size}: too large; "
            f"sequences · max_pages · page_size goes up to {MAX_KEYS}"
        )


def unpacked(problem: Problem) -> Problem:
    """A batch of as many sequences with equal numbers of queries, the mean rounded down, as a stand-in for packed
    queries."""
    if not problem.use_cu_seqlens_q:
        return problem
    batch = min(problem.sequences, problem.seq_q)
    return replace(problem, use_cu_seqlens_q=False, batch=batch, sequences=batch, seq_q=problem.seq_q // batch)


def eight_bits_refusal(problem: Problem) -> str | None:
    """Why a kernel that multiplies tiles as loaded does not support a problem; None if it does."""
    if problem.eight_bits:
        return f"kv_cache_dtype {problem.kv_cache_dtype.value}: operands have 16 bits; use split_keys"
    return None


def optional_constants(problem: Problem) -> dict[str, Scalar]:
    """Constants of templates for packed queries and 8-bit caches: one Descale (descale.cuh) each for keys and
    values."""
    strides = "{0}, {0}_descales_stride, {0}_kv_heads_stride, descales"
    descales = {f"{x}_descales": strides.format(f"{x}_descale") if problem.eight_bits else "" for x in "kv"}
    longest = "max_seqlen_q" if problem.use_cu_seqlens_q else "seq_q"
    return {"longest_argument": longest, **{name: f"Descale{{{values}}}" for name, values in descales.items()}}
