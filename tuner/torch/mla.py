"""Decoding of multi-head latent attention by the signature of the FlashMLA package, so that swapping is one import.

    from tuner.torch import flash_mla_with_kvcache  # in place of flash_mla

FlashMLA's `get_mla_metadata` has no counterpart: which blocks take what, the kernels find from the lengths.
"""

from typing import Any

import torch

from tuner.errors import InputError
from tuner.torch.rows import addressable


def flash_mla_with_kvcache(
    q: Any,
    k_cache: Any,
    block_table: Any,
    cache_seqlens: Any,
    head_dim_v: int,
    tile_scheduler_metadata: Any = None,  # noqa: ARG001  # the kernels find their shares from cache_seqlens
    num_splits: Any = None,  # noqa: ARG001  # the tuner's to choose
    softmax_scale: float | None = None,
    causal: bool = False,
) -> tuple[Any, Any]:
    """Attention of q to latent rows in pages, with the arguments of FlashMLA's function of this name.

    q: [B, T, H, D], the last T positions of each sequence, whose rows the caller has put into the cache. k_cache:
    [pages, page_size, 1, D], of which the first head_dim_v elements are the values; page_size is any power of two.
    block_table: int32 [B, max_pages]. cache_seqlens: int32 [B], positions so far, those of q among them. softmax_scale:
    default D ** -0.5. causal is aligned at the bottom right; without it, every query attends all rows.

    Returns (out [B, T, H, head_dim_v], softmax_lse fp32 [B, H, T]). It has no gradient. A query without any row gets 0
    and -inf, where FlashMLA says +inf.

    Raises InputError for tensors that do not fit.
    """
    if q.ndim != 4:
        raise InputError(f"flash_mla_with_kvcache: q has {q.ndim} dims: give [B, T, H, D]")
    batch, queries, heads, _ = q.shape
    shared = queries > 1 and not causal  # all queries attend all rows: they are heads of one
    given = q.flatten(1, 2)[:, None] if shared else q
    decode = torch.ops.tuner.mla_decode
    out, lse = decode(addressable(given), k_cache, block_table, cache_seqlens, head_dim_v, softmax_scale=softmax_scale)
    if shared:
        out = out.view(batch, queries, heads, head_dim_v)
        lse = lse.view(batch, queries, heads).transpose(1, 2).contiguous()
    return out, lse
