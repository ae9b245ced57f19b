"""Attention over a KV cache by the signature of the flash-attn package, so that swapping is one import.

    from tuner.torch import flash_attn_with_kvcache  # in place of flash_attn

Caches in pages are the operator `paged_attention`, others `streaming_attention`. What the functions of this name of
vLLM and SGLang take as well is taken by name.
"""

from collections.abc import Mapping
from typing import Any

import torch

from tuner.errors import InputError
from tuner.torch import noncausal_pages
from tuner.torch.head_padding import padded, scale_of
from tuner.torch.pages import in_powers_of_two, int32, longest_of, with_room
from tuner.torch.results import returned
from tuner.torch.tensor_layout import addressable, dense
from tuner.torch.unsupported_arguments import refuse, refuse_others

_NAME, _THEIRS = "flash_attn_with_kvcache", "flash_attn's"


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
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,  # noqa: ARG001  # only said with rotary_cos, which is refused
    alibi_slopes: Any = None,
    num_splits: int = 0,  # noqa: ARG001  # the tuner's to choose
    return_softmax_lse: bool = False,
    *,
    k_descale: Any = None,
    v_descale: Any = None,
    page_table: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k_new: Any = None,
    max_seqlen_q: int | None = None,
    s_aux: Any = None,
    sinks: Any = None,
    out: Any = None,
    **others: Any,
) -> Any:
    """Attention of q to the keys in a cache, with the arguments and defaults of flash-attn's function of this name.

    q: [B, T, H, D], the last T positions of each sequence. k_cache, v_cache: [B, S, HK, D], or with block_table (which
    SGLang calls page_table), integers [B, max_pages], [pages, page_size, HK, D]; page_size is any number.
    cache_seqlens: positions that the caches hold, integers [B] or one number (default: all that they have room for).
    k, v: [B, N, HK, D], the N positions behind those, which are put into the caches in place, where there must be room;
    without them the caches hold the positions of q already. causal is aligned at the bottom right. window_size: (left,
    right), -1 for no limit; right is 0 where causal, and otherwise 0 or, with left, -1.

    cu_seqlens_q: integers [N + 1]: q is [T, H, D], the queries of N sequences behind each other, of which the longest
    has max_seqlen_q (default T); caches are in pages, and o is [T, H, D].

    k_descale, v_descale: fp32 [B, HK] of any strides, as FlashAttention-3 has them: what the keys and values of caches
    of torch.float8_e4m3fn in pages are multiplied with (default: 1). There k and v come as they are stored, and q is of
    16 bits. s_aux, or sinks: [H], a logit of each head that joins the softmax's denominator; caches are in pages. out:
    where o is put. Heads of no multiple of 8 elements are copied into such, and so are their caches at every call.

    Returns o as q, and with return_softmax_lse (o, lse fp32 [B, H, T], or [H, T]). It has no gradient.

    Raises InputError for rotary embeddings, ALiBi, cache_batch_idx, cache_leftpad, and a softcap, logits or an 8-bit
    cache without block_table, which are not served; for `others` that are neither None nor 0 nor hints how to run; for
    positions that go beyond the cache (on a GPU, the device says so), and tensors that do not fit.
    """
    unserved = {"rotary_cos": rotary_cos, "rotary_sin": rotary_sin, "cache_batch_idx": cache_batch_idx}
    unserved |= {"cache_leftpad": cache_leftpad, "alibi_slopes": alibi_slopes}
    refuse(_NAME, unserved, _THEIRS)
    refuse_others(_NAME, others, _THEIRS)
    block_table = _one_of("block_table", block_table, "page_table", page_table)
    logits = _one_of("s_aux", s_aux, "sinks", sinks)
    lengths = _lengths(q, k_cache, cache_seqlens, block_table, cu_seqlens_q)
    if k is not None or v is not None:
        packed = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k_new": cu_seqlens_k_new}
        refuse(_NAME, packed, _THEIRS, "beside k and v")
        lengths = _append(k, v, k_cache, v_cache, lengths, cache_seqlens, block_table)
    scores = {"softmax_scale": softmax_scale, "softcap": softcap, **descales(k_descale, v_descale)}
    scores |= {} if logits is None else {"s_aux": logits.float().contiguous()}
    if cu_seqlens_q is not None:
        longest = longest_of(q, max_seqlen_q)
        window = _window(window_size, causal or longest == 1)
        if block_table is None:
            raise InputError(f"{_NAME}: block_table is missing: packed queries attend keys in pages")
        scores["window"] = window
        o, lse = attend_packed(_NAME, q, k_cache, v_cache, block_table, lengths, cu_seqlens_q, longest, scores)
    else:
        window = _window(window_size, causal or q.shape[1] == 1)
        o, lse = _attend_batch(q, k_cache, v_cache, lengths, block_table, window, scores)
    return returned(_NAME, o, lse, out, with_lse=return_softmax_lse)


def attend_packed(
    function: str,
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

    `options` are paged_attention's: window, softmax_scale, softcap, s_aux, k_descale, v_descale. A window of None
    attends all keys of a sequence, those behind a query's own too.
    """
    with_room(function, "cache_seqlens or seqused_k", lengths, _room(k_cache, block_table))
    wide, k_cache, v_cache = padded(q, k_cache, v_cache)
    table, k_cache, v_cache = in_powers_of_two(function, block_table, k_cache=k_cache, v_cache=v_cache)
    rows, bounds, longest = addressable(wide)[None], dense(int32(cu_seqlens_q)), max_seqlen_q
    scores = {**options, "softmax_scale": scale_of(q, options["softmax_scale"])}
    if scores["window"] is None and longest > 1:
        del scores["window"]
        o, lse = noncausal_pages.attend(rows[0], (k_cache, v_cache), table, int32(lengths), bounds, longest, scores)
        return o[..., : q.shape[-1]], lse
    scores["window"] = scores["window"] or 0
    paged = torch.ops.tuner.paged_attention
    o, lse = paged(rows, k_cache, v_cache, table, int32(lengths), bounds, max_seqlen_q=longest, **scores)
    return o[0][..., : q.shape[-1]], lse[0]


def _attend_batch(
    q: Any, k_cache: Any, v_cache: Any, lengths: Any, block_table: Any, window: int | None, scores: dict[str, Any]
) -> tuple[Any, Any]:
    """o [B, T, H, D] and lse [B, H, T]. Without a window all queries of a sequence attend all of its keys: they are
    rows like heads."""
    queries, D = q.shape[1], q.shape[3]
    scores["softmax_scale"], kv_heads = scale_of(q, scores["softmax_scale"]), k_cache.shape[2]
    wide, k_cache, v_cache = padded(q, k_cache, v_cache)
    if window is not None:
        o, lse = _attend(addressable(wide), k_cache, v_cache, lengths, block_table, window, scores)
        return o[..., :D], lse
    if "s_aux" in scores:
        scores["s_aux"] = noncausal_pages.logits_beside_heads(scores["s_aux"], kv_heads, queries)
    rows = noncausal_pages.beside_heads(wide, kv_heads)
    o, lse = noncausal_pages.from_heads(
        *_attend(rows, k_cache, v_cache, lengths, block_table, 0, scores), queries, kv_heads
    )
    return o[..., :D], lse


def descales(k_descale: Any, v_descale: Any) -> dict[str, Any]:
    """Both as paged_attention takes them: where one is given, 1 for the other."""
    if k_descale is None and v_descale is None:
        return {}
    ones = torch.ones_like(v_descale if k_descale is None else k_descale)
    return {
        "k_descale": ones if k_descale is None else k_descale,
        "v_descale": ones if v_descale is None else v_descale,
    }


def _one_of(name: str, given: Any, other_name: str, other: Any) -> Any:
    if given is not None and other is not None:
        raise InputError(f"{_NAME}: {name} and {other_name} are one thing: give one of them")
    return other if given is None else given


def _window(window_size: Any, causal: bool) -> int | None:
    """Keys that a query attends up to its own, 0 for all; None where it attends those behind its own too."""
    left, right = (-1 if side is None else int(side) for side in window_size or (-1, -1))
    if causal or right == 0:
        return left + 1 if left >= 0 else 0
    if left >= 0 or right > 0:
        raise InputError(
            f"{_NAME}: window_size={(left, right)} of several queries without causal is not served: give causal=True, "
            "or (-1, -1)"
        )
    return None


def _room(cache: Any, block_table: Any) -> int:
    """Positions that a cache has for each sequence."""
    return int(cache.shape[1] if block_table is None else cache.shape[1] * block_table.shape[1])


def _lengths(q: Any, cache: Any, cache_seqlens: Any, block_table: Any, cu_seqlens_q: Any) -> Any:
    """Positions that the caches hold, int32 [B], which they have room for."""
    room = _room(cache, block_table)
    lengths = room if cache_seqlens is None else cache_seqlens
    if isinstance(lengths, torch.Tensor):
        return with_room(_NAME, "cache_seqlens", int32(lengths), room)
    if lengths > room:
        raise InputError(f"{_NAME}: cache_seqlens {lengths} goes beyond the cache, which has room for {room} positions")
    batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    return torch.full((batch,), lengths, dtype=torch.int32, device=q.device)


def _append(k: Any, v: Any, k_cache: Any, v_cache: Any, lengths: Any, cache_seqlens: Any, block_table: Any) -> Any:
    """Puts k and v behind what the caches hold, and returns how much they hold then. The device is not waited for."""
    if k is None or v is None or cache_seqlens is None:
        missing = "k" if k is None else "v" if v is None else "cache_seqlens"
        raise InputError(f"flash_attn_with_kvcache: {missing} is missing: give k, v and cache_seqlens together")
    if k.shape != v.shape or k.shape[0] != lengths.shape[0]:
        raise InputError(f"flash_attn_with_kvcache: k {[*k.shape]} and v {[*v.shape]} are not both [B, N, HK, D]")
    with_room(_NAME, "cache_seqlens", lengths, _room(k_cache, block_table), k.shape[1])
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
        table, k, v = in_powers_of_two(_NAME, block_table, k_cache=k, v_cache=v)
        paged = torch.ops.tuner.paged_attention
        return paged(q, k, v, table, lengths, window=window, **scores)  # type: ignore[no-any-return]
    softcap, eight_bits = scores.pop("softcap"), k.element_size() == 1
    if softcap or eight_bits or {"k_descale", "s_aux"} & {*scores}:
        of_bits = f"a cache of {k.dtype}" if eight_bits else "k_descale or v_descale"
        what = "softcap" if softcap else "s_aux" if "s_aux" in scores else of_bits
        raise InputError(f"{_NAME}: {what} without block_table is not served: put the cache into pages")
    plain, room = torch.ops.tuner.streaming_attention, _room(k, block_table)
    return plain(q, k, v, cache_seqlens=dense(lengths), window=window or room, **scores)  # type: ignore[no-any-return]
