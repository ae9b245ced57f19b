"""Multi-head latent attention for decoding, with the signature of the FlashMLA package, so that swapping is one import.

from tuner.torch import flash_mla_with_kvcache, get_mla_metadata  # in place of flash_mla
"""

from typing import Any

import torch

from tuner.errors import InputError
from tuner.torch.pages import in_powers_of_two, int32, with_room
from tuner.torch.tensor_layout import addressable
from tuner.torch.unsupported_arguments import refuse, refuse_others

_THEIRS = "FlashMLA's"


def get_mla_metadata(
    cache_seqlens: Any = None,
    num_q_tokens_per_head_k: int | None = None,  # noqa: ARG001  # the kernels find their shares from cache_seqlens
    num_heads_k: int | None = None,  # noqa: ARG001
    num_heads_q: int | None = None,  # noqa: ARG001
    is_fp8_kvcache: bool = False,
    topk: int | None = None,
) -> tuple[Any, Any]:
    """Return placeholders for the metadata that FlashMLA passes to flash_mla_with_kvcache, where they are not read.

    They are int32 [1, 8] and [B + 1], which may be stored and copied like FlashMLA's; without cache_seqlens, which
    newer versions omit, (None, None). Raises InputError for is_fp8_kvcache and topk, which are not supported.
    """
    refuse("get_mla_metadata", {"is_fp8_kvcache": is_fp8_kvcache, "topk": topk}, _THEIRS)
    if cache_seqlens is None:
        return None, None
    of = {"dtype": torch.int32, "device": cache_seqlens.device}
    return torch.zeros(1, 8, **of), torch.arange(cache_seqlens.shape[0] + 1, **of)  # one split per sequence


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
    **others: Any,
) -> tuple[Any, Any]:
    """Attention of q to paged latent rows, with the arguments of FlashMLA's function of this name.

    q: [B, T, H, D], the last T positions of each sequence, whose rows the caller has written to the cache. k_cache:
    [pages, page_size, 1, D], the first head_dim_v elements of which are the values; page_size is any number.
    block_table: integers [B, max_pages]. cache_seqlens: integers [B], the number of positions, including those of q.
    softmax_scale: default D ** -0.5. causal is aligned at the bottom right; without it, every query attends all rows.

    Returns (out [B, T, H, head_dim_v], softmax_lse fp32 [B, H, T]). It has no gradient. A query without any row has
    output 0 and lse -inf (FlashMLA: +inf).

    Raises InputError for `others` (is_fp8_kvcache, indices, attn_sink) that are neither None nor 0, for positions
    beyond the cache (on a GPU, the device reports it), and for unsuitable tensors.
    """
    name = "flash_mla_with_kvcache"
    refuse_others(name, others, _THEIRS)
    if q.ndim != 4:
        raise InputError(f"flash_mla_with_kvcache: q has {q.ndim} dims: give [B, T, H, D]")
    batch, queries, heads, _ = q.shape
    shared = queries > 1 and not causal  # all queries attend all rows, so they are treated as heads of one query
    given = q.flatten(1, 2)[:, None] if shared else q
    decode = torch.ops.tuner.mla_decode
    with_room(name, "cache_seqlens", cache_seqlens, block_table.shape[1] * k_cache.shape[1])
    table, cache = in_powers_of_two(name, block_table, k_cache=k_cache)
    out, lse = decode(addressable(given), cache, table, int32(cache_seqlens), head_dim_v, softmax_scale=softmax_scale)
    if shared:
        out = out.view(batch, queries, heads, head_dim_v)
        lse = lse.view(batch, queries, heads).transpose(1, 2).contiguous()
    return out, lse
