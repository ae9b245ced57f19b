"""Test cases of mla_decode: inputs, edge-case extents, and the reference in float64."""

from collections.abc import Callable

import numpy as np

from tuner.spec import Array, Arrays

from ..flash_attention import cases as dense
from ..paged_attention.cases import paged
from ..streaming_attention.cases import sized
from .problem import Problem

INPUT_KINDS = dense.INPUT_KINDS
Rounding = Callable[[Array], Array]


def inputs(problem: Problem, rng: np.random.Generator, kind: str) -> Arrays:
    """q and k of flash_attention's inputs, with sequence lengths up to the maximum; the keys are stored in pages at
    random positions of the cache.

    Rows of the cache without keys are NaN, and table entries without pages are invalid.
    """
    lengths = _lengths(problem, rng)
    dense_inputs = dense.inputs(problem, rng, kind)  # type: ignore[arg-type]  # only sizes are read
    table, (cache,) = paged(problem, rng, lengths, (dense_inputs["k"][:, :, 0],))  # type: ignore[arg-type]  # as above
    return {
        "q": dense_inputs["q"],
        "kv_cache": cache,
        "block_table": table,
        "cache_seqlens": np.array(lengths, np.int32),
        "softmax_scale": dense_inputs["softmax_scale"],
    }


def _lengths(problem: Problem, rng: np.random.Generator) -> list[int]:
    """In a batch, the first sequence is full, the second has one position, and the last is empty."""
    lengths: list[int] = rng.integers(0, problem.seq_k, problem.batch, endpoint=True).tolist()
    lengths[1:2], lengths[-1] = [1], 0
    return [problem.seq_k, *lengths[1:]][: problem.batch]


def reference(problem: Problem, arrays: Arrays) -> Arrays:
    """o [B, T, H, DV] and lse [B, H, T] in float64, over all pairs of queries and rows."""
    return _attention(problem, arrays, lambda x: x)


def rounded(problem: Problem, arrays: Arrays) -> Arrays:
    """The reference with the probabilities and o rounded to the dtype, as the kernels round them."""
    dtype = problem.dtype.numpy
    return _attention(problem, arrays, lambda x: x.astype(dtype).astype(np.float64))


def _attention(problem: Problem, arrays: Arrays, rounding: Rounding) -> Arrays:
    o = np.zeros((problem.batch, problem.seq_q, problem.heads, problem.head_dim_v))
    lse = np.full((problem.batch, problem.heads, problem.seq_q), -np.inf)
    for b, length in enumerate(np.clip(arrays["cache_seqlens"], 0, problem.seq_k).tolist()):
        if length:
            rows = _rows(problem, arrays, b, length)
            scores = arrays["softmax_scale"] * np.einsum("thd,sd->hts", arrays["q"][b].astype(np.float64), rows)
            position = np.arange(problem.seq_q) + length - problem.seq_q
            scores[:, np.arange(length) > position[:, None]] = -np.inf
            product, lse[b] = _softmax_product(scores, rows[:, : problem.head_dim_v], rounding)
            o[b] = product.swapaxes(0, 1)
    return {"o": rounding(o), "lse": lse}


def _rows(problem: Problem, arrays: Arrays, b: int, length: int) -> Array:
    """The latent rows of a sequence: [length, D]."""
    position = np.arange(length)
    page = arrays["block_table"][b, position // problem.page_size]
    rows: Array = arrays["kv_cache"][page, position % problem.page_size].astype(np.float64)
    return rows


def _softmax_product(scores: Array, values: Array, rounding: Rounding) -> tuple[Array, Array]:
    """Softmax of scores [H, T, S] times values [S, DV], and the logarithms of the sums [H, T]; 0 and -inf
    without rows."""
    peak = np.max(scores, axis=-1, keepdims=True)
    peak = np.where(np.isfinite(peak), peak, 0)
    p = np.exp(scores - peak)
    total = np.sum(p, axis=-1, keepdims=True)
    product = rounding(p) @ values
    with np.errstate(divide="ignore"):
        lse = peak + np.log(total)
    return np.divide(product, total, out=np.zeros_like(product), where=total > 0), lse[..., 0]


def tails(problem: Problem) -> tuple[Problem, ...]:
    """Edge cases with few heads and few pages, since a row is wide; see the comments."""
    shapes = (
        (1, 1, 1, 1, 1),  # one query, one row
        (3, 16, 1, 64, 5),  # a decoding step: a full sequence of several tiles, one of one position, and an empty one
        (2, 5, 3, 8, 9),  # several queries, two of which precede the first position of the second sequence
        (1, 70, 1, 1, 40),  # one row per page; two row tiles
    )
    return sized(problem, ("batch", "heads", "seq_q", "page_size", "max_pages"), shapes, pages=0)
