"""Attention over a KV cache by the signature of the flash-attn package, so that swapping is one import.

    from tuner.torch import flash_attn_with_kvcache  # in place of flash_attn

Caches in pages are the operator `paged_attention`, others `streaming_attention`.
"""

from collections.abc import Mapping
from typing import Any

import torch

from tuner.errors import InputError
from tuner.torch.rows import addressable, dense
from tuner.torch.unserved import refuse


def flash_attn_with_kvcache(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    k: Any = None,
    v: Any = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    cache_seqlens: Any = None,
    cache_batch_idx: Any = None,
    cache_leftpad: Any = None,
    block_table: Any = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,  # noqa: ARG001  # only said with rotary_cos, which is refused
    alibi_slopes: Any = None,
    num_splits: int = 0,  # noqa: ARG001  # the tuner's to choose
    return_softmax_lse: bool = False,
    *,
    k_descale: Any = None,
    v_descale: Any = None,
) -> Any:
    """Attention of q to the keys in a cache, with the arguments and defaults of flash-attn's function of this name.

    q: [B, T, H, D], the last T positions of each sequence. k_cache, v_cache: [B, S, HK, D], or with block_table, int32
    [B, max_pages], [pages, page_size, HK, D]; page_size is any power of two. cache_seqlens: positions that the caches
    hold, int32 [B] or one number (default: all that they have room for). k, v: [B, N, HK, D], the N positions behind
    those, which are put into the caches in place, where there must be room; without them the caches hold the positions
    of q already. causal is aligned at the bottom right. window_size: (left, right), -1 for no limit; right is 0 where
    causal, and otherwise 0 or, with left, -1.

    k_descale, v_descale: fp32 [B, HK] of any strides, as FlashAttention-3 has them: what the keys and values of caches
    of torch.float8_e4m3fn in pages are multiplied with (default: 1). There k and v come as they are stored, and q is of
    16 bits.

    Returns o as q, and with return_softmax_lse (o, lse fp32 [B, H, T]). It has no gradient.

    Raises InputError for rotary embeddings, ALiBi, cache_batch_idx, cache_leftpad, and a softcap or an 8-bit cache
    without block_table, which are not served, and for tensors that do not fit.
    """
    unserved = {"rotary_cos": rotary_cos, "rotary_sin": rotary_sin, "cache_batch_idx": cache_batch_idx}
    unserved |= {"cache_leftpad": cache_leftpad, "alibi_slopes": alibi_slopes}
    refuse("flash_attn_with_kvcache", unserved, "flash_attn's")
    lengths = _lengths(q, k_cache, cache_seqlens, block_table)
    if k is not None or v is not None:
        lengths = _append(k, v, k_cache, v_cache, lengths, cache_seqlens, block_table)
    batch, queries, heads, _ = q.shape
    window = _window(window_size, causal or queries == 1)
    shared = window is None  # all queries of a sequence attend all of its keys: they are rows like heads
    given = _beside_heads(q, k_cache.shape[2]) if shared else addressable(q)
    scores = {"softmax_scale": softmax_scale, "softcap": softcap, **descales(k_descale, v_descale)}
    o, lse = _attend(given, k_cache, v_cache, lengths, block_table, window or 0, scores)
    if shared:
        of_heads = (batch, k_cache.shape[2], queries, heads // k_cache.shape[2])
        o = o.view(*of_heads, q.shape[-1]).transpose(1, 2).reshape(q.shape)
        lse = lse.view(of_heads).transpose(2, 3).reshape(batch, heads, queries)
    return (o, lse) if return_softmax_lse else o


def attend_packed(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    block_table: Any,
    lengths: Any,
    cu_seqlens_q: Any,
    max_seqlen_q: int,
    options: Mapping[str, Any],
) -> tuple[Any, Any]:
    """o [T, H, D] and lse [H, T] of N sequences' queries behind each other, q [T, H, D], over caches in pages.

    `options` are paged_attention's: window, softmax_scale, softcap, k_descale, v_descale.
    """
    rows, bounds, longest = addressable(q)[None], dense(cu_seqlens_q), max(int(max_seqlen_q), 1)
    paged = torch.ops.tuner.paged_attention
    o, lse = paged(rows, k_cache, v_cache, block_table, lengths, bounds, max_seqlen_q=longest, **options)
    return o[0], lse[0]


def descales(k_descale: Any, v_descale: Any) -> dict[str, Any]:
    """Both as paged_attention takes them: where one is given, 1 for the other."""
    if k_descale is None and v_descale is None:
        return {}
    ones = torch.ones_like(v_descale if k_descale is None else k_descale)
    return {
        "k_descale": ones if k_descale is None else k_descale,
        "v_descale": ones if v_descale is None else v_descale,
    }


def _window(window_size: tuple[int, int], causal: bool) -> int | None:
    """Keys that a query attends up to its own, 0 for all; None where it attends those behind its own too."""
    left, right = window_size
    if causal or right == 0:
        return left + 1 if left >= 0 else 0
    if left >= 0 or right > 0:
        raise InputError(
            f"flash_attn_with_kvcache: window_size={tuple(window_size)} of several queries without causal is not "
            "served: give causal=True, or (-1, -1)"
        )
    return None


def _beside_heads(q: Any, kv_heads: int) -> Any:
    """q [B, T, H, D] as one query of T · H heads, those of a KV head together: [B, 1, HK · T · H / HK, D]."""
    batch, queries, heads, D = q.shape
    return q.unflatten(2, (kv_heads, -1)).transpose(1, 2).reshape(batch, 1, queries * heads, D)


def _room(cache: Any, block_table: Any) -> int:
    """Positions that a cache has for each sequence."""
    return int(cache.shape[1] if block_table is None else cache.shape[1] * block_table.shape[1])


def _lengths(q: Any, cache: Any, cache_seqlens: Any, block_table: Any) -> Any:
    """Positions that the caches hold, int32 [B]."""
    lengths = _room(cache, block_table) if cache_seqlens is None else cache_seqlens
    if isinstance(lengths, torch.Tensor):
        return lengths
    return torch.full((q.shape[0],), lengths, dtype=torch.int32, device=q.device)


def _append(k: Any, v: Any, k_cache: Any, v_cache: Any, lengths: Any, cache_seqlens: Any, block_table: Any) -> Any:
    """Puts k and v behind what the caches hold, and returns how much they hold then. The device is not waited for."""
    if k is None or v is None or cache_seqlens is None:
        missing = "k" if k is None else "v" if v is None else "cache_seqlens"
        raise InputError(f"flash_attn_with_kvcache: {missing} is missing: give k, v and cache_seqlens together")
    if k.shape != v.shape or k.shape[0] != lengths.shape[0]:
        raise InputError(f"flash_attn_with_kvcache: k {[*k.shape]} and v {[*v.shape]} are not both [B, N, HK, D]")
    at = lengths.long()[:, None] + torch.arange(k.shape[1], device=k.device)  # [B, N]
    if block_table is None:
        rows = torch.arange(k.shape[0], device=k.device)[:, None]
    else:
        page = k_cache.shape[1]
        rows, at = block_table.long().gather(1, at // page), at % page
    _bits(k_cache, k_cache)[rows, at], _bits(v_cache, v_cache)[rows, at] = _bits(k, k_cache), _bits(v, v_cache)
    return lengths + k.shape[1]


def _bits(x: Any, cache: Any) -> Any:
    """What goes into a cache, or the cache itself, as torch indexes it: of 8-bit floats their bytes."""
    if cache.element_size() > 1:
        return x
    if x.dtype != cache.dtype:
        raise InputError(f"flash_attn_with_kvcache: k or v is {x.dtype}: give both as the caches are, {cache.dtype}")
    return x.view(torch.uint8)


def _attend(
    q: Any, k: Any, v: Any, lengths: Any, block_table: Any, window: int, scores: dict[str, Any]
) -> tuple[Any, Any]:
    if block_table is not None:
        paged = torch.ops.tuner.paged_attention
        return paged(q, k, v, block_table, lengths, window=window, **scores)  # type: ignore[no-any-return]
    softcap, eight_bits = scores.pop("softcap"), k.element_size() == 1
    if softcap or eight_bits or "k_descale" in scores:
        what = "softcap" if softcap else f"a cache of {k.dtype}" if eight_bits else "k_descale or v_descale"
        raise InputError(f"flash_attn_with_kvcache: {what} without block_table is not served: put the cache into pages")
    plain, room = torch.ops.tuner.streaming_attention, _room(k, block_table)
    return plain(q, k, v, cache_seqlens=dense(lengths), window=window or room, **scores)  # type: ignore[no-any-return]
