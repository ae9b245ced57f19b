"""Attention with the signature of torch's scaled_dot_product_attention, and that function itself within a context.

    from tuner.torch import scaled_dot_product_attention  # in place of torch.nn.functional

    with tuner.torch.sdpa():  # code that calls torch's, as torch.nn.MultiheadAttention does
        y = model(x)

What is not supported torch computes, with one warning for each reason.
"""

import math
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tuner.errors import UsageError
from tuner.torch.flash import flash_attn_func, flash_attn_varlen_func

_THEIRS = torch.nn.functional.scaled_dot_product_attention
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


class FallbackWarning(UserWarning):
    """A call is computed by torch instead of these kernels; the text states the reason."""


class _UnservedError(UsageError):
    """The call is left to torch's own function, which computes it or raises its error."""


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """softmax(scale · query keyᵀ) value with the arguments and results of torch's function. Returns [..., H, T, DV].

    query: [..., H, T, D]; key: [..., H, S, D]; value: [..., H, S, DV]. With enable_gqa, key and value have HK heads,
    each of which serves H / HK query heads. The dtype is fp16, bf16 or fp32; nested tensors in the jagged layout are
    accepted. is_causal is aligned at the first query and key, as in torch: query i attends keys 0 … i
    (`flash_attn_func` aligns it at the last ones).

    attn_mask: a padding mask [B, 1, 1, S], equal for all heads and queries, as booleans or as numbers that are 0 or
    -inf; or the causal mask. Inside torch.autocast the tensors are cast as torch casts them. Gradients flow to query,
    key and value.

    torch computes calls with other masks, dropout, or unsupported shapes and dtypes; a FallbackWarning states each
    reason once. In a graph, where mask values cannot be read, torch computes every masked call, without a warning.
    Calls that torch refuses are refused here, too. Outside of graphs, the result has the strides of torch's result.
    """
    q, k, v = _autocast(query, key, value)
    try:
        if dropout_p:
            raise _UnservedError("dropout_p is not supported")
        if query.is_nested:
            return _jagged(q, k, v, attn_mask, {"softmax_scale": scale, "causal": is_causal}, enable_gqa=enable_gqa)
        o = _dense(q, k, v, attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
        heads_last = _heads_last(q, k, v, attn_mask, is_causal=is_causal, enable_gqa=enable_gqa)
        return o.transpose(-2, -3).contiguous().transpose(-2, -3) if heads_last else o.contiguous()
    except UsageError as error:
        if not torch.compiler.is_compiling():
            _warn(str(error))
    return _THEIRS(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


@contextmanager
def sdpa() -> Iterator[None]:
    """Replace torch.nn.functional.scaled_dot_product_attention by the function above within the context, for this
    thread.

    Modules that call it, including those of torch.nn, need no change. Other threads are unaffected, and this thread
    gets torch's function back when the context ends, also after an exception.
    """
    _inside.depth = getattr(_inside, "depth", 0) + 1
    with _LOCK:
        _before.append(torch.nn.functional.scaled_dot_product_attention)
        torch.nn.functional.scaled_dot_product_attention = _asks
    try:
        with _Calls():
            yield
    finally:
        _inside.depth -= 1
        with _LOCK:
            if len(_before) == 1:
                torch.nn.functional.scaled_dot_product_attention = _before[0]
            _before.pop()


_inside = threading.local()
_before: list[Any] = []  # for each open context of any thread, the function to restore; the first one is restored last
_LOCK = threading.Lock()


@wraps(_THEIRS)
def _asks(*args: Any, **kwargs: Any) -> Any:
    """torch's functions call this one if a mode overrides them; they disable the mode first."""
    return (scaled_dot_product_attention if getattr(_inside, "depth", 0) else _THEIRS)(*args, **kwargs)


class _Calls(TorchFunctionMode):  # type: ignore[misc, unused-ignore]  # torch may be absent
    """Serve callers that imported the function by name. Without a mode, torch's modules bypass it in eval()."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        ours = scaled_dot_product_attention if func is _THEIRS else func
        return ours(*args, **(kwargs or {}))


@cache
def _warn(reason: str) -> None:
    warnings.warn(f"scaled_dot_product_attention: torch computes it: {reason}", FallbackWarning, stacklevel=4)


def _autocast(*given: Any) -> Any:
    device = given[0].device.type
    if not torch.is_autocast_enabled(device):
        return given
    dtype = torch.get_autocast_dtype(device)
    return tuple(
        tensor.to(dtype) if tensor.is_floating_point() and tensor.dtype != torch.float64 else tensor for tensor in given
    )


def _heads_last(q: Any, k: Any, v: Any, attn_mask: Any, *, is_causal: bool, enable_gqa: bool) -> bool:
    """Return whether torch's result would be [..., T, H, DV] in memory. Its matrix products return a contiguous tensor,
    its flash attention one with the strides of query. In a graph the kernels' own result is returned without a copy.
    """
    if torch.compiler.is_compiling():
        return True
    choice = torch._fused_sdp_choice(q, k, v, attn_mask, 0.0, is_causal, enable_gqa=enable_gqa)
    return choice != 0 and not q.is_contiguous() and q.transpose(-2, -3).is_contiguous()


def _scaled(query: Any, scale: float | None) -> tuple[Any, float | None]:
    """Return queries and a positive scale, as the kernels require."""
    if scale is None or scale > 0:
        return query, scale
    return (query * scale, 1.0) if scale == 0 else (-query, -scale)


def _dense(
    query: Any, key: Any, value: Any, attn_mask: Any, *, is_causal: bool, scale: float | None, enable_gqa: bool
) -> Any:
    lead = query.shape[:-3]
    if is_causal and scale is not None and scale <= 0:  # torch's kernels also multiply masked elements
        raise _UnservedError("is_causal with a scale of 0 and less is not supported")
    query, scale = _scaled(query, scale)
    q, k, v = _rows(query, key, value, enable_gqa=enable_gqa)
    there = None
    if attn_mask is not None:
        if is_causal:
            raise _UnservedError("attn_mask beside is_causal is not supported")
        there, is_causal = _read(attn_mask, (*query.shape[:-1], key.shape[-2]))
    options: dict[str, Any] = {"softmax_scale": scale}
    if there is not None:
        o = _padded(q, k, v, there.expand(*lead, -1, -1).reshape(q.shape[0], key.shape[-2]), options)
    elif is_causal:
        o = _causal(q, k, v, options)
    else:
        o = flash_attn_func(q, k, v, **options)
    o = o.transpose(1, 2)
    return o.reshape(*query.shape[:-1], o.shape[-1]) if len(lead) != 1 else o


def _rows(query: Any, key: Any, value: Any, *, enable_gqa: bool) -> tuple[Any, ...]:
    """Return the three as [B, T, H, D], [B, S, HK, D] and [B, S, HK, DV]."""
    given = query, key, value
    if any(tensor.ndim < 3 for tensor in given) or len({tensor.shape[:-3] for tensor in given}) > 1:
        raise _UnservedError("tensors of two dims, and batches that are not the same, are not supported")
    if len({tensor.dtype for tensor in given}) > 1 or query.dtype not in _DTYPES:
        raise _UnservedError(f"{query.dtype}, {key.dtype} and {value.dtype} are not supported")
    heads, kv_heads = query.shape[-3], key.shape[-3]
    if (heads != kv_heads and not enable_gqa) or value.shape[-3] != kv_heads or heads % kv_heads:
        raise _UnservedError(
            f"{heads} heads of query, {kv_heads} of key and {value.shape[-3]} of value are not supported"
        )
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise _UnservedError("sizes of query, key and value that do not fit are not supported")
    return tuple(x.reshape(math.prod(x.shape[:-3]), *x.shape[-3:]).transpose(1, 2) for x in given)


def _causal(q: Any, k: Any, v: Any, options: Mapping[str, Any]) -> Any:
    """Causal attention aligned at the first query and key: surplus keys are not attended, and surplus queries attend
    all keys.
    """
    queries, keys = q.shape[1], k.shape[1]
    square = flash_attn_func(q[:, :keys], k[:, :queries], v[:, :queries], causal=True, **options)
    if queries <= keys:
        return square
    return torch.cat([square, flash_attn_func(q[:, keys:], k, v, **options)], dim=1)


def _padded(q: Any, k: Any, v: Any, there: Any, options: Mapping[str, Any]) -> Any:
    """Attend only the keys for which `there`, bool [B, S], is True."""
    batch, queries = q.shape[:2]
    of_queries = torch.arange(batch + 1, dtype=torch.int32, device=q.device) * queries
    of_keys = torch.nn.functional.pad(there.sum(1).cumsum(0, dtype=torch.int32), (1, 0))
    rows = q.flatten(0, 1), k[there], v[there]
    o = flash_attn_varlen_func(*rows, of_queries, of_keys, queries, k.shape[1], **options)
    return o.unflatten(0, (batch, queries))


def _read(attn_mask: Any, shape: tuple[int, ...]) -> tuple[Any, bool]:
    """Return the attended keys, bool [..., 1 or H, S] or None, and whether the mask is the causal one."""
    if torch.compiler.is_compiling():
        raise _UnservedError("attn_mask in a graph is not supported")
    if attn_mask.requires_grad:
        raise _UnservedError("attn_mask with a gradient is not supported")
    visible = attn_mask
    if attn_mask.dtype != torch.bool:
        visible = attn_mask == 0
        if not bool((visible | (attn_mask == -torch.inf)).all()):
            raise _UnservedError("attn_mask with numbers but 0 and -inf is not supported")
    if 0 in shape or visible.ndim < 2 or not _broadcasts(visible.shape, shape):
        raise _UnservedError(f"attn_mask {[*attn_mask.shape]} is not supported")
    visible = visible.reshape(*[1] * (len(shape) - visible.ndim), *visible.shape)
    if visible.shape[-1] == shape[-1] and bool((visible == visible[..., :1, :1, :]).all()):
        return visible[..., 0, 0, :].unsqueeze(-2).expand(*visible.shape[:-3], 1, shape[-1]), False
    causal = torch.ones(shape[-2:], dtype=torch.bool, device=visible.device).tril()
    if visible.shape[-2:] == causal.shape and bool((visible == causal).all()):
        return None, True
    raise _UnservedError("attn_mask other than keys that are not there, and the causal one, is not supported")


def _broadcasts(mask: Any, shape: tuple[int, ...]) -> bool:
    fits = (size in (1, other) for size, other in zip(reversed(mask), reversed(shape), strict=False))
    return len(mask) <= len(shape) and all(fits)


def _jagged(query: Any, key: Any, value: Any, attn_mask: Any, options: Mapping[str, Any], *, enable_gqa: bool) -> Any:
    """Attention over sequences of different lengths: [B, H, T, D] with a different T per sequence."""
    given = query, key, value
    if attn_mask is not None or any(not tensor.is_nested or tensor.layout != torch.jagged for tensor in given):
        raise _UnservedError(
            "nested tensors with attn_mask, in another layout than jagged, or beside dense ones, are not supported"
        )
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise _UnservedError(f"{query.shape[1]} heads of query and {key.shape[1]} of key are not supported")
    rows = tuple(tensor.transpose(1, 2) for tensor in given)
    q_bounds, k_bounds = rows[0].offsets(), rows[1].offsets()
    if any(row.lengths() is not None for row in rows):
        raise _UnservedError("nested tensors with gaps are not supported")
    if options["causal"] and q_bounds is not k_bounds and not torch.equal(q_bounds, k_bounds):
        raise _UnservedError("is_causal of nested tensors with more keys than queries, or fewer, is not supported")
    queries, keys = (int(bounds.diff().max()) for bounds in (q_bounds, k_bounds))
    q, k, v = (row.values() for row in rows)
    o = flash_attn_varlen_func(q, k, v, q_bounds.int(), k_bounds.int(), queries, keys, **options)
    return torch.nested.nested_tensor_from_jagged(o, offsets=q_bounds).transpose(1, 2)
