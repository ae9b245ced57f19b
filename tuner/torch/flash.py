"""Attention with the signatures of flash-attn 2.8, so that swapping is one import.

    from tuner.torch import flash_attn_func, flash_attn_varlen_func  # in place of flash_attn

All call the operator `flash_attention`, or `streaming_attention` if there is only a window to the left; with a
block_table they call `paged_attention`. Additional arguments of vLLM's functions of these names are accepted by name.
"""

from collections.abc import Sequence
from typing import Any

import torch

from tuner.errors import InputError
from tuner.torch.head_padding import padded, scale_of
from tuner.torch.kvcache import attend_packed, descales
from tuner.torch.pages import int32, longest_of
from tuner.torch.results import returned
from tuner.torch.tensor_layout import addressable, dense
from tuner.torch.unsupported_arguments import refuse, refuse_others

_THEIRS = "flash_attn's"
_WHY_NO_DROPOUT = "(a draw for each score is as many instructions as attention has, see tuner/torch/README.md)"
Window = Sequence[int | None] | None


def flash_attn_func(
    q: Any,
    k: Any,
    v: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,  # noqa: ARG001  # every gradient is
    return_attn_probs: bool = False,
    *,
    s_aux: Any = None,
    out: Any = None,
    return_softmax_lse: bool = False,
    **others: Any,
) -> Any:
    """softmax(softmax_scale · q kᵀ) v with the arguments and defaults of flash-attn. Returns o.

    q: [B, T, H, D]; k: [B, S, HK, D]; v: [B, S, HK, DV], and o [B, T, H, DV], where HK divides H; fp16, bf16 or fp32. D
    and DV are at most 256; heads that are no multiple of 8 are padded by a copy. causal, and window_size (left, right),
    the number of keys before and after a query's own (-1: all; with causal: none after), are aligned at the last query
    and key. softcap: if c > 0, scaled scores x become c · tanh(x / c). s_aux: [H], a logit per head that is added to
    the softmax's denominator. return_attn_probs: returns (o, lse, None), lse fp32 [B, H, T]; None, because there is no
    dropout pattern. return_softmax_lse: returns (o, lse). out: the tensor for o, without gradients. A query without
    keys has o = 0 and lse = -inf (flash-attn: inf), or lse = s_aux.

    o and lse have gradients, also for s_aux. Tensors may have any strides; those that kernels cannot address are
    copied. Raises InputError for dropout, alibi_slopes, `others` that are neither None nor 0 nor hints on how to run,
    and unsuitable tensors.
    """
    name = "flash_attn_func"
    refuse(name, {"dropout_p": dropout_p}, _THEIRS, _WHY_NO_DROPOUT)
    refuse(name, {"alibi_slopes": alibi_slopes}, _THEIRS)
    refuse_others(name, others, _THEIRS)
    masks, scale = _masks(window_size, causal), scale_of(q, softmax_scale)
    rows = tuple(map(addressable, padded(q, k, v)))
    if _streams(masks) and s_aux is None and not softcap and q.shape[-1] == v.shape[-1]:
        window = masks["window_left"] + 1  # streaming_attention counts a query's own key
        o, lse = torch.ops.tuner.streaming_attention(*rows, window=window, softmax_scale=scale)
    else:
        attend, options = torch.ops.tuner.flash_attention, {"softmax_scale": scale, "softcap": softcap}
        o, lse = attend(*rows, s_aux=_logits(s_aux), **masks, **options)
    o = o[..., : v.shape[-1]]
    return returned(name, o, lse, out, with_lse=return_softmax_lse, with_pattern=return_attn_probs)


def flash_attn_varlen_func(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,  # noqa: ARG001  # kernels read where keys end
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,  # noqa: ARG001
    return_attn_probs: bool = False,
    block_table: Any = None,
    *,
    seqused_k: Any = None,
    s_aux: Any = None,
    out: Any = None,
    return_softmax_lse: bool = False,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    **others: Any,
) -> Any:
    """`flash_attn_func` on N packed sequences. Returns o [T, H, DV].

    q: [T, H, D]; k: [S, HK, D]; v: [S, HK, DV]; cu_seqlens_q, cu_seqlens_k: integers [N + 1], ascending from 0 to T and
    to S, the offsets of the sequences. max_seqlen_q: queries of the longest sequence (default: T). return_attn_probs:
    returns (o, lse, None), lse fp32 [H, T]. causal and windows are aligned at each sequence's last query and key.

    With block_table, integers [N, max_pages], k and v are caches [pages, page_size, HK, D] of any page_size: position j
    of sequence n is row j % page_size of page block_table[n, j // page_size]. seqused_k, integers [N], or cu_seqlens_k
    gives the number of positions per sequence, including those of its queries. causal may then have a window to the
    left; there is no gradient. k_descale, v_descale: fp32 [N, HK], the factors of keys and values in caches of
    torch.float8_e4m3fn. q may be of that dtype beside such caches, with q_descale, fp32 [N, HK]; o is bfloat16 then.

    Otherwise o and lse have gradients. Raises InputError for dropout and alibi_slopes; with block_table for a window
    that is not causal, without it for seqused_k and descales; for `others` that are neither None nor 0 nor hints on how
    to run; and for unsuitable tensors.
    """
    name = "flash_attn_varlen_func"
    refuse(name, {"dropout_p": dropout_p}, _THEIRS, _WHY_NO_DROPOUT)
    refuse(name, {"alibi_slopes": alibi_slopes}, _THEIRS)
    refuse_others(name, others, _THEIRS)
    if cu_seqlens_q is None or (cu_seqlens_k is None and (seqused_k is None or block_table is None)):
        missing = "cu_seqlens_q" if cu_seqlens_q is None else "cu_seqlens_k"
        raise InputError(f"{name}: {missing} is missing: give where each sequence begins, and the last ends")
    longest, masks = longest_of(q, max_seqlen_q), _masks(window_size, causal)
    forms: dict[str, Any] = {"with_lse": return_softmax_lse, "with_pattern": return_attn_probs}
    if block_table is not None:
        lengths = cu_seqlens_k.diff() if seqused_k is None else seqused_k
        options = {"window": _window(name, masks, longest), "softmax_scale": softmax_scale, "softcap": softcap}
        q, factors = descales(name, q, k, q_descale, k_descale, v_descale)
        options |= {"s_aux": _logits(s_aux), **factors}
        o, lse = attend_packed(name, q, k, v, block_table, lengths, cu_seqlens_q, longest, options)
        return returned(name, o, lse, out, **forms)
    unserved = {"seqused_k": seqused_k, "q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
    refuse(name, unserved, _THEIRS, "without block_table")
    o, lse = torch.ops.tuner.flash_attention(
        *(addressable(tensor)[None] for tensor in padded(q, k, v)),
        dense(int32(cu_seqlens_q)),
        dense(int32(cu_seqlens_k)),
        _logits(s_aux),
        **masks,
        softmax_scale=scale_of(q, softmax_scale),
        softcap=softcap,
        max_seqlen_q=longest,
    )
    return returned(name, o[0][..., : v.shape[-1]], lse[0], out, **forms)


def flash_attn_qkvpacked_func(qkv: Any, *options: Any, **named: Any) -> Any:
    """`flash_attn_func` on qkv [B, T, 3, H, D], of which q, k and v are views; `options` start at dropout_p."""
    return flash_attn_func(*qkv.unbind(2), *options, **named)


def flash_attn_kvpacked_func(q: Any, kv: Any, *options: Any, **named: Any) -> Any:
    """`flash_attn_func` on q [B, T, H, D] and kv [B, S, 2, HK, D], of which k and v are views."""
    return flash_attn_func(q, *kv.unbind(2), *options, **named)


def flash_attn_varlen_qkvpacked_func(qkv: Any, cu_seqlens: Any, max_seqlen: int, *options: Any, **named: Any) -> Any:
    """`flash_attn_varlen_func` on qkv [T, 3, H, D]: every sequence has as many keys as queries."""
    q, k, v = qkv.unbind(1)
    return flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *options, **named)


def flash_attn_varlen_kvpacked_func(q: Any, kv: Any, *options: Any, **named: Any) -> Any:
    """`flash_attn_varlen_func` on q [T, H, D] and kv [S, 2, HK, D]; `options` start at cu_seqlens_q."""
    return flash_attn_varlen_func(q, *kv.unbind(1), *options, **named)


def _masks(window_size: Window, causal: bool) -> dict[str, Any]:
    """Return flash_attention's window; None and negative numbers mean no limit."""
    left, right = (-1 if side is None else max(int(side), -1) for side in window_size or (-1, -1))
    right = 0 if causal else right
    if right == 0:  # a branch, since comparing a symbolic width gives no bool
        causal = True
    return {"causal": causal, "window_left": left, "window_right": right}


def _streams(masks: dict[str, Any]) -> bool:
    """Return whether there is only a window to the left, for which streaming_attention has specialised kernels on every
    arch.
    """
    return bool(masks["causal"] and masks["window_left"] >= 0)


def _window(function: str, masks: dict[str, Any], longest: int) -> int | None:
    """Return the number of keys up to a query's own that it attends in pages, 0 for all; None if it also attends later
    keys.

    With a single query, its own key is the last.
    """
    if masks["causal"] or longest == 1:
        return int(masks["window_left"]) + 1
    if masks["window_left"] >= 0 or masks["window_right"] >= 0:
        raise InputError(
            f"{function}: a window_size without causal is not supported with block_table for several queries of a "
            "sequence"
        )
    return None


def _logits(s_aux: Any) -> Any:
    """Return the tensors in the form that kernels read."""
    return None if s_aux is None else s_aux.float().contiguous()
