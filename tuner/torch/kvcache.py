"""Attention over a KV cache with the signature of the flash-attn package, so that swapping is one import.

    from tuner.torch import flash_attn_with_kvcache  # in place of flash_attn

Paged caches use the operator `paged_attention`, others `streaming_attention`. Additional arguments of vLLM's and
SGLang's functions of this name are accepted by name.
"""

import math
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
    q_descale: Any = None,
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

    q: [B, T, H, D], the last T positions of each sequence. k_cache, v_cache: [B, S, HK, D] or, with block_table
    (SGLang: page_table), integers [B, max_pages], [pages, page_size, HK, D] with any page_size. cache_seqlens: number
    of positions in the caches, integers [B] or one number (default: the capacity). k, v: [B, N, HK, D], N new
    positions, which are written into the caches in place and must fit; without them the caches already contain the
    positions of q. causal is aligned at the bottom right. window_size: (left, right), -1 for no limit; right is 0 if
    causal, otherwise 0 or, with left, -1.

    cu_seqlens_q: integers [N + 1]: q is [T, H, D], the packed queries of N sequences, the longest of which has
    max_seqlen_q (default T); the caches are paged, and o is [T, H, D].

    k_descale, v_descale: fp32 [B, HK] of any strides, as in FlashAttention-3: the factors of keys and values in paged
    caches of torch.float8_e4m3fn (default: 1). k and v are then passed as they are stored. q has 16 bits or, beside
    such caches, that dtype with the factors q_descale, fp32 [B, HK]; o is bfloat16 then. s_aux, or sinks: [H], a logit
    per head that is added to the softmax's denominator; caches are paged. out: the tensor for o.
    Heads that are no multiple of 8 elements are padded by a copy, including their caches in every call.

    Returns o, shaped like q, and with return_softmax_lse (o, lse fp32 [B, H, T], or [H, T]). It has no gradient.

    Raises InputError for unsupported options: rotary embeddings, ALiBi, cache_batch_idx, cache_leftpad, and a softcap,
    logits or an 8-bit cache without block_table; for `others` that are neither None nor 0 nor hints on how to run; for
    positions beyond the cache (on a GPU, the device reports it); and for unsuitable tensors.
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
    q, factors = descales(_NAME, q, k_cache, q_descale, k_descale, v_descale)
    scores = {"softmax_scale": softmax_scale, "softcap": softcap, **factors}
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
    """Return o [T, H, D] and lse [H, T] of N sequences with packed queries q [T, H, D] over paged caches.

    `options` are paged_attention's: window, softmax_scale, softcap, s_aux, k_descale, v_descale. With a window of None,
    queries attend all keys of their sequence, including those after their own.
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
    """Return o [B, T, H, D] and lse [B, H, T]. Without a window, all queries of a sequence attend all of its keys and
    are treated as additional heads.
    """
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


def descales(
    function: str, q: Any, k_cache: Any, q_descale: Any, k_descale: Any, v_descale: Any
) -> tuple[Any, dict[str, Any]]:
    """Return q in 16 bits, and the factors as paged_attention requires them; a missing one is 1.

    Queries of torch.float8_e4m3fn are numbers of bfloat16, too, and their factor multiplies scores as that of the keys
    does: nothing is rounded. Raises InputError for such queries, or their factor, without caches of 8 bits.
    """
    if q.element_size() > 1 and q_descale is None and k_descale is None and v_descale is None:
        return q, {}
    if (q.element_size() == 1 or q_descale is not None) and k_cache.element_size() > 1:
        raise InputError(f"{function}: q of 8 bits, or q_descale, with caches of {k_cache.dtype}: give both in 8 bits")
    q = q.to(torch.bfloat16) if q.element_size() == 1 else q
    of_scores = [factor for factor in (q_descale, k_descale) if factor is not None]
    if not of_scores and v_descale is None:
        return q, {}
    ones = torch.ones_like(v_descale if not of_scores else of_scores[0])
    factors = {
        "k_descale": math.prod(of_scores[1:], start=of_scores[0]) if of_scores else ones,
        "v_descale": ones if v_descale is None else v_descale,
    }
    return q, factors


def _one_of(name: str, given: Any, other_name: str, other: Any) -> Any:
    if given is not None and other is not None:
        raise InputError(f"{_NAME}: {name} and {other_name} are one thing: give one of them")
    return other if given is None else given


def _window(window_size: Any, causal: bool) -> int | None:
    """Return the number of keys up to a query's own that it attends, 0 for all; None if it also attends later keys."""
    left, right = (-1 if side is None else int(side) for side in window_size or (-1, -1))
    if causal or right == 0:
        return left + 1 if left >= 0 else 0
    if left >= 0 or right > 0:
        raise InputError(
            f"{_NAME}: window_size={(left, right)} of several queries without causal is not supported: give "
            "causal=True, "
            "or (-1, -1)"
        )
    return None


def _room(cache: Any, block_table: Any) -> int:
    """Return the capacity of a cache in positions per sequence."""
    return int(cache.shape[1] if block_table is None else cache.shape[1] * block_table.shape[1])


def _lengths(q: Any, cache: Any, cache_seqlens: Any, block_table: Any, cu_seqlens_q: Any) -> Any:
    """Return the number of positions in the caches, int32 [B], after checking the capacity."""
    room = _room(cache, block_table)
    lengths = room if cache_seqlens is None else cache_seqlens
    if isinstance(lengths, torch.Tensor):
        return with_room(_NAME, "cache_seqlens", int32(lengths), room)
    if lengths > room:
        raise InputError(f"{_NAME}: cache_seqlens {lengths} goes beyond the cache, which has room for {room} positions")
    batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    return torch.full((batch,), lengths, dtype=torch.int32, device=q.device)


def _append(k: Any, v: Any, k_cache: Any, v_cache: Any, lengths: Any, cache_seqlens: Any, block_table: Any) -> Any:
    """Append k and v to the caches; return the new lengths. Does not wait for the device."""
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
    """Return a cache, or new rows for it, in a dtype that torch can index: 8-bit floats are viewed as bytes."""
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
        raise InputError(f"{_NAME}: {what} without block_table is not supported: put the cache into pages")
    plain, room = torch.ops.tuner.streaming_attention, _room(k, block_table)
    return plain(q, k, v, cache_seqlens=dense(lengths), window=window or room, **scores)  # type: ignore[no-any-return]
