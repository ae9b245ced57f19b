"""Attention with the signature of jax.nn.dot_product_attention, so that swapping is one import.

    from tuner.jax import dot_product_attention  # in place of jax.nn

Padding is expressed in the scores: queries and keys are extended by eight channels, in which a key that the mask
excludes has a score of -1e8. Batches therefore keep their shape and sharding for any lengths.
"""

import math
import warnings
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import tuner.jax
from tuner.errors import InputError

_THEIRS = ("xla", "cudnn")
_STEP = 8  # elements: kernels support head dims that are multiples of it
_LEFT_OUT = 1e8  # subtracted from the score of an excluded key
_LARGEST_FP16 = 3e4  # of a channel; its product with itself is accumulated in fp32
_NO_LIMIT = -1


class FallbackWarning(UserWarning):
    """A call is computed by jax.nn instead of these kernels; the text states the reason."""


class _Limits(NamedTuple):
    """Return the number of keys before and after key i that query i attends; -1 for all."""

    left: int
    right: int


class _Masks(NamedTuple):
    """The keys and queries of each sequence that the arguments of a call include, bool [B or 1, S] and [B, T]."""

    limits: _Limits
    keys: Any
    queries: Any


def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: Any = None,
    key_value_seq_lengths: Any = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
) -> Any:
    """softmax(scale · query keyᵀ) value with the arguments and results of jax.nn's function. Returns [B, T, N, H].

    query: [B, T, N, H]; key, value: [B, S, K, H], where K divides N; or all three without B; fp16, bf16 or fp32, H up
    to 256, and up to 248 with lengths or a mask. is_causal and local_window_size are aligned at the first query and
    key, as jax.nn has it. query_seq_lengths, key_value_seq_lengths: int32 [B]. mask: booleans, True where a key is
    attended, that say the same for all heads and queries, [B or 1, 1, 1, S]; outside of jit also a larger one that says
    so, with or without the causal mask. A query that attends no key gets the mean of all values, as in jax.nn.
    return_residual: returns (o, lse [B, T, N]), lse without a gradient.

    implementation: None serves a call here where that is possible, and by jax.nn with a FallbackWarning, once for each
    reason, where it is not: a bias, other masks, a scale that is traced or not positive, other dtypes and sizes.
    "kerntune" raises InputError there. "xla" and "cudnn" are jax.nn's.
    """
    theirs: dict[str, Any] = {
        "scale": scale,
        "is_causal": is_causal,
        "query_seq_lengths": query_seq_lengths,
        "key_value_seq_lengths": key_value_seq_lengths,
        "local_window_size": local_window_size,
        "return_residual": return_residual,
    }
    if implementation not in (None, "kerntune", *_THEIRS):
        raise InputError(f"implementation {implementation!r}: give None, 'kerntune', {', '.join(map(repr, _THEIRS))}")
    if implementation in _THEIRS:
        return jax.nn.dot_product_attention(query, key, value, bias, mask, implementation=implementation, **theirs)
    try:
        rows = _of_batch(query), _of_batch(key), _of_batch(value)
        _check(*rows, bias, scale)
        masks = _masks(rows, mask, query_seq_lengths, key_value_seq_lengths, local_window_size, is_causal=is_causal)
        o, lse = _attend(*rows, masks, None if scale is None else float(scale))
    except InputError as error:
        if implementation is not None:
            raise
        _warn(str(error))
        return jax.nn.dot_product_attention(query, key, value, bias, mask, **theirs)
    o = o.reshape(jnp.shape(query))
    return (o, lse.reshape(o.shape[:-1])) if return_residual else o


@cache
def _warn(reason: str) -> None:
    warnings.warn(f"dot_product_attention: jax.nn computes it: {reason}", FallbackWarning, stacklevel=4)


def _of_batch(x: Any) -> Any:
    x = jnp.asarray(x)
    return x[None] if x.ndim == 3 else x


def _check(q: Any, k: Any, v: Any, bias: Any, scale: Any) -> None:
    if bias is not None:
        raise InputError("bias is not supported")
    if any(x.ndim != 4 for x in (q, k, v)) or k.shape != v.shape:
        raise InputError(f"query {q.shape}, key {k.shape} and value {v.shape} are not supported")
    if not (scale is None or (isinstance(scale, (int, float, np.number)) and scale > 0)):
        raise InputError("a scale that is traced or not positive is not supported")
    if not k.shape[1]:
        raise InputError("attention without keys is not supported")


# ---- masked keys and queries ----


def _masks(
    rows: tuple[Any, ...], mask: Any, query_lengths: Any, key_lengths: Any, window: Any, *, is_causal: bool
) -> _Masks:
    queries, keys = rows[0].shape[1], rows[1].shape[1]
    there = None if key_lengths is None else jnp.arange(keys) < _lengths(key_lengths, rows[0])
    if mask is not None:
        by_mask, causal = _read(mask, (rows[0].shape[0], rows[0].shape[2], queries, keys))
        there, is_causal = by_mask if there is None else there & by_mask, is_causal or causal
    own = None if query_lengths is None else jnp.arange(queries) < _lengths(query_lengths, rows[0])
    return _Masks(_limits(window, queries, keys, is_causal=is_causal), there, own)


def _lengths(lengths: Any, q: Any) -> Any:
    lengths = jnp.asarray(lengths)
    if lengths.shape != (q.shape[0],) or not jnp.issubdtype(lengths.dtype, jnp.integer):
        raise InputError(f"lengths {lengths.shape} of {lengths.dtype} are not supported: give integers [B]")
    return lengths[:, None]


def _limits(window: Any, queries: int, keys: int, *, is_causal: bool) -> _Limits:
    left, right = (_NO_LIMIT,) * 2 if window is None else (window, window) if isinstance(window, int) else window
    if window is not None and min(left, right) < 0:
        raise InputError(f"local_window_size {window} is not supported: give 0 and more")
    right = 0 if is_causal else right
    return _Limits(_NO_LIMIT if left >= queries - 1 else left, _NO_LIMIT if right >= keys - 1 > 0 else right)


def _read(mask: Any, sizes: tuple[int, ...]) -> tuple[Any, bool]:
    """Return the keys that are attended, bool [B or 1, S], and whether the mask is also causal. sizes: (B, N, T, S)."""
    mask = jnp.asarray(mask)
    shape = (1,) * (4 - mask.ndim) + mask.shape
    if mask.dtype != jnp.bool_ or len(shape) != 4 or any(a not in (1, b) for a, b in zip(shape, sizes, strict=True)):
        raise InputError(f"mask {mask.shape} of {mask.dtype} is not supported")
    mask = jnp.broadcast_to(mask.reshape(shape), (*shape[:3], sizes[3]))
    if shape[1] == shape[2] == 1:
        return mask[:, 0, 0], False
    if isinstance(mask, jax.core.Tracer):
        raise InputError(
            f"a traced mask {mask.shape}, which may differ between heads or queries, is not supported: give [B, 1, 1, "
            "S] "
            "and is_causal or local_window_size"
        )
    seen = np.broadcast_to(np.asarray(mask), (*shape[:2], *sizes[2:]))
    keys = seen[:, :1, -1:]  # of the last query
    causal_mask = np.tri(sizes[2], sizes[3]) > 0
    for causal in (False, True):
        if (seen == (keys & causal_mask if causal else keys)).all():
            return jnp.asarray(keys[:, 0, 0]), causal
    raise InputError("a mask other than keys that are left out, and the causal one, is not supported")


# ---- attention ----


def _attend(q: Any, k: Any, v: Any, masks: _Masks, scale: float | None) -> tuple[Any, Any]:
    """Return o [B, T, N, H] and lse [B, T, N] in key's dtype."""
    head_dim = q.shape[3]
    seen = _seen(q, k, masks)
    scale = head_dim**-0.5 if scale is None else scale
    wide_q, wide_k = (q, k) if masks.keys is None else _with_padding(q, k, masks.keys, scale)
    o, lse = _banded(_padded(wide_q), _padded(wide_k), _padded(v), masks.limits, scale)
    o, lse = o[..., :head_dim], jax.lax.stop_gradient(lse).swapaxes(1, 2)
    if seen is not None:
        mean = jnp.mean(v, axis=1, keepdims=True, dtype=jnp.float32).astype(v.dtype)
        o = jnp.where(seen[..., None, None], o, jnp.repeat(mean, q.shape[2] // k.shape[2], axis=2))
    if masks.queries is not None:
        o = jnp.where(masks.queries[..., None, None], o, 0)
        seen = masks.queries if seen is None else seen & masks.queries
    if seen is not None:
        lse = jnp.where(seen[..., None], lse, -0.7 * float(jnp.finfo(jnp.float32).max))
    return o, lse.astype(k.dtype)


def _seen(q: Any, k: Any, masks: _Masks) -> Any:
    """Return whether each query attends any key, bool [B or 1, T]; None if every query does."""
    queries, keys, (left, right) = q.shape[1], k.shape[1], masks.limits
    if masks.keys is None and (left < 0 or queries <= keys + left):
        return None
    there = jnp.ones((1, keys), bool) if masks.keys is None else masks.keys
    before = jnp.pad(jnp.cumsum(there, axis=1), ((0, 0), (1, 0)))  # number of included keys before each key
    own = np.arange(queries)
    first = np.clip(own - left, 0, keys) if left >= 0 else np.zeros_like(own)
    end = np.clip(own + right + 1, 0, keys) if right >= 0 else np.full_like(own, keys)
    return before[:, end] > before[:, first]


def _with_padding(q: Any, k: Any, there: Any, scale: float) -> tuple[Any, Any]:
    """Extend both by channels, one of which gives queries a product of -1e8 / scale with excluded keys."""
    channel = min(math.sqrt(_LEFT_OUT / scale), _LARGEST_FP16 if q.dtype == jnp.float16 else math.inf)
    score = jnp.where(there, 0, -channel).astype(k.dtype)[:, :, None, None]
    score = jnp.broadcast_to(score, (*k.shape[:3], 1))
    others = ((0, 0), (0, 0), (0, 0), (0, _STEP - 1))
    q_channel = jnp.full((*q.shape[:3], 1), channel, q.dtype)
    return (
        jnp.concatenate([q, jnp.pad(q_channel, others)], axis=3),
        jnp.concatenate([k, jnp.pad(score, others)], axis=3),
    )


def _padded(x: Any) -> Any:
    """Pad the channels of x with zeros to a multiple of 8. They do not change any score or sum."""
    return jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, -x.shape[3] % _STEP))) if x.shape[3] % _STEP else x


def _banded(q: Any, k: Any, v: Any, limits: _Limits, scale: float) -> tuple[Any, Any]:
    """Return o [B, T, N, H] and lse [B, N, T]. Kernels align limits at the last query and key, so keys after those of
    the last query, and queries after those that attend the last key, are removed.
    """
    (left, right), queries = limits, q.shape[1]
    keys = k.shape[1] if right < 0 else min(k.shape[1], queries + right)
    served = queries if left < 0 else min(queries, k.shape[1] + left)
    rows, shift = (q[:, :served], k[:, :keys], v[:, :keys]), keys - served
    if left >= 0 and right == shift == 0 and q.shape[3] == v.shape[3]:
        o, lse = tuner.jax.streaming_attention(*rows, window=left + 1, softmax_scale=scale)
    else:
        window: dict[str, Any] = {
            "window_left": left + shift if left >= 0 else -1,
            "window_right": right - shift if right >= 0 else -1,
        }
        o, lse = tuner.jax.flash_attention(*rows, **window, softmax_scale=scale)
    rest = queries - served
    return jnp.pad(o, ((0, 0), (0, rest), (0, 0), (0, 0))), jnp.pad(lse, ((0, 0), (0, 0), (0, rest)))
