"""What paged_attention is tried on: inputs, extents that hit every edge, and the results in float64."""

from typing import Any

import numpy as np

from tuner.operator import Array, Arrays

from ..flash_attention import cases as dense
from ..streaming_attention.cases import of_sequences, sized
from ..streaming_attention.problem import Problem as Sequence
from ..streaming_attention.problem import attends
from .problem import Problem

INPUT_KINDS = dense.INPUT_KINDS
NOWHERE = 2**31 - 1  # in a table, for a page that nobody needs


def inputs(problem: Problem, rng: np.random.Generator, kind: str) -> Arrays:
    """What flash_attention draws, with lengths up to full, put into pages that lie anywhere.

    Keys that no sequence has are NaN, and tables name no page for them.
    """
    lengths = _lengths(problem, rng)
    drawn = dense.inputs(problem, rng, kind)  # type: ignore[arg-type]  # of which it reads the sizes
    table, caches = paged(problem, rng, lengths, (drawn["k"], drawn["v"]))
    shared = {name: drawn[name] for name in ("q", "softmax_scale")}
    return shared | {
        "k_cache": caches[0],
        "v_cache": caches[1],
        "block_table": table,
        "cache_seqlens": np.array(lengths, np.int32),
        "softcap": dense.SOFTCAP,
    }


def _lengths(problem: Problem, rng: np.random.Generator) -> list[int]:
    drawn = rng.integers(0, problem.seq_k, problem.batch, endpoint=True).tolist()
    return [problem.seq_k, *drawn[1:-1], 0] if problem.batch > 1 else [problem.seq_k]


def paged(
    problem: Problem, rng: np.random.Generator, lengths: list[int], of_keys: tuple[Array, ...]
) -> tuple[Array, list[Array]]:
    """A table, and a cache for each of `of_keys` [B, S, HK, D] with the first keys of each sequence.

    Pages are dealt out at random; where the cache has too few, sequences share them.
    """
    needed = [-(-length // problem.page_size) for length in lengths]
    order = np.resize(rng.permutation(problem.pages), sum(needed)).astype(np.int32)
    table = np.full((problem.batch, problem.max_pages), NOWHERE, np.int32)
    table[:, 1::2] = -1
    caches = [np.full((problem.pages, problem.page_size, *keys.shape[2:]), np.nan, keys.dtype) for keys in of_keys]
    for b, (length, own) in enumerate(zip(lengths, np.split(order, np.cumsum(needed)[:-1]), strict=True)):
        table[b, : len(own)] = own
        page, row = own[np.arange(length) // problem.page_size], np.arange(length) % problem.page_size
        for cache, keys in zip(caches, of_keys, strict=True):
            cache[page, row] = keys[b, :length]
    return table, caches


def reference(problem: Problem, arrays: Arrays) -> Arrays:
    """o [B, T, H, D] and lse [B, H, T] in float64, over all pairs of queries and keys."""
    return _attention(problem, arrays, rounded=False)


def rounded(problem: Problem, arrays: Arrays) -> Arrays:
    """The reference with the probabilities and o rounded to the dtype, as the kernels round them."""
    return _attention(problem, arrays, rounded=True)


def _attention(problem: Problem, arrays: Arrays, *, rounded: bool) -> Arrays:
    lengths = np.clip(arrays["cache_seqlens"], 0, problem.seq_k).tolist()
    return of_sequences(problem, lengths, lambda b, length: _one_sequence(problem, arrays, b, length, rounded=rounded))


def _one_sequence(problem: Problem, arrays: Arrays, b: int, length: int, *, rounded: bool) -> Arrays:
    of_both = ("head_dim", "dtype", "heads", "kv_heads", "seq_q", "window", "sinks")
    sizes: dict[str, Any] = {name: getattr(problem, name) for name in of_both}
    one = Sequence(**sizes, batch=1, seq_k=length)
    position = np.arange(length)
    at = arrays["block_table"][b, position // problem.page_size], position % problem.page_size
    keys = {name: np.nan_to_num(arrays[f"{name}_cache"][at][None]) for name in ("k", "v")}
    softcap = arrays["softcap"] if problem.use_softcap else 0.0
    given = arrays | keys | {"q": arrays["q"][b : b + 1]}
    return dense.attention(one, given, attends(one), rounded=rounded, softcap=softcap)


def tails(problem: Problem) -> tuple[Problem, ...]:
    """Pages smaller and larger than tiles, windows and sinks, more queries than positions: see the comments."""
    shapes = (
        (1, 1, 1, 1, 1, 1, 0, 0),  # one query, one key
        (3, 4, 1, 1, 16, 6, 0, 0),  # a step of decoding, one length full, one nothing
        (4, 2, 1, 2, 1, 150, 0, 0),  # a page a key
        (2, 2, 2, 5, 64, 3, 30, 5),  # pages wider than tiles, a window and sinks
        (1, 8, 1, 20, 8, 2, 0, 0),  # more queries than positions: some attend nothing; two tiles of rows
    )
    names = ("batch", "heads", "kv_heads", "seq_q", "page_size", "max_pages", "window", "sinks")
    return sized(problem, names, shapes, pages=0)
