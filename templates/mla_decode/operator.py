"""mla_decode: a sequence's last queries attend latent rows in pages; a row is a key, and its first part is the
value."""

from pathlib import Path
from typing import Any

import numpy as np

from tuner.errors import InputError
from tuner.spec import Argument, Cost, DType, Operator, Request, Role

from ..flash_attention import arguments as dense
from ..flash_attention.operator import tolerance
from .cases import INPUT_KINDS, inputs, reference, rounded, tails
from .problem import Problem, attended_rows

_SCALARS = ("batch", "heads", "seq_q", "page_size", "max_pages")
_SHARED = {argument.name: argument for argument in dense.ARGUMENTS}

ARGUMENTS = (
    _SHARED["q"],
    Argument("kv_cache", "dtype", ("pages", "page_size", "head_dim"), strided=True, doc="rows 16-byte aligned"),
    Argument(
        "block_table",
        DType.INT32,
        ("batch", "max_pages"),
        strided="all",
        doc="pages of each sequence, in the order of its positions; only entries within the sequence are read",
    ),
    Argument("cache_seqlens", DType.INT32, ("batch",), strided="all", doc="number of positions of each sequence"),
    _SHARED["o"],
    _SHARED["lse"],
    _SHARED["softmax_scale"],
    *(Argument(name, DType.INT32, role=Role.SCALAR) for name in _SCALARS),
)


def cost(problem: Problem) -> Cost:
    """Two multiply-adds per element of D and DV and attended pair; every tensor is moved once.

    A batch counts as if every table were full and no two sequences shared a page.
    """
    rows = problem.batch * problem.heads * problem.seq_q
    pairs = problem.batch * problem.heads * int(np.sum(attended_rows(problem)))
    total_dim = problem.head_dim + problem.head_dim_v
    elements = problem.batch * problem.seq_k * problem.head_dim + rows * total_dim
    integers = problem.batch * (1 + problem.max_pages)
    nbytes = problem.dtype.itemsize * elements + 4 * (rows + integers)
    return Cost(flops=2 * total_dim * pairs, bytes=nbytes, items=rows, item="query and head")


def mla_decode(
    q: Any,
    kv_cache: Any,
    block_table: Any,
    cache_seqlens: Any,
    head_dim_v: int = 512,
    *,
    softmax_scale: float | None = None,
) -> Request:
    """Multi-head latent attention with absorbed projections: the last T positions of each sequence attend all its rows
    so far. Returns (o, lse).

    q: [B, T, H, D], the queries times the up-projection of keys, and their rotary part. kv_cache: [pages, page_size,
    D], or as in FlashMLA [pages, page_size, 1, D]; every head reads the same rows. A complete row is a key, and its
    first head_dim_v elements are the value; so o is [B, T, H, head_dim_v], in latent space. fp16, bf16 or fp32, the
    same for both; D and head_dim_v are multiples of 16, D up to 576; page_size is a power of two. Strided views are
    used without a copy: the last dim must be contiguous, and every row must start at a multiple of 16 bytes.
    block_table: int32 [B, max_pages]. Position j of sequence b is row j % page_size of page block_table[b, j //
    page_size]. cache_seqlens: int32 [B], the number of positions of each sequence, including those of q, whose rows the
    caller has written. The kernels read both on the device, so that other lengths and pages need no new call signature.

    A negative length counts as 0, and one above max_pages · page_size as that. Table entries beyond a sequence's length
    may have any value and are not read; the others must be valid pages of the cache, which is not checked.

    Query i of a sequence of n positions is at p = i + n - T and attends the rows j <= p. If p is negative, o = 0 and
    lse = -inf. softmax_scale: positive, default D ** -0.5; DeepSeek models need that of the width before absorption.

    o has the order of strides and dtype of q; lse is fp32 [B, H, T], the natural logarithm of the sum of the
    exponentials.

    Raises UsageError for a scale that is not positive, InputError for arrays that do not fit.
    """
    scalars = dense.scalars(softmax_scale)
    arrays = {
        "q": q,
        "kv_cache": _without_head_dim(kv_cache),
        "block_table": block_table,
        "cache_seqlens": cache_seqlens,
    }
    return Request(arrays, {"head_dim_v": head_dim_v}, scalars)


def _without_head_dim(kv_cache: Any) -> Any:
    """kv_cache as [pages, page_size, D], from a cache that may have a dim of size 1 before the last."""
    shape = tuple(getattr(kv_cache, "shape", ()))
    if len(shape) != 4:
        return kv_cache
    if shape[2] != 1:
        raise InputError(f"kv_cache is [{', '.join(map(str, shape))}]: all heads share its rows, so dim 2 must be 1")
    return kv_cache[:, :, 0]


OPERATOR = Operator(
    name="mla_decode",
    summary="decoding with multi-head latent attention: all heads share paged cache rows, as keys and as values",
    problem=Problem,
    arguments=ARGUMENTS,
    inputs=inputs,
    input_kinds=INPUT_KINDS,
    reference=reference,
    rounded=rounded,
    tolerance=tolerance,
    cost=cost,
    tails=tails,
    call=mla_decode,
    folder=Path(__file__).parent,
)
