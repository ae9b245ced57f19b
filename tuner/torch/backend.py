"""A backend for torch's native flash attention on CUDA, which users activate by name.

    torch.nn.attention.activate_flash_attention_impl("kerntune")

Then torch.nn.functional.scaled_dot_product_attention runs these kernels whenever it selects flash attention, in any
thread, until `restore_flash_attention_impl()`. In this path torch pads head_dim to a multiple of 8, and supports
is_causal only for equal numbers of queries and keys.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tuner.torch.tensor_layout import addressable, dense
from tuner.torch.unsupported_arguments import refuse

NAME = "kerntune"


@dataclass
class _Active:
    """The object that torch keeps while the kernels are active."""

    library: Any

    def remove(self) -> None:
        self.library = None


def register() -> None:
    """Register the name with torch; nothing changes until it is activated. Without such a registry in torch, do
    nothing.
    """
    tells = getattr(torch.nn.attention, "register_flash_attention_impl", None)
    if tells is not None:
        tells(NAME, register_fn=_activate)


def _activate() -> _Active:
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call, unused-ignore]  # torch may be absent
    for name, kernel in KERNELS.items():
        library.impl(name, kernel, "CUDA")
    return _Active(library)


def _forward(
    query: Any,
    key: Any,
    value: Any,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: int,
    max_k: int,  # noqa: ARG001  # kernels read where keys end
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float | None = None,
    **others: Any,
) -> tuple[Any, ...]:
    """Return o, lse and the values for dropout, of [B, T, H, D], or of [T, H, D] with the offsets of sequences."""
    windows = _windows(dropout_p, others | {"return_debug_mask": return_debug_mask})
    packed = cum_seq_q is not None
    rows = [addressable(tensor[None] if packed else tensor) for tensor in (query, key, value)]
    o, lse = torch.ops.tuner.flash_attention(
        *rows, *_bounds(cum_seq_q, cum_seq_k), **_options(cum_seq_q, max_q, is_causal, scale), **windows
    )
    nothing = torch.zeros(2, dtype=torch.uint64, device=query.device)
    return (*((o[0], lse[0]) if packed else (o, lse)), nothing, nothing[0], o.new_empty(0))


def _backward(
    grad_out: Any,
    query: Any,
    key: Any,
    value: Any,
    out: Any,
    logsumexp: Any,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: int,
    max_k: int,  # noqa: ARG001
    dropout_p: float,
    is_causal: bool,
    rng_state: Any,  # noqa: ARG001  # there is no dropout
    unused: Any,  # noqa: ARG001
    *,
    scale: float | None = None,
    **others: Any,
) -> tuple[Any, ...]:
    windows = _windows(dropout_p, others)
    packed = cum_seq_q is not None
    rows = [addressable(tensor[None] if packed else tensor) for tensor in (grad_out, query, key, value, out)]
    lse = dense(logsumexp[None] if packed else logsumexp)
    gradients = torch.ops.tuner.flash_attention_backward(
        *rows, lse, *_bounds(cum_seq_q, cum_seq_k), **_options(cum_seq_q, max_q, is_causal, scale), **windows
    )[:3]  # no sinks, which would need a gradient
    return tuple(gradient[0] for gradient in gradients) if packed else tuple(gradients)


def _sdpa_forward(
    query: Any,
    key: Any,
    value: Any,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """`_forward` on [B, H, T, D]; its backward call receives the lengths."""
    q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
    queries, keys = query.shape[2], key.shape[2]
    o, lse, *rest = _forward(q, k, v, None, None, queries, keys, dropout_p, is_causal, return_debug_mask, scale=scale)
    return (o.transpose(1, 2), lse, None, None, queries, keys, *rest)


def _sdpa_backward(
    grad_out: Any, query: Any, key: Any, value: Any, out: Any, lse: Any, *told: Any, **options: Any
) -> Any:
    do, q, k, v, o = (tensor.transpose(1, 2) for tensor in (grad_out, query, key, value, out))
    gradients = _backward(do, q, k, v, o, lse, None, None, *told[2:], **options)
    return tuple(gradient.transpose(1, 2) for gradient in gradients)


KERNELS = {
    "_flash_attention_forward": _forward,
    "_flash_attention_backward": _backward,
    "_scaled_dot_product_flash_attention": _sdpa_forward,
    "_scaled_dot_product_flash_attention_backward": _sdpa_backward,
}


def _windows(dropout_p: float, others: Mapping[str, Any]) -> dict[str, int]:
    """Return the options that torch's call implies. Other arguments are refused."""
    sides = {f"window_{side}": others.get(f"window_size_{side}") for side in ("left", "right")}
    rest = {name: value for name, value in others.items() if not name.startswith("window_size")}
    refuse(f"flash attention by {NAME}", {"dropout_p": dropout_p, **rest}, "restore_flash_attention_impl() before")
    return {name: -1 if width is None else int(width) for name, width in sides.items()}


def _bounds(cum_seq_q: Any, cum_seq_k: Any) -> tuple[Any, ...]:
    return () if cum_seq_q is None else (dense(cum_seq_q), dense(cum_seq_k))


def _options(cum_seq_q: Any, max_q: int, is_causal: bool, scale: float | None) -> dict[str, Any]:
    longest = {} if cum_seq_q is None else {"max_seqlen_q": max(int(max_q), 1)}
    return {"causal": is_causal, "softmax_scale": scale, **longest}
