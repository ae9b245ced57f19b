"""The kernels of torch's own flash attention, on CUDA, for who asks for them.

    torch.nn.attention.activate_flash_attention_impl("kerntune")

Then torch.nn.functional.scaled_dot_product_attention runs these kernels wherever it chooses flash attention, in any
thread, until `restore_flash_attention_impl()`. There torch pads a head_dim to a multiple of 8, and takes is_causal only
with as many queries as keys.
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
    """What torch holds while the kernels are in place."""

    library: Any

    def remove(self) -> None:
        self.library = None


def register() -> None:
    """Tells torch the name; nothing is changed before somebody activates it. A torch that has no such list is left."""
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
    """o, lse, and what tells of dropout, of [B, T, H, D], or of [T, H, D] and where sequences begin."""
    windows = _windows(dropout_p, others | {"return_debug_mask": return_debug_mask})
    packed = cum_seq_q is not None
    rows = [addressable(each[None] if packed else each) for each in (query, key, value)]
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
    rows = [addressable(each[None] if packed else each) for each in (grad_out, query, key, value, out)]
    lse = dense(logsumexp[None] if packed else logsumexp)
    found = torch.ops.tuner.flash_attention_backward(
        *rows, lse, *_bounds(cum_seq_q, cum_seq_k), **_options(cum_seq_q, max_q, is_causal, scale), **windows
    )[:3]  # there are no sinks to have a gradient
    return tuple(each[0] for each in found) if packed else tuple(found)


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
    """`_forward` of [B, H, T, D], with the lengths that its backward call is given."""
    q, k, v = (each.transpose(1, 2) for each in (query, key, value))
    queries, keys = query.shape[2], key.shape[2]
    o, lse, *rest = _forward(q, k, v, None, None, queries, keys, dropout_p, is_causal, return_debug_mask, scale=scale)
    return (o.transpose(1, 2), lse, None, None, queries, keys, *rest)


def _sdpa_backward(
    grad_out: Any, query: Any, key: Any, value: Any, out: Any, lse: Any, *told: Any, **options: Any
) -> Any:
    do, q, k, v, o = (each.transpose(1, 2) for each in (grad_out, query, key, value, out))
    found = _backward(do, q, k, v, o, lse, None, None, *told[2:], **options)
    return tuple(each.transpose(1, 2) for each in found)


KERNELS = {
    "_flash_attention_forward": _forward,
    "_flash_attention_backward": _backward,
    "_scaled_dot_product_flash_attention": _sdpa_forward,
    "_scaled_dot_product_flash_attention_backward": _sdpa_backward,
}


def _windows(dropout_p: float, others: Mapping[str, Any]) -> dict[str, int]:
    """What queries see, of what stands in torch's calls beside that. The rest is refused."""
    sides = {f"window_{side}": others.get(f"window_size_{side}") for side in ("left", "right")}
    rest = {name: value for name, value in others.items() if not name.startswith("window_size")}
    refuse(f"flash attention by {NAME}", {"dropout_p": dropout_p, **rest}, "restore_flash_attention_impl() before")
    return {name: -1 if width is None else int(width) for name, width in sides.items()}


def _bounds(cum_seq_q: Any, cum_seq_k: Any) -> tuple[Any, ...]:
    return () if cum_seq_q is None else (dense(cum_seq_q), dense(cum_seq_k))


def _options(cum_seq_q: Any, max_q: int, is_causal: bool, scale: float | None) -> dict[str, Any]:
    longest = {} if cum_seq_q is None else {"max_seqlen_q": max(int(max_q), 1)}
    return {"causal": is_causal, "softmax_scale": scale, **longest}
