"""Attention by the signatures of flash-attn 2.8, so that swapping is one import.

    from tuner.torch import flash_attn_func, flash_attn_varlen_func  # in place of flash_attn

All are the operator `flash_attention`, and with a window to the left alone `streaming_attention`; with a block_table
they are `paged_attention`.
"""

from typing import Any

import torch

from tuner.errors import UsageError
from tuner.torch.kvcache import attend_packed, descales
from tuner.torch.rows import addressable, dense
from tuner.torch.unserved import refuse

_THEIRS = "flash_attn's"


def flash_attn_func(
    q: Any,
    k: Any,
    v: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,  # noqa: ARG001  # every gradient is
    return_attn_probs: bool = False,
) -> Any:
    """softmax(softmax_scale · q kᵀ) v with the arguments and defaults of flash-attn. Returns o.

    q: [B, T, H, D]; k: [B, S, HK, D]; v: [B, S, HK, DV], and o [B, T, H, DV], where HK divides H; fp16, bf16 or fp32; D
    and DV are 8 to 256 in steps of 8. causal, and window_size (left, right) of so many keys before and behind a query's
    own (-1: all; causal: none behind), are aligned at the last query and key. softcap: if c > 0, scaled scores x become
    c · tanh(x / c). return_attn_probs: returns (o, lse, None), lse fp32 [B, H, T]; there is no dropout whose pattern
    the third could tell. A query without keys has o = 0 and lse = -inf (flash-attn: inf).

    o and lse have gradients. Tensors of any strides are taken: what kernels cannot address is copied. Raises UsageError
    for dropout and alibi_slopes; InputError for tensors that do not fit.
    """
    refuse("flash_attn_func", {"dropout_p": dropout_p, "alibi_slopes": alibi_slopes}, _THEIRS)
    rows = tuple(map(addressable, (q, k, v)))
    masks = _masks(window_size, causal)
    if _streams(masks) and not softcap and q.shape[-1] == v.shape[-1]:
        window = masks["window_left"] + 1  # streaming_attention counts a query's own key
        o, lse = torch.ops.tuner.streaming_attention(*rows, window=window, softmax_scale=softmax_scale)
    else:
        o, lse = torch.ops.tuner.flash_attention(*rows, **masks, softmax_scale=softmax_scale, softcap=softcap)
    return (o, lse, None) if return_attn_probs else o


def flash_attn_varlen_func(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,  # noqa: ARG001  # kernels read where keys end
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,  # noqa: ARG001
    return_attn_probs: bool = False,
    block_table: Any = None,
    *,
    k_descale: Any = None,
    v_descale: Any = None,
) -> Any:
    """`flash_attn_func` of N sequences that are packed behind each other. Returns o [T, H, DV].

    q: [T, H, D]; k: [S, HK, D]; v: [S, HK, DV]; cu_seqlens_q, cu_seqlens_k: int32 [N + 1], ascending from 0 to T and to
    S: where each sequence begins, and the last ends. max_seqlen_q: queries of the longest. return_attn_probs: returns
    (o, lse, None), lse fp32 [H, T]. causal and windows are aligned at each sequence's last query and key.

    With block_table, int32 [N, max_pages], k and v are caches [pages, page_size, HK, D], page_size any power of two:
    position j of sequence n is row j % page_size of page block_table[n, j // page_size]. cu_seqlens_k says how many
    positions each has, those of its queries among them. causal, a must where a sequence has several queries, may then
    have a window to the left; there is no gradient. k_descale, v_descale: fp32 [N, HK], what the keys and
    values of caches of torch.float8_e4m3fn are multiplied with.

    Otherwise o and lse have gradients. Raises UsageError for dropout, alibi_slopes, and with block_table a window that
    is not causal; InputError for tensors that do not fit.
    """
    name = "flash_attn_varlen_func"
    refuse(name, {"dropout_p": dropout_p, "alibi_slopes": alibi_slopes}, _THEIRS)
    if block_table is not None:
        window = _window(name, window_size, causal or max_seqlen_q == 1)
        if not (_causal(window_size, causal) or max_seqlen_q == 1):
            raise UsageError(f"{name}: causal=False is not served with block_table: all keys after a query's own")
        lengths = cu_seqlens_k.diff()
        scores = {"softmax_scale": softmax_scale, "softcap": softcap, **descales(k_descale, v_descale)}
        options = {"window": window or 0, **scores}
        o, lse = attend_packed(q, k, v, block_table, lengths, cu_seqlens_q, max_seqlen_q, options)
        return (o, lse, None) if return_attn_probs else o
    refuse(name, {"k_descale": k_descale, "v_descale": v_descale}, _THEIRS, "without block_table")
    o, lse = torch.ops.tuner.flash_attention(
        *(addressable(each)[None] for each in (q, k, v)),
        dense(cu_seqlens_q),
        dense(cu_seqlens_k),
        **_masks(window_size, causal),
        softmax_scale=softmax_scale,
        softcap=softcap,
        max_seqlen_q=max(int(max_seqlen_q), 1),
    )
    return (o[0], lse[0], None) if return_attn_probs else o[0]


def flash_attn_qkvpacked_func(qkv: Any, *options: Any, **named: Any) -> Any:
    """`flash_attn_func` of qkv [B, T, 3, H, D], of which q, k and v are views; `options` from dropout_p on."""
    return flash_attn_func(*qkv.unbind(2), *options, **named)


def flash_attn_kvpacked_func(q: Any, kv: Any, *options: Any, **named: Any) -> Any:
    """`flash_attn_func` of q [B, T, H, D] and kv [B, S, 2, HK, D], of which k and v are views."""
    return flash_attn_func(q, *kv.unbind(2), *options, **named)


def flash_attn_varlen_qkvpacked_func(qkv: Any, cu_seqlens: Any, max_seqlen: int, *options: Any, **named: Any) -> Any:
    """`flash_attn_varlen_func` of qkv [T, 3, H, D]: as many keys as queries in every sequence."""
    q, k, v = qkv.unbind(1)
    return flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *options, **named)


def flash_attn_varlen_kvpacked_func(q: Any, kv: Any, *options: Any, **named: Any) -> Any:
    """`flash_attn_varlen_func` of q [T, H, D] and kv [S, 2, HK, D]; `options` from cu_seqlens_q on."""
    return flash_attn_varlen_func(q, *kv.unbind(1), *options, **named)


def _masks(window_size: tuple[int, int], causal: bool) -> dict[str, Any]:
    """What flash_attention is told that a query attends; any negative number is no limit."""
    left, right = (max(int(side), -1) for side in window_size)
    return {"causal": _causal(window_size, causal), "window_left": left, "window_right": 0 if causal else right}


def _streams(masks: dict[str, Any]) -> bool:
    """Whether it is a window to the left alone: what streaming_attention has a kernel of its own for on every arch."""
    return bool(masks["causal"] and masks["window_left"] >= 0)


def _causal(window_size: tuple[int, int], causal: bool) -> bool:
    """A window of everything to the left and nothing to the right is a causal mask."""
    return causal or window_size[1] == 0


def _window(function: str, window_size: tuple[int, int], causal: bool) -> int | None:
    """How many keys streaming_attention's window has: a query's own and those to the left of it; None without one."""
    left, right = window_size
    if right > 0 and not causal:
        raise UsageError(f"{function}: window_size={window_size} is not served: keys to the right are all or none")
    if left < 0:
        return None
    if not _causal(window_size, causal):
        raise UsageError(f"{function}: window_size={window_size} is not served without causal: all keys to the right")
    return left + 1
