"""The mask of a model as one tensor that says what a kernel computes: causality, window, padding and sequences.

Models describe a mask by a function of (batch, head, query, key), a window and the padding. Kernels support causality,
a window, and the bounds of sequences. `sequences` turns the first into the second and checks that both mean the same.
Attention then follows this tensor alone, as `eager` follows its mask.
"""

import sys
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any, NamedTuple

import torch
from transformers import MODEL_MAPPING
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, sdpa_mask

from tuner.errors import InputError

_CUSTOM = (
    "a custom mask of the model is not supported (only causality, a sliding window, padding and packed sequences are): "
    "load the model with attn_implementation='sdpa' or 'eager'"
)
_HOLES = "attention_mask with padding between tokens is not supported with a sliding window: put it on one side"
_ALIGNMENT = "queries that have no key of their own are not supported: load the model with attn_implementation='sdpa'"
_CHUNKED = "Llama4"
_ELEMENTS = 1 << 24  # of a mask that are evaluated at once
_HEADER = 2  # columns before those of queries
_DISTANCES = tuple(sign << power for power in range(31) for sign in (1, -1))  # between query and key


class Pattern(NamedTuple):
    """What is the same for every row of a mask, and known without reading the tensor's memory."""

    causal: bool
    window: int  # keys before a query's own; with causal=False also behind it; -1: no limit
    whole: bool  # no key is missing, and the last query's own key is the last one
    packed: bool  # a row may hold several sequences

    def encoded(self) -> int:
        """A negative integer, which no other element of a mask is."""
        return -1 - ((self.window + 1) * 8 + self.causal * 4 + self.whole * 2 + self.packed)

    @classmethod
    def decoded(cls, code: int) -> "Pattern":
        bits = -1 - code
        return cls(bool(bits & 4), bits // 8 - 1, bool(bits & 2), bool(bits & 1))


class Mask(NamedTuple):
    """A mask as attention reads it."""

    pattern: Pattern
    last: Any  # int32 [B]: index of the last query's own key
    queries: Any  # int32 [B, T]: the number of a query's sequence, from 1 on, 0 for padding
    keys: Any  # int32 [B, S]: the same of keys


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
    """int32 [B, 1, 1, 2 + T + S], of which `read` makes a Mask. transformers hands masks of four dims on unchanged.

    Raises InputError for models that do not support flash attention, and for a mask that is more than padding, packed
    sequences, causality and a window.
    """
    kind: Any = type(config)
    _refuse_model(kind)
    causal = allow_is_bidirectional_skip is None
    traced = torch.compiler.is_compiling()
    q_offset = q_offset if traced else int(q_offset)  # of a static cache a tensor
    offset = q_offset - kv_offset  # of the first query's own key
    fixed = not isinstance(offset, torch.Tensor)
    window = -1 if local_size is None else local_size - 1 if causal else local_size
    if not traced and window >= min(offset + q_length, kv_length) - 1:
        window = -1
    _refuse_unaligned(offset, q_length, kv_length, causal=causal, window=window)
    usual = not use_vmap and (allow_is_causal_skip if causal else bool(allow_is_bidirectional_skip))
    there = None if attention_mask is None else _padded(attention_mask, kv_offset, kv_length)
    numbers = None
    if mask_function is not (causal_mask_function if causal else bidirectional_mask_function) or window >= 0:
        if not usual and fixed and offset == 0 and q_length == kv_length and not use_vmap:
            numbers = _segments(batch_size, kv_length, mask_function, device)
        agrees = _agrees_on_samples if not use_vmap and (usual or traced) else _agrees
        sizes = (batch_size, q_length, kv_length, q_offset, kv_offset)
        if (
            use_vmap
            and causal
            and not traced
            and not agrees(sizes, mask_function, (None, there), (True, window), device)
        ):
            causal = False  # as in models that turn a causal mask into one of both sides
            _refuse_unaligned(offset, q_length, kv_length, causal=causal, window=window)
        assure(agrees(sizes, mask_function, (numbers, there), (causal, window), device), _CUSTOM)
    if there is not None and not traced and bool(there.all()):
        there = None
    aligned = not causal or (fixed and offset + q_length == kv_length)
    pattern = Pattern(causal, window, there is None and aligned, numbers is not None)
    return _assembled(pattern, (batch_size, q_length, kv_length, offset), numbers, there, device)


def _assembled(pattern: Pattern, sizes: tuple[int, int, int, Any], numbers: Any, there: Any, device: Any) -> Any:
    batch, queries, keys, offset = sizes
    sequence_of_key = torch.ones(batch, keys, dtype=torch.int32, device=device) if numbers is None else numbers
    sequence_of_key = sequence_of_key if there is None else sequence_of_key * there
    index = offset + torch.arange(queries, device=device)
    if pattern.causal and not pattern.whole:
        sequence_of_key = sequence_of_key * (torch.arange(keys, device=device) <= offset + queries - 1)
    if pattern.window >= 0:
        begins = (sequence_of_key[:, 1:] > 0) & (sequence_of_key[:, :-1] == 0)
        assure((begins.sum(1) + (sequence_of_key[:, 0] > 0) <= 1).all(), _HOLES)
    if pattern.causal or pattern.window >= 0:
        own = sequence_of_key[:, index]
    else:
        own = torch.ones(batch, queries, dtype=torch.int32, device=device)
    header = torch.stack([torch.full_like(index[-1:], pattern.encoded()), index[-1:]], 1).expand(batch, -1)
    mask = torch.cat([header.to(torch.int32), own, sequence_of_key.to(torch.int32)], dim=1)[:, None, None]
    mask.pattern = tuple(pattern)
    return mask


def read(mask: Any, queries: int, keys: int) -> Mask:
    """Raises InputError for a tensor that `sequences` did not make, and for one of other queries and keys."""
    if mask.ndim != 4 or mask.dtype != torch.int32 or mask.shape[1] != 1 or mask.shape[2] != 1:
        raise InputError(
            f"attention_mask {[*mask.shape]} of {mask.dtype} is not supported: give [B, S] with 0 where there is "
            "padding, "
            "or load the model with attn_implementation='sdpa'"
        )
    if mask.shape[3] != _HEADER + queries + keys:
        raise InputError(
            f"attention has {queries} queries and {keys} keys, and the model's mask {mask.shape[3] - _HEADER} of both: "
            "load the model with attn_implementation='eager'"
        )
    fields = getattr(mask, "pattern", None)  # lost where a model changes the mask, or moves it to another device
    pattern = Pattern.decoded(int(mask[0, 0, 0, 0])) if fields is None else Pattern(*fields)
    rows = mask[:, 0, 0]
    return Mask(pattern, rows[:, 1], rows[:, _HEADER : _HEADER + queries], rows[:, _HEADER + queries :])


def assure(holds: Any, message: str) -> None:
    """Raise InputError if a tensor of one element is false; a compiled graph asserts it when it runs."""
    if torch.compiler.is_compiling():
        torch._assert_async(holds, message)
    elif not bool(holds):
        raise InputError(message)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator, unused-ignore]  # torch may be absent
def attention_classes(module: str) -> list[str]:
    """Return the tables of attention classes in a module of transformers that does not use AttentionInterface; empty if
    it uses AttentionInterface, or has no such table.
    """
    names = vars(sys.modules[module])
    tables = [name for name in names if name.endswith("ATTENTION_CLASSES")]
    return [] if "ALL_ATTENTION_FUNCTIONS" in names else tables


@cache
def _refuse_model(config: Hashable) -> None:
    """Refuse a model that does not call its attention by name, and one that adds biases to the scores, for which
    transformers supports no flash attention either. Models with chunked masks are accepted; their masks are compared.
    """
    try:
        model = MODEL_MAPPING[config]
    except KeyError:
        return
    for kind in model if isinstance(model, tuple) else (model,):
        if names := attention_classes(kind.__module__):
            raise InputError(
                f"{kind.__name__} takes its attention from classes of its own ({names[0]}), not by name: load it with "
                "attn_implementation='eager' or 'sdpa'"
            )
        if not kind._supports_flash_attn and not kind.__name__.startswith(_CHUNKED):
            raise InputError(f"{kind.__name__} takes no flash attention: load it with attn_implementation='eager'")


def _refuse_unaligned(offset: Any, queries: int, keys: int, *, causal: bool, window: int) -> None:
    """Kernels align a window and causality at the last query and key of a sequence."""
    if isinstance(offset, torch.Tensor):
        return  # of a static cache, which has room for the queries
    if causal and (offset < 0 or offset + queries > keys):
        raise InputError(_ALIGNMENT)
    if not causal and window >= 0 and (offset != 0 or queries != keys):
        raise InputError(_ALIGNMENT)


def _padded(attention_mask: Any, offset: int, keys: int) -> Any:
    """bool [B, keys] of the keys from `offset` on; what the mask does not reach is no key."""
    if attention_mask.ndim != 2:
        raise InputError(
            f"attention_mask {[*attention_mask.shape]} is not supported: give [B, S], 0 where there is padding"
        )
    there = attention_mask[:, offset : offset + keys].bool()
    return torch.nn.functional.pad(there, (0, keys - there.shape[1]))


def _segments(batch: int, keys: int, mask_function: Callable[..., Any], device: Any) -> Any:
    """int32 [B, keys]: a sequence ends where a query does not see the key before its own."""
    of_batch = torch.arange(batch, device=device)[:, None, None, None]
    queries = torch.arange(keys, device=device)[None, None, :, None]
    heads = torch.zeros_like(of_batch)
    seen = mask_function(of_batch, heads, queries, (queries - 1).clamp(min=0))
    seen = torch.broadcast_to(seen, (batch, 1, keys, 1))[:, 0, :, 0]
    begins = torch.cat([torch.ones_like(seen[:, :1]), ~seen[:, 1:]], dim=1)
    return begins.cumsum(1, dtype=torch.int32)


def _agrees(
    sizes: tuple[int, int, int, Any, int],
    mask_function: Callable[..., Any],
    keys_of: tuple[Any, Any],
    pattern: tuple[bool, int],
    device: Any,
) -> Any:
    """Whether the function and what kernels compute are equal for every query and key: a tensor of one bool.

    keys_of: the number of each key's sequence, and whether the key is there, which may be None.
    """
    (batch, queries, keys, q_offset, kv_offset), (numbers, there) = sizes, keys_of
    traced = torch.compiler.is_compiling()  # a loop would bind a graph to one number of queries
    step = queries if traced else max(1, _ELEMENTS // max(1, batch * keys))
    agreed = torch.ones((), dtype=torch.bool, device=device)
    for first in range(0, 1 if traced else queries, step):
        count = step if traced else min(step, queries - first)
        wanted = sdpa_mask(
            batch_size=batch,
            q_length=count,
            kv_length=keys,
            q_offset=q_offset + first,
            kv_offset=kv_offset,
            mask_function=mask_function,
            allow_is_causal_skip=False,
            use_vmap=True,
            device=device,
        )
        own = q_offset + first + torch.arange(count, device=device)[:, None]
        served = _served(own, kv_offset + torch.arange(keys, device=device), *pattern)
        if numbers is not None:
            served = served & (numbers[:, first : first + count, None] == numbers[:, None, :])[:, None]
        equal = wanted == served
        agreed = agreed & (equal if there is None else equal | ~there[:, None, None]).all()
    return agreed


def _agrees_on_samples(
    sizes: tuple[int, int, int, Any, int],
    mask_function: Callable[..., Any],
    keys_of: tuple[Any, Any],
    pattern: tuple[bool, int],
    device: Any,
) -> Any:
    """The same on some 70 keys of each query: its own, those on both sides of the window's edges, and those at
    distances of powers of two. A mask of one interval of keys for each query, or of blocks, differs there if it differs
    at all."""
    (batch, queries, keys, q_offset, kv_offset), (numbers, there) = sizes, keys_of
    own = (q_offset + torch.arange(queries, device=device))[None, None, :, None]
    edges = [0] if pattern[1] < 0 else [0, -pattern[1], -pattern[1] - 1, pattern[1], pattern[1] + 1]
    at = own + torch.tensor([*edges, *_DISTANCES], device=device)
    at = at.clamp(min=kv_offset).clamp(max=kv_offset + keys - 1)
    of_batch = torch.arange(batch, device=device)[:, None, None, None]
    wanted = mask_function(of_batch, torch.zeros_like(of_batch), own, at)
    served = _served(own, at, *pattern)
    row = of_batch.expand(batch, 1, queries, at.shape[3])
    key = (at - kv_offset).expand_as(row)
    if numbers is not None:
        served = served & (numbers[row, key] == numbers[row, (own - kv_offset).expand_as(row)])
    equal = wanted == served
    return (equal if there is None else equal | ~there[row, key]).all()


def _served(queries: Any, keys: Any, causal: bool, window: int) -> Any:
    """bool, broadcast of both: what kernels let queries see."""
    seen = keys <= queries if causal else (keys == keys) & (queries == queries)
    return seen if window < 0 else seen & ((queries - keys).abs() <= window)
