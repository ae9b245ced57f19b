"""Paged caches in the form that kernels address: any page size, tables of any integer type, checked lengths."""

from collections.abc import Mapping
from typing import Any

import torch

from tuner.errors import InputError


def int32(x: Any) -> Any:
    """Convert int64 lengths, offsets or tables to the type that kernels read."""
    return x.to(torch.int32) if isinstance(x, torch.Tensor) and x.dtype == torch.int64 else x


def longest_of(q: Any, max_seqlen_q: Any) -> Any:
    """Return the number of queries of the longest sequence, at least 1; symbolic while a graph is traced."""
    longest = q.shape[0] if max_seqlen_q is None else max_seqlen_q
    return torch.sym_max(longest if isinstance(longest, torch.SymInt) else int(longest), 1)


def in_powers_of_two(function: str, block_table: Any, **caches: Any) -> tuple[Any, ...]:
    """Return the table and the caches [pages, page_size, …] with a power of two as page size: other pages are split.

    A page of 48 rows becomes three pages of 16 consecutive rows, without a copy. Raises InputError if the strides of
    the caches do not allow it.
    """
    first = next(iter(caches.values()))
    size = first.shape[1]
    part = size & -size
    if part == size:
        return (int32(block_table), *caches.values())
    parts, pages = size // part, first.shape[0]
    steps = {name: _parts_apart(cache, part, parts) for name, cache in caches.items()}
    if 0 in steps.values() or len(set(steps.values())) > 1:
        raise InputError(
            f"{function}: pages of {size} rows are cut into {part} rows, which {_strides(caches)} do not allow: give "
            f"caches whose pages lie a multiple of {part} rows apart, both alike"
        )
    step = steps[next(iter(steps))]
    within = torch.arange(parts, dtype=torch.int32, device=block_table.device)
    table = (int32(block_table)[..., None] * step + within).flatten(1)
    count = (pages - 1) * step + parts if pages else 0
    return (table, *(_cut(cache, part, count) for cache in caches.values()))


def _parts_apart(cache: Any, part: int, parts: int) -> Any:
    """Return the distance between pages in parts of a page; 0 if it is not a multiple."""
    if cache.shape[0] < 2:
        return parts
    of_page, of_part = cache.stride(0), part * cache.stride(1)
    return 0 if of_page % of_part else of_page // of_part


def _cut(cache: Any, part: int, count: int) -> Any:
    shape, (_, row, *rest) = (count, part, *cache.shape[2:]), cache.stride()
    return cache.as_strided(shape, (part * row, row, *rest))  # relative to the start of the cache


def _strides(caches: Mapping[str, Any]) -> str:
    return " and ".join(f"the strides {[*cache.stride()]} of {name}" for name, cache in caches.items())


def with_room(function: str, name: str, lengths: Any, room: int, added: int = 0) -> Any:
    """Return the lengths. Raises InputError if a length plus `added` positions exceeds the capacity of the cache.

    On a GPU this does not wait for the device, which stops with the same message.
    """
    more = f" and {added} new positions" * bool(added)
    message = f"{function}: {name}{more} go beyond the cache, which has room for {room} positions of a sequence"
    if lengths.device.type == "meta":
        return lengths
    if lengths.device.type == "cpu" and type(lengths) is torch.Tensor and not torch.compiler.is_compiling():
        if lengths.numel() and int(lengths.max()) + added > room:
            raise InputError(f"{message}: {name} has {int(lengths.max())}")
    else:
        torch._assert_async((lengths <= room - added).all(), message)
    return lengths
