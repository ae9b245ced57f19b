"""Test cases of flash_attention: inputs, edge-case extents, and the reference in float64."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from tuner.errors import UsageError
from tuner.spec import Array, Arrays, DType, Precision, normal

from .problem import Problem, first_keys, visible_keys

INPUT_KINDS = ("normal", "large_logits", "equal_keys", "one_hot")
SOFTCAP = 3.0  # softcap of test inputs: small enough to bend N(0, 1) scores, and large scores saturate


def optional_inputs(problem: Problem, rng: np.random.Generator, kind: str) -> Arrays:
    """`inputs`, plus the boundaries of packed sequences, the softcap, and s_aux logits from N(0, 1)."""
    arrays = inputs(problem, rng, kind)
    return arrays | {
        "cu_seqlens_q": _boundaries(problem, rng, problem.seq_q, problem.max_seqlen_q, of_keys=False),
        "cu_seqlens_k": _boundaries(problem, rng, problem.seq_k, problem.seq_k, of_keys=True),
        "softcap": SOFTCAP,
        "s_aux": normal(rng, (problem.s_aux_heads,), np.float32),
    }


def inputs(problem: Problem, rng: np.random.Generator, kind: str) -> Arrays:
    """q, k, v of one kind, and the scale; only the sizes and dtype of the problem are read.

    normal: N(0, 1). large_logits: scores with a standard deviation of 50, so that one key gets nearly all the weight.
    equal_keys: every visible key has the same weight, so that o and lse reveal a mask that is off by one. one_hot:
    query i matches the keys that equal i modulo head_dim, so that any mix-up of rows or columns shows.
    """
    dtype = problem.dtype.numpy
    query_shape = (problem.batch, problem.seq_q, problem.heads, problem.head_dim)
    key_shape = (problem.batch, problem.seq_k, problem.kv_heads, problem.head_dim)
    value_shape = (*key_shape[:3], problem.head_dim_v)
    wide = dtype if kind == "normal" else np.float64  # float64 until the values of this kind are complete
    q, k, v = (normal(rng, shape, wide) for shape in (query_shape, key_shape, value_shape))
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
    """Offsets of random lengths up to `longest`. The first sequence has one query. With three or more sequences the
    second has no query, and with four or more the last has no key."""
    N = problem.sequences
    if not problem.use_cu_seqlens:
        return np.zeros(0, np.int32)
    if N * longest < rows:
        raise UsageError(f"max_seqlen_q {longest}: {N} sequences of at most that many queries hold fewer than {rows}")
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
    """The reference with the probabilities and o rounded to the dtype, as the kernels round them; with tf32, q, k and v
    are rounded to tf32, whose error exceeds that of the probabilities."""
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
    if problem.use_s_aux:  # including sequences without keys
        lse[:] = arrays["s_aux"][:, None]
    for sequence, queries, keys in sequences(problem, arrays):
        sequence_arrays = {"q": arrays["q"][:, queries], "k": arrays["k"][:, keys], "v": arrays["v"][:, keys]}
        result = attention(sequence, arrays | sequence_arrays, visibility(sequence), **options)
        o[:, queries], lse[:, :, queries] = result["o"], result["lse"]
    return {"o": o, "lse": lse}


def sequences(problem: Problem, arrays: Arrays) -> Iterator[tuple[Problem, slice, slice]]:
    """(problem, rows of Q, rows of K) of each packed sequence that has queries and keys."""
    bounds = (pairwise(arrays[name].tolist()) for name in ("cu_seqlens_q", "cu_seqlens_k"))
    for (first, end), (first_key, end_key) in zip(*bounds, strict=True):
        if end > first and end_key > first_key:
            sequence = replace(problem, use_cu_seqlens=False, seq_q=end - first, seq_k=end_key - first_key)
            yield sequence, slice(first, end), slice(first_key, end_key)


def attention(
    problem: Any, arrays: Arrays, visible: Array, *, rounded: bool, softcap: float = 0.0, s_aux: Array | None = None
) -> Arrays:
    """s_aux: [H], one logit per head, added to the softmax denominator."""
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
    """Softmax of scores [T, S] and one extra logit whose value is 0, times v [S, DV], and the logarithms of the sums
    [T]; P is rounded to `rounded` if a dtype is given."""
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
    """The tf32 value nearest to each element, with ties away from zero, as fp32; the elements must be finite."""
    bits: Array = (x.astype(np.float32).view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return bits.view(np.float32)


def visibility(problem: Problem) -> Array:
    """Whether each query attends each key: bool [T, S]."""
    key = np.arange(problem.seq_k)
    visible: Array = (key < visible_keys(problem)[:, None]) & (key >= first_keys(problem)[:, None])
    return visible


def tails(problem: Problem) -> tuple[Problem, ...]:
    """Edge cases: one row; sequence lengths that are multiples of no tile size; more queries than keys (with causal,
    some rows attend none); GQA. Packed: sequences with one query, without queries and without keys, and a given
    max_seqlen_q. With use_window: one window of each kind."""
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


# Windows of several kinds: the query's own key only; unlimited to one side; narrower than a tile; across tile
# boundaries; unlimited to the left.
_WINDOWS = tuple(
    {"window_left": left, "window_right": right} for left, right in ((0, 0), (3, -1), (17, 5), (40, 33), (-1, 9))
)
