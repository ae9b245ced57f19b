"""paged_attention, forward: a sequence's last queries attend its keys, which lie in pages of a cache."""

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
        doc="pages of each sequence, in the order of its positions; read as far as keys are attended",
    ),
    Argument("cache_seqlens", DType.INT32, ("sequences",), strided="all", doc="positions so far of each sequence"),
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
    "k_descale", DType.FP32, ("descales", "kv_heads"), strided="all", optional="eight_bits", doc="times 8-bit keys"
)
DESCALES = (
    _DESCALE,
    replace(_DESCALE, name="v_descale", doc="times 8-bit values"),
    Argument("descales", DType.INT32, role=Role.SCALAR, optional="eight_bits"),
)


def cost(problem: Problem) -> Cost:
    """Two multiply-adds an element of D and an attended pair; every tensor once, of K and V the keys attended.

    A batch counts as if every sequence had as many positions as its table has pages for; packed queries, as if each had
    equally many.
    """
    equal = unpacked(problem)
    pages = -(-min(equal.seq_k, equal.reach) // problem.page_size)
    total = cost_of(equal, equal.batch * (1 + pages) + problem.boundaries + _floats(problem))
    cached = 2 * equal.batch * min(equal.seq_k, equal.reach) * equal.kv_heads * equal.head_dim
    return replace(total, bytes=total.bytes - cached * (equal.dtype.itemsize - equal.kv_cache_dtype.itemsize))


def _floats(problem: Problem) -> int:
    """Of scales and logits."""
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
    steps of 8, page_size a power of two. Views are taken as they are: the last dim is contiguous and every row starts
    at a multiple of 16 bytes. So a cache [pages, HK, page_size, D] is passed as its transpose(1, 2).
    block_table: int32 [B, max_pages]. Position j of sequence b is row j % page_size of page
    block_table[b, j // page_size]. cache_seqlens: int32 [B], the positions of each sequence, those of q among them; the
    caller has written their keys. Both are read by the kernels: a step with other lengths and pages is the same call.

    A length below 0 counts as 0, one beyond max_pages · page_size as that. Entries of the table for pages in which no
    query attends a key may be anything, and are not read; others must name a page of the cache: nobody checks them.

    cu_seqlens_q: int32 [N + 1], ascending from 0 to T: q is [1, T, H, D], the queries of N sequences behind each other;
    those of sequence b are the rows from entry b to entry b + 1, and tables and lengths are of the N. Their numbers may
    differ and be 0, as where some sequences are in their prompt while others decode. They are read by the kernels: a
    step with other ones is the same call. max_seqlen_q: no sequence has more queries (default T); those beyond it may
    be left out, and by a bound near the truth the right kernel is chosen. Rows that lie in no sequence are not written.

    k_descale, v_descale: fp32 [B, HK], or [N, HK]: keys and values are what 8-bit caches hold times that, or what they
    hold where neither is given. That of keys is 0 or more. D is a multiple of 16 there.

    Query i of T of a sequence of n positions is at p = i + n - T and attends the keys j <= p; with a window, those with
    p - j < window or j < sinks. Where p is negative, o = 0 and lse = -inf. window: 0 for all, sinks: 0 and more.
    softmax_scale: positive, default D ** -0.5. softcap: if positive, scaled scores x become
    softcap · tanh(x / softcap); 0 is none. s_aux: fp32 [H], a logit of each head that joins the denominator of its
    softmax, and counts in lse, as flash_attention has it.

    o has the shape, strides' order and dtype of q; lse is fp32 [B, H, T], the natural logarithm of the sum of the
    exponentials.

    Raises UsageError for a scale that is not positive, a softcap below 0, and a max_seqlen_q below 1 or without
    cu_seqlens_q, and one of k_descale and v_descale alone; InputError for arrays that do not fit.
    """
    scalars = dense.scalars(softmax_scale, softcap)
    if max_seqlen_q is not None and (cu_seqlens_q is None or max_seqlen_q < 1):
        raise UsageError(f"max_seqlen_q {max_seqlen_q}: give it with cu_seqlens_q, 1 and more")
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
    summary="attention of prompts and steps to keys and values in pages of a cache, over sequences of any lengths",
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
