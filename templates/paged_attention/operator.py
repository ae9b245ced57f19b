"""paged_attention, forward: the last queries of a sequence attend its keys, which are stored in pages of a cache."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from tuner.errors import UsageError
from tuner.spec import Argument, Cost, DType, Operator, Request, Role

from ..flash_attention import arguments as dense
from ..flash_attention.operator import tolerance
from ..streaming_attention.operator import cost_of
from .cases import INPUT_KINDS, inputs, reference, rounded, tails
from .problem import Problem, unpacked

_CACHE = ("pages", "page_size", "kv_heads", "head_dim")
_SCALARS = ("batch", "heads", "kv_heads", "seq_q", "page_size", "max_pages", "window", "sinks", "sequences")
_SHARED = {argument.name: argument for argument in (*dense.ARGUMENTS, *dense.OPTIONAL)}

ARGUMENTS = (
    _SHARED["q"],
    Argument("k_cache", "kv_cache_dtype", _CACHE, strided=True, doc="rows 16-byte aligned"),
    Argument("v_cache", "kv_cache_dtype", _CACHE, strided=True, doc="rows 16-byte aligned"),
    Argument(
        "block_table",
        DType.INT32,
        ("sequences", "max_pages"),
        strided="all",
        doc="pages of each sequence, in the order of its positions; only entries of attended keys are read",
    ),
    Argument("cache_seqlens", DType.INT32, ("sequences",), strided="all", doc="number of positions of each sequence"),
    _SHARED["o"],
    _SHARED["lse"],
    _SHARED["softmax_scale"],
    *(Argument(name, DType.INT32, role=Role.SCALAR) for name in _SCALARS),
)
SOFTCAP = _SHARED["softcap"]
S_AUX = _SHARED["s_aux"]
PACKED = (
    replace(_SHARED["cu_seqlens_q"], optional="use_cu_seqlens_q"),
    Argument("max_seqlen_q", DType.INT32, role=Role.SCALAR, optional="use_cu_seqlens_q"),
)

_DESCALE = Argument(
    "k_descale", DType.FP32, ("descales", "kv_heads"), strided="all", optional="eight_bits", doc="multiplies 8-bit keys"
)
DESCALES = (
    _DESCALE,
    replace(_DESCALE, name="v_descale", doc="multiplies 8-bit values"),
    Argument("descales", DType.INT32, role=Role.SCALAR, optional="eight_bits"),
)


def cost(problem: Problem) -> Cost:
    """Two multiply-adds per element of D and attended pair; every tensor is moved once, of K and V only the attended
    keys.

    A batch counts as if every table were full, and packed queries as if each sequence had the same number.
    """
    equal = unpacked(problem)
    pages = -(-min(equal.seq_k, equal.reach) // problem.page_size)
    total = cost_of(equal, equal.batch * (1 + pages) + problem.boundaries + _floats(problem))
    cached = 2 * equal.batch * min(equal.seq_k, equal.reach) * equal.kv_heads * equal.head_dim
    return replace(total, bytes=total.bytes - cached * (equal.dtype.itemsize - equal.kv_cache_dtype.itemsize))


def _floats(problem: Problem) -> int:
    """Number of scales and logits."""
    return 2 * problem.descales * problem.kv_heads + problem.s_aux_heads


def paged_attention(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    block_table: Any,
    cache_seqlens: Any,
    cu_seqlens_q: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    s_aux: Any = None,
    *,
    window: int = 0,
    sinks: int = 0,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    max_seqlen_q: int | None = None,
) -> Request:
    """Causal attention of each sequence's last T positions to all of its positions so far. Returns (o, lse).

    q: [B, T, H, D]; k_cache, v_cache: [pages, page_size, HK, D], where HK divides H (grouped queries: query head h
    reads head h · HK // H); fp16, bf16 or fp32, the same for all three, or fp8_e4m3 for both caches. D is 8 to 256 in
    steps of 8, page_size a power of two. Strided views are used without a copy: the last dim must be contiguous, and
    every row must start at a multiple of 16 bytes. A cache [pages, HK, page_size, D] is therefore passed as its
    transpose(1, 2). block_table: int32 [B, max_pages]. Position j of sequence b is row j % page_size of page
    block_table[b, j // page_size]. cache_seqlens: int32 [B], the number of positions of each sequence, including those
    of q, whose keys the caller has written. The kernels read both on the device, so that other lengths and pages need
    no new call signature.

    A negative length counts as 0, and one above max_pages · page_size as that. Table entries of pages in which no query
    attends a key may have any value and are not read; the others must be valid pages of the cache, which is not
    checked.

    cu_seqlens_q: int32 [N + 1], ascending from 0 to T: q is [1, T, H, D], the packed queries of N sequences; those of
    sequence b are the rows entry b to entry b + 1, and tables and lengths have N entries. Numbers of queries may differ
    and may be 0, as in batches that mix prefill and decoding. The kernels read them on the device, so that other
    numbers need no new call signature. max_seqlen_q: upper bound on the queries of a sequence (default T); queries
    beyond it may be skipped, and a tight bound helps to choose the right kernel. Rows outside all sequences are not
    written.

    k_descale, v_descale: fp32 [B, HK], or [N, HK]: keys and values are the elements of the 8-bit caches times these, or
    the elements themselves if neither is passed. k_descale must not be negative. D must be a multiple of 16 with 8-bit
    caches.

    Query i of T of a sequence of n positions is at p = i + n - T and attends the keys j <= p; with a window, those with
    p - j < window or j < sinks. If p is negative, o = 0 and lse = -inf. window: 0 for all, sinks: 0 or more.
    softmax_scale: positive, default D ** -0.5. softcap: if positive, scaled scores x become softcap · tanh(x /
    softcap); 0 disables it. s_aux: fp32 [H], one logit per head, added to the softmax denominator and included in lse,
    as in flash_attention.

    o has the shape, order of strides and dtype of q; lse is fp32 [B, H, T], the natural logarithm of the sum of the
    exponentials.

    Raises UsageError for a scale that is not positive, a softcap below 0, a max_seqlen_q below 1 or without
    cu_seqlens_q, and for only one of k_descale and v_descale; InputError for arrays that do not fit.
    """
    scalars = dense.scalars(softmax_scale, softcap)
    if max_seqlen_q is not None and (cu_seqlens_q is None or max_seqlen_q < 1):
        raise UsageError(f"max_seqlen_q {max_seqlen_q}: pass it with cu_seqlens_q, 1 or more")
    if (k_descale is None) != (v_descale is None):
        raise UsageError("k_descale and v_descale go together: pass both or neither")
    arrays = {
        "q": q,
        "k_cache": k_cache,
        "v_cache": v_cache,
        "block_table": block_table,
        "cache_seqlens": cache_seqlens,
    }
    statics: dict[str, Any] = {"window": window, "sinks": sinks, "use_softcap": "softcap" in scalars}
    if cu_seqlens_q is not None:
        arrays |= {"cu_seqlens_q": cu_seqlens_q}
        statics |= {"use_cu_seqlens_q": True, "max_seqlen_q": max_seqlen_q or 0}
    if s_aux is not None:
        arrays |= {"s_aux": dense.given_logits(s_aux, block_table, 1)}
        statics |= {"use_s_aux": True}
    if k_descale is not None:
        arrays |= {"k_descale": k_descale, "v_descale": v_descale}
    return Request(arrays, statics, scalars)


OPERATOR = Operator(
    name="paged_attention",
    summary="attention of prefill and decoding to keys and values in pages of a cache, over sequences of any lengths",
    problem=Problem,
    arguments=(*ARGUMENTS, SOFTCAP, *PACKED, *DESCALES, S_AUX),
    inputs=inputs,
    input_kinds=INPUT_KINDS,
    reference=reference,
    rounded=rounded,
    tolerance=tolerance,
    cost=cost,
    tails=tails,
    call=paged_attention,
    folder=Path(__file__).parent,
)
