"""What flash_attention is tried on: inputs, extents that hit every edge, and the results in float64."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from tuner.errors import UsageError
from tuner.spec import Array, Arrays, DType, Precision, normal

from .problem import Problem, first_keys, visible_keys

INPUT_KINDS = ("normal", "large_logits", "equal_keys", "one_hot")
SOFTCAP = 3.0  # of inputs: near enough that N(0, 1) scores are bent, and large ones end at the cap


def optional_inputs(problem: Problem, rng: np.random.Generator, kind: str) -> Arrays:
    """`inputs`, where packed sequences begin, the softcap, and logits s_aux from N(0, 1)."""
    arrays = inputs(problem, rng, kind)
    return arrays | {
        "cu_seqlens_q": _boundaries(problem, rng, problem.seq_q, problem.max_seqlen_q, of_keys=False),
        "cu_seqlens_k": _boundaries(problem, rng, problem.seq_k, problem.seq_k, of_keys=True),
        "softcap": SOFTCAP,
        "s_aux": normal(rng, (problem.s_aux_heads,), np.float32),
    }


def inputs(problem: Problem, rng: np.random.Generator, kind: str) -> Arrays:
    """q, k, v of one kind, and the scale; of the problem only sizes and dtype are read.

    normal: N(0, 1). large_logits: scores of standard deviation 50, so that one key takes nearly all. equal_keys: every
    visible key counts the same, so that o and lse give away a mask that is off by one. one_hot: query i finds the keys
    that equal i modulo head_dim, so that any confusion of rows or columns shows.
    """
    dtype = problem.dtype.numpy
    of_queries = (problem.batch, problem.seq_q, problem.heads, problem.head_dim)
    of_keys = (problem.batch, problem.seq_k, problem.kv_heads, problem.head_dim)
    of_values = (*of_keys[:3], problem.head_dim_v)
    wide = dtype if kind == "normal" else np.float64  # until it is what the kind wants
    q, k, v = (normal(rng, shape, wide) for shape in (of_queries, of_keys, of_values))
    if kind == "large_logits":
        q *= 50
    elif kind == "equal_keys":
        k[:] = k[:, :1]
    elif kind == "one_hot":
        q[:] = 16 * _one_hot(problem.seq_q, problem.head_dim)[None, :, None, :]
        k[:] = _one_hot(problem.seq_k, problem.head_dim)[None, :, None, :]
    elif kind != "normal":
        raise UsageError(f"inputs {kind!r}: flash_attention has {', '.join(INPUT_KINDS)}")
    scale = 1.0 if kind == "one_hot" else problem.head_dim**-0.5
    return {"q": q.astype(dtype), "k": k.astype(dtype), "v": v.astype(dtype), "softmax_scale": scale}


def _one_hot(rows: int, columns: int) -> Array:
    return np.eye(columns)[np.arange(rows) % columns]


def _boundaries(problem: Problem, rng: np.random.Generator, rows: int, longest: int, *, of_keys: bool) -> Array:
    """Random lengths up to `longest`. The first sequence has one query; of three and more the second has none, of four
    and more the last no key."""
    N = problem.sequences
    if not problem.use_cu_seqlens:
        return np.zeros(0, np.int32)
    if N * longest < rows:
        raise UsageError(f"max_seqlen_q {longest}: {N} sequences of no more queries each have less than {rows}")
    inner = np.sort(rng.integers(1, rows + 1, N - 1))
    if of_keys:
        inner[2:][-1:] = rows
    else:
        inner[:2] = 1
    boundaries = np.concatenate([[0], inner, [rows]])
    if np.max(np.diff(boundaries)) > longest:
        boundaries = np.linspace(0, rows, N + 1).astype(int)
    return boundaries.astype(np.int32)


def reference(problem: Problem, arrays: Arrays) -> Arrays:
    """o [B, T, H, DV] and lse [B, H, T] in float64."""
    return _attention(problem, arrays, rounded=False)


def rounded(problem: Problem, arrays: Arrays) -> Arrays:
    """The reference with the probabilities and o rounded to the dtype, as the kernels round them; in tf32 q, k and v
    are rounded to that, which outweighs the probabilities."""
    if problem.precision is Precision.TF32:
        arrays = dict(arrays) | {name: round_tf32(arrays[name]) for name in ("q", "k", "v")}
    return _attention(problem, arrays, rounded=True)


def _attention(problem: Problem, arrays: Arrays, *, rounded: bool) -> Arrays:
    options: dict[str, Any] = {"rounded": rounded, "softcap": arrays["softcap"] if problem.use_softcap else 0.0}
    options["s_aux"] = arrays["s_aux"] if problem.use_s_aux else None
    if not problem.use_cu_seqlens:
        return attention(problem, arrays, visibility(problem), **options)
    o = np.zeros((1, problem.seq_q, problem.heads, problem.head_dim_v))
    lse = np.full((1, problem.heads, problem.seq_q), -np.inf)
    if problem.use_s_aux:  # of sequences without keys, too
        lse[:] = arrays["s_aux"][:, None]
    for one, queries, keys in sequences(problem, arrays):
        alone = {"q": arrays["q"][:, queries], "k": arrays["k"][:, keys], "v": arrays["v"][:, keys]}
        result = attention(one, arrays | alone, visibility(one), **options)
        o[:, queries], lse[:, :, queries] = result["o"], result["lse"]
    return {"o": o, "lse": lse}


def sequences(problem: Problem, arrays: Arrays) -> Iterator[tuple[Problem, slice, slice]]:
    """(problem, rows of Q, rows of K) of each packed sequence that has queries and keys."""
    bounds = (pairwise(arrays[name].tolist()) for name in ("cu_seqlens_q", "cu_seqlens_k"))
    for (first, end), (first_key, end_key) in zip(*bounds, strict=True):
        if end > first and end_key > first_key:
            one = replace(problem, use_cu_seqlens=False, seq_q=end - first, seq_k=end_key - first_key)
            yield one, slice(first, end), slice(first_key, end_key)


def attention(
    problem: Any, arrays: Arrays, visible: Array, *, rounded: bool, softcap: float = 0.0, s_aux: Array | None = None
) -> Arrays:
    """o and lse in float64, where query i attends the keys j with visible[i, j]; `visible` is boolean [T, S].

    s_aux: a logit of each head that joins the softmax's denominator, [H].
    """
    logits = np.full(problem.heads, -np.inf) if s_aux is None else s_aux.astype(np.float64)
    q, k, v = (arrays[name].astype(np.float64) for name in ("q", "k", "v"))
    scale = arrays.get("softmax_scale", problem.head_dim**-0.5)
    group = problem.heads // problem.kv_heads
    o = np.zeros((problem.batch, problem.seq_q, problem.heads, v.shape[-1]))
    lse = np.zeros((problem.batch, problem.heads, problem.seq_q))
    for b, h in np.ndindex(problem.batch, problem.heads):
        scores = scale * q[b, :, h] @ k[b, :, h // group].T
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        masked = np.where(visible, scores, -np.inf)
        dtype = problem.dtype if rounded else None
        o[b, :, h], lse[b, h] = _softmax_product(masked, v[b, :, h // group], float(logits[h]), dtype)
    return {"o": _round(o, problem.dtype) if rounded else o, "lse": lse}


def _softmax_product(scores: Array, v: Array, logit: float, rounded: DType | None) -> tuple[Array, Array]:
    """Softmax of scores [T, S], and of one logit more whose value is 0, times v [S, DV], and the logarithms of the sums
    [T]; P is rounded to a dtype if any."""
    peak = np.maximum(np.max(scores, axis=1, keepdims=True), logit)
    shift = np.where(np.isfinite(peak), peak, 0)
    p = np.exp(scores - shift)
    total = np.sum(p, axis=1, keepdims=True) + np.exp(logit - shift)
    product = (_round(p, rounded) if rounded else p) @ v
    with np.errstate(divide="ignore"):
        lse = np.where(np.isfinite(peak), peak, 0) + np.log(total)
    return np.divide(product, total, out=np.zeros_like(product), where=total > 0), lse[:, 0]


def _round(x: Array, dtype: DType) -> Array:
    return x.astype(dtype.numpy).astype(np.float64)


def round_tf32(x: Array) -> Array:
    """The tf32 nearest to each element, ties away from zero: an fp32 of finite elements."""
    bits: Array = (x.astype(np.float32).view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return bits.view(np.float32)


def visibility(problem: Problem) -> Array:
    """Whether each query attends each key: bool [T, S]."""
    key = np.arange(problem.seq_k)
    visible: Array = (key < visible_keys(problem)[:, None]) & (key >= first_keys(problem)[:, None])
    return visible


def tails(problem: Problem) -> tuple[Problem, ...]:
    """One row; both sequences off every tile size; more queries than keys (causal: rows that attend none); GQA. Packed:
    sequences of one query, of none and without keys, and a longest one that is known. With a window of each kind."""
    dense = (
        (1, 1, 1, 1, 1),
        (1, 2, 1, 1, 77),
        (1, 1, 1, 63, 200),
        (1, 1, 1, 200, 63),
        (2, 4, 2, 130, 130),
    )
    packed = (
        (1, 1, 1, 1, 1, 2, 0),
        (1, 1, 1, 63, 200, 3, 0),
        (1, 2, 1, 200, 150, 7, 0),
        (1, 4, 2, 130, 131, 4, 50),
    )
    names = ("batch", "heads", "kv_heads", "seq_q", "seq_k", "boundaries", "max_seqlen_q")
    shapes: tuple[tuple[int, ...], ...] = packed if problem.use_cu_seqlens else dense
    extents: list[dict[str, Any]] = [dict(zip(names, shape, strict=False)) for shape in shapes]
    if problem.use_window:
        extents = [{**value, **window} for value, window in zip(extents, _WINDOWS, strict=False)]
    return tuple(replace(problem, **sizes) for sizes in extents)


# A query's own key; all to one side; narrower than a tile; across one; and the widest last.
_WINDOWS = tuple(
    {"window_left": left, "window_right": right} for left, right in ((0, 0), (3, -1), (17, 5), (40, 33), (-1, 9))
)
