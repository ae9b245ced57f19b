"""Non-causal queries over paged caches: the queries of a chunk are treated as additional heads of one query.

The kernels for pages are causal. A single query attends all keys in any case, with any number of heads.
"""

from collections.abc import Mapping
from typing import Any

import torch

_ROWS = 64  # maximum number of queries per chunk


def beside_heads(q: Any, kv_heads: int) -> Any:
    """Return q [B, T, H, D] as one query of T · H heads, grouped by KV head: [B, 1, HK · T · H / HK, D]."""
    batch, queries, heads, D = q.shape
    return q.unflatten(2, (kv_heads, -1)).transpose(1, 2).reshape(batch, 1, queries * heads, D)


def logits_beside_heads(s_aux: Any, kv_heads: int, queries: int) -> Any:
    """Return s_aux [H] for each of these heads."""
    return s_aux.view(kv_heads, 1, -1).expand(kv_heads, queries, -1).flatten()


def from_heads(o: Any, lse: Any, queries: int, kv_heads: int) -> tuple[Any, Any]:
    """Return o [B, T, H, D] and lse [B, H, T] from such a query's o [B, 1, T · H, D] and lse [B, T · H, 1]."""
    batch, D = o.shape[0], o.shape[-1]
    heads = o.shape[2] // queries  # -1 would be ambiguous for an empty batch
    rows = (batch, kv_heads, queries, heads // kv_heads)
    o = o.view(*rows, D).transpose(1, 2).reshape(batch, queries, heads, D)
    return o, lse.view(rows).transpose(2, 3).reshape(batch, heads, queries)


def attend(
    q: Any, caches: tuple[Any, Any], table: Any, lengths: Any, bounds: Any, longest: int, options: Mapping[str, Any]
) -> tuple[Any, Any]:
    """Return o [T, H, D] and lse [H, T] of q [T, H, D], whose N sequences start at `bounds`, int32 [N + 1].

    Sequences are divided into chunks, and each chunk is a sequence with one query. There are at most T / 64 + N chunks
    for any lengths, so that nothing is read from the device.
    """
    rows, kv_heads, size = q.shape[0], caches[0].shape[2], min(longest, _ROWS)
    count = -(-rows // size) + lengths.shape[0]
    begins = bounds.long()
    firsts = torch.nn.functional.pad((begins.diff() + size - 1).div(size, rounding_mode="floor").cumsum(0), (1, 0))
    chunks = torch.arange(count, device=q.device)
    sequence = (torch.searchsorted(firsts, chunks, right=True) - 1).clamp(max=lengths.shape[0] - 1)
    first = begins[sequence] + (chunks - firsts[sequence]) * size
    index = (first[:, None] + torch.arange(size, device=q.device)).clamp(max=max(rows - 1, 0))
    scores = dict(options)
    if scores.get("s_aux") is not None:
        scores["s_aux"] = logits_beside_heads(scores["s_aux"], kv_heads, size)
    for name in ("k_descale", "v_descale"):
        if scores.get(name) is not None:
            scores[name] = scores[name][sequence]
    of_chunks = torch.where(chunks < firsts[-1], lengths[sequence], 0).to(torch.int32)
    wide = beside_heads(q[index], kv_heads)
    o, lse = torch.ops.tuner.paged_attention(wide, *caches, table[sequence], of_chunks, **scores)
    o, lse = from_heads(o, lse, size, kv_heads)
    tokens = torch.arange(rows, device=q.device)
    own = (torch.searchsorted(begins, tokens, right=True) - 1).clamp(max=lengths.shape[0] - 1)
    at = tokens - begins[own]
    chunk, row = firsts[own] + at // size, at % size
    return o[chunk, row], lse[chunk, :, row].T
