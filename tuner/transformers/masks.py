"""Which keys there are: the mask of a model as one number a key, by which attention finds the sequences.

Models describe a mask by a function of (sequence, head, query, key), a window and the padding. Kernels know causal or
not, a window, and where sequences begin and end. A function that is none of the usual ones is evaluated and compared
with what the kernels will compute, so that no part of it is dropped in silence.
"""

from collections.abc import Callable, Hashable
from functools import cache
from typing import Any

import torch
from transformers import MODEL_MAPPING
from transformers.masking_utils import causal_mask_function, sdpa_mask

from tuner.errors import InputError

_OWN = (
    "a mask of the model's own is not served (only causality, a sliding window, padding and packed sequences are): "
    "load the model with attn_implementation='sdpa' or 'eager'"
)
_ELEMENTS = 1 << 24  # of a mask that are evaluated at once


def sequences(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Any = None,
    *,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool | None = None,
    use_vmap: bool = False,
    config: Any = None,
    device: Any = "cpu",
    **_others: Any,
) -> Any:
    """None where every query sees all keys that causality and the window leave it, else int32 [B, S], or int64 where
    every key is there.

    Its S are the keys up to the last query's own, of which a static cache has more; an element is 0 for what is no key,
    and else the number of the key's sequence, from 1 on; negative where a model that is causal otherwise is not.

    Raises InputError for models that take no flash attention, and for a mask that is more than padding, packed
    sequences, causality and a window.
    """
    kind: Any = type(config)
    _refuse_model(kind)
    causal = allow_is_bidirectional_skip is None
    rows = min(int(q_offset) + q_length - kv_offset, kv_length) if causal else kv_length
    usual = not use_vmap and (mask_function is causal_mask_function or allow_is_causal_skip)
    numbers = None
    if not (usual if causal else allow_is_bidirectional_skip):
        numbers = _packed(batch_size, rows, mask_function, device) if rows == q_length and not use_vmap else None
        sizes = (batch_size, q_length, rows, int(q_offset), kv_offset)
        _compare(sizes, mask_function, numbers, (causal, local_size), use_vmap, device)
    there = None if attention_mask is None else _padded(attention_mask, kv_offset, rows)
    if there is not None and local_size is not None and rows > local_size:
        _refuse_holes(there)
    inverted = not causal and not getattr(config, "is_causal", True)
    if numbers is None and rows == kv_length and not inverted and (there is None or bool(there.all())):
        return None
    numbers = torch.ones(batch_size, rows, dtype=torch.int32, device=device) if numbers is None else numbers
    numbers = numbers.long() if there is None and rows == kv_length else numbers
    numbers = numbers if there is None else numbers * there
    return -numbers if inverted else numbers


def assure(holds: Any, message: str) -> None:
    """Raises InputError where a tensor of one element is false; what torch.compile traced asserts it when it runs."""
    if torch.compiler.is_compiling():
        torch._assert_async(holds, message)
    elif not bool(holds):
        raise InputError(message)


@cache
def _refuse_model(config: Hashable) -> None:
    """A model that adds biases of its own to the scores is known by this: it takes no other flash attention either."""
    try:
        model = MODEL_MAPPING[config]
    except KeyError:
        return
    for each in model if isinstance(model, tuple) else (model,):
        if not each._supports_flash_attn:
            raise InputError(f"{each.__name__} takes no flash attention: load it with attn_implementation='eager'")


def _padded(attention_mask: Any, offset: int, rows: int) -> Any:
    """bool [B, rows] of the keys from `offset` on; what the mask does not reach is no key.

    A mask of just so many keys was found before: `generate` prepares those of static caches itself, and hands them on.
    """
    if attention_mask.ndim != 2:
        raise InputError(
            f"attention_mask {[*attention_mask.shape]} is not served: give [B, S], 0 where there is padding"
        )
    if attention_mask.shape[1] == rows:
        return attention_mask.bool()
    found = attention_mask[:, offset : offset + rows].bool()
    return torch.nn.functional.pad(found, (0, rows - found.shape[1]))


def _refuse_holes(there: Any) -> None:
    """Keys are put side by side: a window counts what lies between them, and padding would be left out."""
    begins = there[:, 1:] & ~there[:, :-1]
    if bool((begins.sum(1) + there[:, 0] > 1).any()):
        raise InputError(
            "attention_mask with padding between tokens is not served with a sliding window: put it on one side"
        )


def _packed(batch: int, rows: int, mask_function: Callable[..., Any], device: Any) -> Any:
    """int32 [B, rows]: a sequence ends where a query does not see the key before its own."""
    of_batch = torch.arange(batch, device=device)[:, None, None, None]
    queries = torch.arange(rows, device=device)[None, None, :, None]
    heads = torch.zeros_like(of_batch)
    seen = mask_function(of_batch, heads, queries, (queries - 1).clamp(min=0))
    seen = torch.broadcast_to(seen, (batch, 1, rows, 1))[:, 0, :, 0]
    begins = torch.cat([torch.ones_like(seen[:, :1]), ~seen[:, 1:]], dim=1)
    return begins.cumsum(1, dtype=torch.int32)


def _compare(
    sizes: tuple[int, int, int, int, int],
    mask_function: Callable[..., Any],
    numbers: Any,
    pattern: tuple[bool, int | None],
    use_vmap: bool,
    device: Any,
) -> None:
    """Raises InputError where the function and what will be computed differ. Masks are made some rows at a time."""
    batch, queries, keys, q_offset, kv_offset = sizes
    step = max(1, _ELEMENTS // max(1, batch * keys))
    for first in range(0, queries, step):
        count = min(step, queries - first)
        wanted = sdpa_mask(
            batch_size=batch,
            q_length=count,
            kv_length=keys,
            q_offset=q_offset + first,
            kv_offset=kv_offset,
            mask_function=mask_function,
            allow_is_causal_skip=False,
            use_vmap=use_vmap,
            device=device,
        )
        own = torch.arange(first + q_offset, first + q_offset + count, device=device)[:, None]
        served = _served(own, torch.arange(kv_offset, kv_offset + keys, device=device), *pattern)
        if numbers is not None:
            served = served & (numbers[:, first : first + count, None] == numbers[:, None, :])[:, None]
        assure((wanted == served).all(), _OWN)


def _served(queries: Any, keys: Any, causal: bool, window: int | None) -> Any:
    """bool [queries, keys]: what kernels let queries see."""
    seen = keys <= queries if causal else (keys == keys) & (queries == queries)
    if window is None:
        return seen
    near = keys > queries - window if causal else (queries - keys).abs() <= window
    return seen & near
