"""paged_attention, forward: a sequence's last queries attend its keys, which lie in pages of a cache."""

from pathlib import Path
from typing import Any

from tuner.dtype import DType
from tuner.errors import UsageError
from tuner.operator import Argument, Cost, Operator, Request, Role

from ..flash_attention import arguments as dense
from ..streaming_attention.operator import cost_of, tolerance
from .cases import INPUT_KINDS, inputs, reference, rounded, tails
from .problem import Problem

_CACHE = ("pages", "page_size", "kv_heads", "head_dim")
_SCALARS = ("batch", "heads", "kv_heads", "seq_q", "page_size", "max_pages", "window", "sinks")
_SHARED = {argument.name: argument for argument in (*dense.ARGUMENTS, *dense.OPTIONAL)}

ARGUMENTS = (
    _SHARED["q"],
    Argument("k_cache", "dtype", _CACHE, strided=True, doc="rows 16-byte aligned"),
    Argument("v_cache", "dtype", _CACHE, strided=True, doc="rows 16-byte aligned"),
    Argument(
        "block_table",
        DType.INT32,
        ("batch", "max_pages"),
        strided="all",
        doc="pages of each sequence, in the order of its positions; read as far as keys are attended",
    ),
    Argument("cache_seqlens", DType.INT32, ("batch",), strided="all", doc="positions so far of each sequence"),
    _SHARED["o"],
    _SHARED["lse"],
    _SHARED["softmax_scale"],
    *(Argument(name, DType.INT32, role=Role.SCALAR) for name in _SCALARS),
)
SOFTCAP = _SHARED["softcap"]


def cost(problem: Problem) -> Cost:
    """Two multiply-adds an element of D and an attended pair; every tensor once, of K and V the keys attended.

    A batch counts as if every sequence had as many positions as its table has pages for.
    """
    pages = -(-min(problem.seq_k, problem.reach) // problem.page_size)
    return cost_of(problem, problem.batch * (1 + pages))


def paged_attention(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    block_table: Any,
    cache_seqlens: Any,
    *,
    window: int = 0,
    sinks: int = 0,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
) -> Request:
    """Causal attention of each sequence's last T positions to all of its positions so far. Returns (o, lse).

    q: [B, T, H, D]; k_cache, v_cache: [pages, page_size, HK, D], where HK divides H (grouped queries: query head h
    reads head h · HK // H); fp16, bf16 or fp32, the same for all three. D is 8 to 256 in steps of 8, page_size a power
    of two. Views are taken as they are: the last dim is contiguous and every row starts at a multiple of 16 bytes. So a
    cache [pages, HK, page_size, D] is passed as its transpose(1, 2).
    block_table: int32 [B, max_pages]. Position j of sequence b is row j % page_size of page
    block_table[b, j // page_size]. cache_seqlens: int32 [B], the positions of each sequence, those of q among them; the
    caller has written their keys. Both are read by the kernels: a step with other lengths and pages is the same call.

    A length below 0 counts as 0, one beyond max_pages · page_size as that. Entries of the table for pages in which no
    query attends a key may be anything, and are not read; others must name a page of the cache: nobody checks them.

    Query i of a sequence of n positions is at p = i + n - T and attends the keys j <= p; with a window, those with
    p - j < window or j < sinks. Where p is negative, o = 0 and lse = -inf. window: 0 for all, sinks: 0 and more.
    softmax_scale: positive, default D ** -0.5. softcap: if positive, scaled scores x become
    softcap · tanh(x / softcap); 0 is none.

    o has the shape, strides' order and dtype of q; lse is fp32 [B, H, T], the natural logarithm of the sum of the
    exponentials.

    Raises UsageError for a scale that is not positive and a softcap below 0, InputError for arrays that do not fit.
    """
    if softmax_scale is not None and not 0 < softmax_scale < float("inf"):
        raise UsageError(f"softmax_scale {softmax_scale}: must be positive and finite")
    if not 0 <= softcap < float("inf"):
        raise UsageError(f"softcap {softcap}: must be positive and finite, or 0 for none")
    scalars = {} if softmax_scale is None else {"softmax_scale": softmax_scale}
    scalars |= {"softcap": softcap} if softcap > 0 else {}
    arrays = {
        "q": q,
        "k_cache": k_cache,
        "v_cache": v_cache,
        "block_table": block_table,
        "cache_seqlens": cache_seqlens,
    }
    return Request(arrays, {"window": window, "sinks": sinks, "use_softcap": softcap > 0}, scalars)


OPERATOR = Operator(
    name="paged_attention",
    summary="attention of few queries to keys and values in pages of a cache, over sequences of any lengths",
    problem=Problem,
    arguments=(*ARGUMENTS, SOFTCAP),
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
