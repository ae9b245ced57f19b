"""The attention of one layer, as transformers calls it: [B, H, T, D] in, [B, T, H, D] out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tuner.errors import InputError
from tuner.torch import flash_attn_func, flash_attn_varlen_func
from tuner.transformers.masks import Mask, Pattern, assure, read

# What models hand down that does not change what attention computes, or was read before it came here.
_WITHOUT_EFFECT = (
    *("cache_position", "deterministic", "layer_idx", "logits_indices", "logits_processor_args", "logits_to_keep"),
    *("mm_token_type_ids", "num_items_in_batch", "output_hidden_states", "read_index", "token_type_ids", "write_index"),
)
_BOUNDS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
_COMPILED = f"position_ids that begin again are not supported inside of torch.compile: give {', '.join(_BOUNDS)}"
_RESTARTS = (
    "position_ids begin again, and the model's mask does not separate the sequences: for packed sequences leave out "
    f"attention_mask and pass use_cache=False, or give {', '.join(_BOUNDS)}"
)
_ALL_KEYS: Mapping[str, Any] = {"causal": False, "window_size": (-1, -1)}


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

    attention_mask: what `masks.sequences` returns, which decides causality, window, padding and sequences, as the mask
    of `eager` does; is_causal and sliding_window count where there is none. Sequences may be given by cu_seq_lens_q,
    cu_seq_lens_k, max_length_q and max_length_k too. sliding_window: keys that a query sees, its own among them. s_aux:
    a logit a head, [H], that takes part in the softmax and has no value.

    Raises InputError for anything else: other masks, weights as results, and any other argument that could change
    the result.
    """
    paged = others.pop("cache", None)  # of continuous batching, which fills in lengths of keys
    if paged is not None:
        others["layer_idx"] = module.layer_idx
        key, value = paged.update(key_states=key, value_states=value, layer_idx=module.layer_idx, kwargs=others)
    bounds = {name: others.pop(name, None) for name in _BOUNDS}
    _refuse(others)
    q, k, v = (states.transpose(1, 2) for states in (query, key, value))
    options: dict[str, Any] = {
        "softmax_scale": scaling,
        "dropout_p": dropout,
        "softcap": softcap or 0.0,
        "s_aux": s_aux,
    }
    if attention_mask is None:  # the model makes none
        causal = module.is_causal if is_causal is None else is_causal
        width = None if sliding_window is None or k.shape[1] <= sliding_window else sliding_window
        if width is not None and (paged is None or not causal):
            raise InputError("a sliding_window without attention_mask is not supported: load the model with 'eager'")
        mask = None
        pattern = Pattern(causal, -1 if width is None else width - 1, whole=True, packed=False)
    else:
        mask = read(attention_mask, q.shape[1], k.shape[1])
        pattern = mask.pattern
    options |= _sides(pattern, k.shape[1])
    if bounds["cu_seq_lens_q"] is not None:
        return _packed(q, k, v, _given(bounds, mask), options), None
    if mask is None:
        return flash_attn_func(q, k, v, **options), None
    if pattern.packed and torch.compiler.is_compiling():
        assure((mask.keys <= 1).all(), _COMPILED)
    elif pattern.packed:
        return _masked(q, k, v, mask, options), None
    else:
        _refuse_restarts(position_ids, q, k)
    if pattern.whole:
        return flash_attn_func(q, k, v, **options), None
    masked = _masked_in_graph if torch.compiler.is_compiling() else _masked
    return masked(q, k, v, mask, options), None


def _refuse(others: Mapping[str, Any]) -> None:
    for name, value in others.items():
        if name == "output_attentions" and value:
            raise InputError(
                "output_attentions=True is not supported: there are no weights; load the model with 'eager'"
            )
        if name not in _WITHOUT_EFFECT and not (value is None or isinstance(value, (bool, str))):
            raise InputError(f"attention with {name} is not supported: load the model with attn_implementation='eager'")


def _sides(pattern: Pattern, keys: int) -> dict[str, Any]:
    """flash-attn's causal and window_size; no window where every query sees all keys in any case."""
    wide = pattern.window < 0 or (not torch.compiler.is_compiling() and keys <= pattern.window + 1)
    window = (-1, -1) if wide else (pattern.window, 0 if pattern.causal else pattern.window)
    return {"causal": pattern.causal, "window_size": window}


def _given(bounds: Mapping[str, Any], mask: Mask | None) -> _Packed:
    if missing := [name for name, value in bounds.items() if value is None]:
        raise InputError(f"{missing[0]} is missing: give {', '.join(_BOUNDS)}")
    _refuse_padding(mask)
    queries, keys = (bounds[name].to(torch.int32) for name in ("cu_seq_lens_q", "cu_seq_lens_k"))
    return _Packed(queries, keys, int(bounds["max_length_q"]), int(bounds["max_length_k"]))


def _refuse_padding(mask: Mask | None) -> None:
    """Bounds of sequences say nothing of padding."""
    if mask is not None and not mask.pattern.whole:
        raise InputError("attention_mask with padding beside cu_seq_lens_q is not supported: leave one of them out")


def _refuse_restarts(position_ids: Any, q: Any, k: Any) -> None:
    """Positions that begin again mean packed sequences to flash-attn's integration, and nothing to `eager`."""
    one_row = q.shape[0] == 1 and 1 < q.shape[1] == k.shape[1]
    if position_ids is not None and one_row and position_ids.shape == (1, q.shape[1]):
        again = (position_ids[0, 1:] == 0) & (position_ids[0, :-1] >= 0)
        assure(~again.any(), _COMPILED if torch.compiler.is_compiling() else _RESTARTS)


def _masked(q: Any, k: Any, v: Any, mask: Mask, options: Mapping[str, Any]) -> Any:
    """Rows are packed without padding. Queries that are padding get 0, but for a row's last: generation goes on from
    there. Without causality and a window every query sees all keys that are there, and all queries are computed."""
    there, queries = mask.keys != 0, q.shape[1]
    if not mask.pattern.causal and mask.pattern.window < 0 and not mask.pattern.packed:
        bounds = _Packed(_sums(torch.full_like(mask.keys[:, 0], queries)), _sums(there.sum(1)), queries, k.shape[1])
        return _packed(q, k[there], v[there], bounds, options)
    own = mask.queries != 0
    o = q.new_zeros(*q.shape[:-1], v.shape[-1])
    o = o.index_put(own.nonzero(as_tuple=True), _packed(q[own], k[there], v[there], _bounds(mask), options))
    if not bool((ends := ~own[:, -1]).any()):
        return o
    last = _last(q[ends, -1:], k[ends], v[ends], there[ends], mask.last[ends], mask.pattern, options)
    return o.index_put((ends.nonzero()[:, 0], torch.tensor(queries - 1, device=o.device)), last)


def _last(q: Any, k: Any, v: Any, there: Any, last: Any, pattern: Pattern, options: Mapping[str, Any]) -> Any:
    """o [N, H, DV] of the last queries of rows in which they are padding."""
    there = _in_window(there, last, pattern)
    bounds = _Packed(_sums(torch.ones_like(there[:, 0], dtype=torch.int32)), _sums(there.sum(1)), 1, there.shape[1])
    return _packed(q[:, 0], k[there], v[there], bounds, {**options, **_ALL_KEYS})


def _in_window(there: Any, last: Any, pattern: Pattern) -> Any:
    """Which keys, bool [B, S], the last queries see."""
    if pattern.window < 0:
        return there
    return there & (torch.arange(there.shape[1], device=there.device) >= last[:, None] - pattern.window)


def _masked_in_graph(q: Any, k: Any, v: Any, mask: Mask, options: Mapping[str, Any]) -> Any:
    """`_masked` by tensors whose sizes do not depend on the mask: padding is moved behind the tokens of its row, where
    it makes sequences that have no keys, or no queries."""
    there, own = mask.keys != 0, mask.queries != 0
    keys, values = _behind(there, k, v).tensors
    queries = _behind(own, q)
    bounds = _Packed(_three(own, of_queries=True), _three(there, of_queries=False), q.shape[1], k.shape[1])
    o = _packed(queries.tensors[0], keys, values, bounds, options)
    o = _taken(o, queries.back)
    o = torch.where(own[:, :, None, None], o, 0)
    if not mask.pattern.causal and mask.pattern.window < 0:
        return o  # every query is there
    seen = _in_window(there, mask.last, mask.pattern)
    keys, values = _behind(seen, k, v).tensors
    one = torch.ones_like(own[:, -1:])
    bounds = _Packed(_three(one, of_queries=True), _three(seen, of_queries=False), 1, k.shape[1])
    last = _packed(q[:, -1:], keys, values, bounds, {**options, **_ALL_KEYS})
    return torch.cat([o[:, :-1], torch.where(own[:, -1:, None, None], o[:, -1:], last)], dim=1)


@dataclass(frozen=True)
class _Behind:
    tensors: tuple[Any, ...]
    back: Any  # int64 [B, T]: where each element of a row is now


def _behind(there: Any, *tensors: Any) -> _Behind:
    """Tensors [B, T, H, D] with what is not there behind what is, in each row."""
    order = torch.argsort((~there).to(torch.int32), dim=1, stable=True)
    return _Behind(tuple(_taken(x, order) for x in tensors), torch.argsort(order, dim=1))


def _taken(x: Any, order: Any) -> Any:
    """x [B, T, H, D] in this order; torch.take_along_dim takes no symbolic sizes."""
    return x.gather(1, order[:, :, None, None].expand(-1, -1, *x.shape[2:]))


def _three(there: Any, *, of_queries: bool) -> Any:
    """Bounds of three sequences a row: its tokens, queries that are padding, and keys that are."""
    tokens = there.sum(1)
    rest, none = there.shape[1] - tokens, torch.zeros_like(tokens)
    lengths = torch.stack([tokens, rest, none] if of_queries else [tokens, none, rest], dim=1)
    return _sums(lengths.flatten())


def _bounds(mask: Mask) -> _Packed:
    """Of causal queries and keys whose sequences have these numbers."""
    queries, keys = mask.queries, mask.keys
    if not mask.pattern.packed:  # a row is one sequence
        return _Packed(_sums((queries != 0).sum(1)), _sums((keys != 0).sum(1)), queries.shape[1], keys.shape[1])
    longest = keys.shape[1]
    rows = torch.arange(keys.shape[0], device=keys.device)[:, None] * (longest + 1)
    sums = _sums(torch.unique_consecutive((rows + keys)[keys != 0], return_counts=True)[1])
    return _Packed(sums, sums, longest, longest)


def _sums(lengths: Any) -> Any:
    return torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))


def _packed(q: Any, k: Any, v: Any, bounds: _Packed, options: Mapping[str, Any]) -> Any:
    """Of rows [B, T, H, D], or [T, H, D] that were packed before, in the shape of q."""
    rows, keys, values = (tensor.flatten(0, 1) if tensor.ndim == 4 else tensor for tensor in (q, k, v))
    o = flash_attn_varlen_func(
        rows, keys, values, bounds.queries, bounds.keys, bounds.longest_queries, bounds.longest_keys, **options
    )
    return o.unflatten(0, q.shape[:2]) if q.ndim == 4 else o
