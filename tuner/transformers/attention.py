"""The attention of one layer, as transformers calls it: [B, H, T, D] in, [B, T, H, D] out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tuner.errors import InputError
from tuner.torch import flash_attn_func, flash_attn_varlen_func
from tuner.transformers.masks import assure

# What models hand down that does not change what attention computes, or was read before it came here.
_WITHOUT_EFFECT = (
    *("cache_position", "deterministic", "layer_idx", "logits_indices", "logits_processor_args", "logits_to_keep"),
    *("mm_token_type_ids", "num_items_in_batch", "read_index", "token_type_ids", "write_index"),
)
_COMPILED = (
    "position_ids that begin again are not served inside of torch.compile: give cu_seq_lens_q, cu_seq_lens_k, "
    "max_length_q and max_length_k"
)


@dataclass(frozen=True)
class _Packed:
    """Where sequences begin, and the last ends, int32 [N + 1], and how long the longest is."""

    queries: Any
    keys: Any
    longest_queries: int
    longest_keys: int


def attend(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: Any = None,
    position_ids: Any = None,
    **others: Any,
) -> tuple[Any, None]:
    """o [B, T, H, DV] of query [B, H, T, D], key [B, HK, S, D] and value [B, HK, S, DV], and no weights.

    attention_mask: what `masks.sequences` returns. Sequences may be given by cu_seq_lens_q, cu_seq_lens_k, max_length_q
    and max_length_k too, and by position_ids that begin again. sliding_window: keys that a query sees, its own among
    them; without causality so many to either side. s_aux: a logit a head, [H], that takes part in the softmax and has
    no value.

    Raises InputError for what is not served: masks of four dims, weights as results, and any other argument that could
    change the result.
    """
    if (cache := others.pop("cache", None)) is not None:  # of continuous batching, which fills in lengths of keys
        others["layer_idx"] = module.layer_idx
        key, value = cache.update(key_states=key, value_states=value, layer_idx=module.layer_idx, kwargs=others)
    given = {
        name: others.pop(name, None) for name in ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
    }
    _refuse(others)
    causal = module.is_causal if is_causal is None else is_causal
    q, k, v = (each.transpose(1, 2) for each in (query, key, value))
    if attention_mask is not None:
        if attention_mask.ndim != 2 or attention_mask.dtype not in (torch.int32, torch.int64):
            raise InputError(
                f"attention_mask {[*attention_mask.shape]} of {attention_mask.dtype} is not served: give [B, S] with 0 "
                "where there is padding, or load the model with attn_implementation='sdpa'"
            )
        usual = getattr(getattr(module, "config", None), "is_causal", True)
        causal = causal and (usual or not bool((attention_mask < 0).any()))
    options: dict[str, Any] = {
        "softmax_scale": scaling,
        "causal": causal,
        "dropout_p": dropout,
        "softcap": softcap or 0.0,
        "s_aux": s_aux,
    }
    bounds = _given(given, attention_mask)
    if bounds is None and attention_mask is None:
        bounds = _restarts(position_ids, q, k)
    if bounds is None and torch.compiler.is_compiling() and attention_mask is not None and _every_key(attention_mask):
        assure((attention_mask.abs() == 1).all(), _COMPILED)
        attention_mask = None
    if bounds is not None:
        return _packed(q, k, v, bounds, options | _window(sliding_window, causal, bounds.longest_keys)), None
    if attention_mask is not None:
        return _masked(
            q, k, v, attention_mask, options | _window(sliding_window, causal, attention_mask.shape[1])
        ), None
    return flash_attn_func(q, k, v, **options, **_window(sliding_window, causal, k.shape[1])), None


def _refuse(others: Mapping[str, Any]) -> None:
    for name, value in others.items():
        if name == "output_attentions" and value:
            raise InputError("output_attentions=True is not served: there are no weights; load the model with 'eager'")
        if name not in _WITHOUT_EFFECT and not (value is None or isinstance(value, (bool, str))):
            raise InputError(f"attention with {name} is not served: load the model with attn_implementation='eager'")


def _window(width: int | None, causal: bool, keys: int) -> dict[str, Any]:
    """Without one where the keys are so few that every query sees them all."""
    if width is None or keys <= width:
        return {}
    return {"window_size": (width - 1, 0 if causal else width - 1)}


def _given(given: Mapping[str, Any], attention_mask: Any) -> _Packed | None:
    if given["cu_seq_lens_q"] is None:
        return None
    if missing := [name for name, value in given.items() if value is None]:
        raise InputError(f"{missing[0]} is missing: give cu_seq_lens_q, cu_seq_lens_k, max_length_q and max_length_k")
    if attention_mask is not None and not _every_key(attention_mask) and bool((attention_mask == 0).any()):
        raise InputError("attention_mask with padding beside cu_seq_lens_q is not served: leave one of them out")
    queries, keys = (given[name].to(torch.int32) for name in ("cu_seq_lens_q", "cu_seq_lens_k"))
    return _Packed(queries, keys, int(given["max_length_q"]), int(given["max_length_k"]))


def _every_key(attention_mask: Any) -> bool:
    """Whether its dtype says that no key is missing."""
    return bool(attention_mask.dtype == torch.int64)


def _restarts(position_ids: Any, q: Any, k: Any) -> _Packed | None:
    """Sequences of one row, where positions begin again. None where they go on by ones, and where keys came before."""
    one_row = q.shape[0] == 1 and 1 < q.shape[1] == k.shape[1]
    if position_ids is None or not one_row or position_ids.shape != (1, q.shape[1]):
        return None
    begins = position_ids[0].diff() != 1
    if torch.compiler.is_compiling():
        assure(~begins.any(), _COMPILED)
        return None
    if not bool(begins.any()):
        return None
    ends = torch.nonzero(begins)[:, 0] + 1
    bounds = torch.nn.functional.pad(ends, (1, 1))
    bounds[-1] = q.shape[1]
    longest = int(bounds.diff().max())
    return _Packed(bounds.int(), bounds.int(), longest, longest)


def _masked(q: Any, k: Any, v: Any, numbers: Any, options: Mapping[str, Any]) -> Any:
    """Keys that are none are left out. Causal queries whose own key is none get 0, but for a row's last: generation
    goes on from there, even where it is padding."""
    queries, rows = q.shape[1], numbers.shape[1]
    if rows > k.shape[1] or (options["causal"] and queries > rows):
        raise InputError(f"a mask of {rows} keys does not fit {queries} queries and {k.shape[1]} keys")
    k, v, there = k[:, :rows], v[:, :rows], numbers != 0
    if not options["causal"]:
        bounds = _Packed(_sums(torch.full_like(numbers[:, 0], queries)), _sums(there.sum(1)), queries, rows)
        return _packed(q, k[there], v[there], bounds, options)
    own = numbers[:, rows - queries :]
    o = q.new_zeros(*q.shape[:-1], v.shape[-1])
    o = o.index_put(
        (own != 0).nonzero(as_tuple=True), _packed(q[own != 0], k[there], v[there], _bounds(numbers, own), options)
    )
    if not bool((ends := own[:, -1] == 0).any()):
        return o
    return o.index_put(
        (ends.nonzero()[:, 0], torch.tensor(queries - 1, device=o.device)), _last(q, k, v, numbers, ends, options)
    )


def _last(q: Any, k: Any, v: Any, numbers: Any, ends: Any, options: Mapping[str, Any]) -> Any:
    """o [N, H, DV] of the last queries of the rows in `ends`, where they are padding."""
    there, rows = numbers[ends] != 0, numbers.shape[1]
    left = options.get("window_size", (-1, -1))[0]
    if left >= 0:
        there = there & (torch.arange(rows, device=there.device) >= rows - 1 - left)
    one = torch.ones_like(numbers[ends, 0])
    all_keys = {**options, "causal": False, "window_size": (-1, -1)}
    return _packed(
        q[ends, -1], k[ends][there], v[ends][there], _Packed(_sums(one), _sums(there.sum(1)), 1, rows), all_keys
    )


def _bounds(numbers: Any, own: Any) -> _Packed:
    """Of causal queries and keys whose sequences have these numbers."""
    longest = numbers.shape[1]
    if own.shape[1] < longest:  # keys came before, and a row is one sequence
        return _Packed(_sums((own != 0).sum(1)), _sums((numbers != 0).sum(1)), own.shape[1], longest)
    rows = torch.arange(numbers.shape[0], device=numbers.device)[:, None] * (longest + 1)
    every = (rows + numbers)[numbers != 0]
    sums = _sums(torch.unique_consecutive(every, return_counts=True)[1])
    return _Packed(sums, sums, longest, longest)


def _sums(lengths: Any) -> Any:
    return torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))


def _packed(q: Any, k: Any, v: Any, bounds: _Packed, options: Mapping[str, Any]) -> Any:
    """Of rows [B, T, H, D], or [T, H, D] that were packed before, in the shape of q."""
    rows, keys, values = (each.flatten(0, 1) if each.ndim == 4 else each for each in (q, k, v))
    o = flash_attn_varlen_func(
        rows, keys, values, bounds.queries, bounds.keys, bounds.longest_queries, bounds.longest_keys, **options
    )
    return o.unflatten(0, q.shape[:2]) if q.ndim == 4 else o
