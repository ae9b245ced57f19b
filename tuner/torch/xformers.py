"""Attention with the signature of xFormers' memory_efficient_attention, so that swapping is one import.

    from tuner.xformers import memory_efficient_attention  # in place of xformers.ops

Masks are xFormers' own objects, which are recognised by the names of their classes: xFormers is not imported.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from tuner.errors import InputError
from tuner.torch.flash import flash_attn_func, flash_attn_varlen_func
from tuner.torch.unsupported_arguments import refuse

_NAME, _THEIRS = "memory_efficient_attention", "xformers.ops'"


class _Rule(NamedTuple):
    """What a class of masks means."""

    causal: bool = False
    at_first: bool = False  # causal is aligned at the first query and key of a sequence, not at the last
    local: bool = False  # a window of `_window_size` keys, a query's own included


_DENSE = {
    "LowerTriangularMask": _Rule(causal=True, at_first=True),
    "LowerTriangularFromBottomRightMask": _Rule(causal=True),
    "LowerTriangularFromBottomRightLocalAttentionMask": _Rule(causal=True, local=True),
}
_PACKED = {
    "BlockDiagonalMask": _Rule(),
    "BlockDiagonalCausalMask": _Rule(causal=True, at_first=True),
    "BlockDiagonalCausalFromBottomRightMask": _Rule(causal=True),
    "BlockDiagonalCausalLocalAttentionMask": _Rule(causal=True, at_first=True, local=True),
    "BlockDiagonalCausalLocalAttentionFromBottomRightMask": _Rule(causal=True, local=True),
}
_PAGED = {
    "BlockDiagonalPaddedKeysMask": _Rule(),
    "BlockDiagonalCausalWithOffsetPaddedKeysMask": _Rule(causal=True),
    "PagedBlockDiagonalPaddedKeysMask": _Rule(),
    "PagedBlockDiagonalCausalWithOffsetPaddedKeysMask": _Rule(causal=True),
}


def memory_efficient_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: float | None = None,
    *,
    op: Any = None,  # noqa: ARG001  # a choice among xFormers' kernels
    output_dtype: Any = None,
) -> Any:
    """softmax(scale · query keyᵀ + attn_bias) value. Returns a tensor as query, with value's last dim.

    query: [B, T, H, D], [B, T, D] of one head, or [B, T, G, H, D] of G groups of H heads; key and value as query with S
    rows, and heads that are expanded or as many. attn_bias: None; a lower-triangular mask of xFormers, aligned at the
    first or the last query and key as its name says, with or without a window; or a block-diagonal mask, which packs
    sequences into a batch of 1, also over padded keys and over pages of keys. scale: default D ** -0.5. Gradients flow
    to all three tensors, but not over padded keys and pages.

    Raises InputError for dropout, tensors as attn_bias, other masks, output_dtype other than query's, and masks that
    are causal from the first key in sequences with other numbers of keys than queries.
    """
    refuse(_NAME, {"p": p}, _THEIRS)
    if output_dtype is not None and output_dtype != query.dtype:
        raise InputError(f"{_NAME}: output_dtype={output_dtype} is not supported: leave it out, and convert the result")
    q, k, v = _four_dims(query, key, value)
    o = _attended(q, k, v, attn_bias, {"softmax_scale": scale})
    return o.reshape(*query.shape[:-1], o.shape[-1])


def _four_dims(query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
    """[B, T, H, D] of each. The heads of a group, where key and value are expanded over them, are one."""
    if query.ndim == 3:
        return query[:, :, None], key[:, :, None], value[:, :, None]
    if query.ndim == 5:
        expanded = key.stride(3) == value.stride(3) == 0
        k, v = (x[:, :, :, 0] if expanded else x.flatten(2, 3) for x in (key, value))
        return query.flatten(2, 3), k, v
    if query.ndim != 4:
        raise InputError(f"{_NAME}: query has {query.ndim} dims: give [B, T, H, D], [B, T, D] or [B, T, G, H, D]")
    return query, key, value


def _attended(q: Any, k: Any, v: Any, attn_bias: Any, options: Mapping[str, Any]) -> Any:
    if attn_bias is None:
        return flash_attn_func(q, k, v, **options)
    name = type(attn_bias).__name__
    if rule := _DENSE.get(name):
        _refuse_alignment(rule, name, q.shape[1] == k.shape[1])
        return flash_attn_func(q, k, v, **options, **_limits(rule, attn_bias))
    if rule := _PACKED.get(name):
        return _packed(q, k, v, attn_bias, rule, options)
    if rule := _PAGED.get(name):
        return _paged(q, k, v, attn_bias, rule, options)
    what = "a tensor" if isinstance(attn_bias, torch.Tensor) else name
    raise InputError(f"{_NAME}: attn_bias={what} is not supported: call xformers.ops.{_NAME}")


def _limits(rule: _Rule, attn_bias: Any) -> dict[str, Any]:
    window = (attn_bias._window_size - 1, 0) if rule.local else (-1, -1)
    return {"causal": rule.causal, "window_size": window}


def _refuse_alignment(rule: _Rule, name: str, square: bool) -> None:
    if rule.at_first and not square:
        raise InputError(
            f"{_NAME}: {name} with other numbers of keys than queries is not supported, since it is aligned at the "
            "first: "
            "give the mask of this name with FromBottomRight in it, or as many keys as queries"
        )


def _packed(q: Any, k: Any, v: Any, attn_bias: Any, rule: _Rule, options: Mapping[str, Any]) -> Any:
    queries, keys = attn_bias.q_seqinfo, attn_bias.k_seqinfo
    _refuse_alignment(rule, type(attn_bias).__name__, list(queries.seqstart_py) == list(keys.seqstart_py))
    o = flash_attn_varlen_func(
        _one(q),
        _one(k),
        _one(v),
        _on(queries.seqstart, q),
        _on(keys.seqstart, q),
        queries.max_seqlen,
        keys.max_seqlen,
        **options,
        **_limits(rule, attn_bias),
    )
    return o[None]


def _paged(q: Any, k: Any, v: Any, attn_bias: Any, rule: _Rule, options: Mapping[str, Any]) -> Any:
    """Padded keys are pages of as many rows as a sequence has room for."""
    queries, keys = attn_bias.q_seqinfo, attn_bias.k_seqinfo
    table = getattr(attn_bias, "block_tables", None)
    size = keys.padding if table is None else attn_bias.page_size
    if table is None:
        table = torch.arange(len(keys.seqstart_py) - 1, dtype=torch.int32)[:, None]
    k_cache, v_cache = (_one(x).unflatten(0, (-1, size)) for x in (k, v))
    return flash_attn_varlen_func(
        _one(q),
        k_cache,
        v_cache,
        _on(queries.seqstart, q),
        None,
        queries.max_seqlen,
        seqused_k=_on(keys.seqlen, q),
        block_table=_on(table, q),
        **options,
        **_limits(rule, attn_bias),
    )[None]


def _one(x: Any) -> Any:
    """The rows of all sequences, [T, H, D]."""
    if x.shape[0] != 1:
        raise InputError(f"{_NAME}: a block-diagonal mask goes with a batch of 1, in which sequences are packed")
    return x[0]


def _on(x: Any, q: Any) -> Any:
    return x.to(device=q.device, dtype=torch.int32)
