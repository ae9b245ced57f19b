"""What paged_attention is tried on: inputs, extents that hit every edge, and the results in float64."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from tuner.errors import UsageError
from tuner.spec import Array, Arrays, normal

from ..flash_attention import cases as dense
from ..streaming_attention.cases import of_sequences, sized
from ..streaming_attention.problem import Problem as Sequence
from ..streaming_attention.problem import attends
from .problem import Problem

INPUT_KINDS = dense.INPUT_KINDS
SCALES = ("k_descale", "v_descale")
NOWHERE = 2**31 - 1  # in a table, for a page that nobody needs


def inputs(problem: Problem, rng: np.random.Generator, kind: str) -> Arrays:
    """What flash_attention draws, with lengths up to full, put into pages that lie anywhere.

    Keys that no sequence has are NaN, and tables name no page for them.
    """
    lengths = _lengths(problem, rng)
    drawn = dense.inputs(problem, rng, kind)  # type: ignore[arg-type]  # of which it reads the sizes
    batch = replace(problem, use_cu_seqlens_q=False, batch=problem.sequences, seq_q=1, max_seqlen_q=0)
    of_keys = dense.inputs(batch, rng, kind) if problem.use_cu_seqlens_q else drawn  # type: ignore[arg-type]
    of_both, descales = _stored(problem, rng, of_keys["k"], of_keys["v"])
    table, caches = paged(problem, rng, lengths, of_both)
    shared = {name: drawn[name] for name in ("q", "softmax_scale")}
    return shared | {
        "cu_seqlens_q": _bounds(problem, rng),
        "k_cache": caches[0],
        "v_cache": caches[1],
        "block_table": table,
        "cache_seqlens": np.array(lengths, np.int32),
        "softcap": dense.SOFTCAP,
        "s_aux": normal(rng, (problem.s_aux_heads,), np.float32),
        **descales,
    }


def _stored(problem: Problem, rng: np.random.Generator, *of_both: Array) -> tuple[tuple[Array, ...], Arrays]:
    """Keys and values [N, S, HK, D] as a cache holds them, and by name the scales [N, HK] of both."""
    shape = problem.descales, problem.kv_heads
    descales = {name: rng.uniform(0.02, 2, shape).astype(np.float32) for name in SCALES}
    if not problem.eight_bits:
        return of_both, descales
    by = (value[:, None, :, None] if problem.descales else np.ones(1) for value in descales.values())
    dtype, largest = problem.kv_cache_dtype.numpy, problem.kv_cache_dtype.largest
    stored = ((x / scale).clip(-largest, largest).astype(dtype) for x, scale in zip(of_both, by, strict=True))
    return tuple(stored), descales


def _lengths(problem: Problem, rng: np.random.Generator) -> list[int]:
    drawn = rng.integers(0, problem.seq_k, problem.sequences, endpoint=True).tolist()
    return [problem.seq_k, *drawn[1:-1], 0] if problem.sequences > 1 else [problem.seq_k]


def _bounds(problem: Problem, rng: np.random.Generator) -> Array:
    """Where the queries of each sequence begin: any numbers up to the longest, and of three and more once none."""
    N, rows = problem.sequences, problem.seq_q
    if not problem.use_cu_seqlens_q:
        return np.zeros(0, np.int32)
    if N * problem.longest < rows:
        raise UsageError(f"max_seqlen_q {problem.longest}: {N} sequences of no more queries each have less than {rows}")
    inner = np.sort(rng.integers(0, rows, N - 1, endpoint=True))
    inner[:2] = inner[:1]
    boundaries = np.concatenate([[0], inner, [rows]])
    if np.max(np.diff(boundaries)) > problem.longest:
        boundaries = np.linspace(0, rows, N + 1).astype(int)
    return boundaries.astype(np.int32)


def paged(
    problem: Problem, rng: np.random.Generator, lengths: list[int], of_keys: tuple[Array, ...]
) -> tuple[Array, list[Array]]:
    """A table, and a cache for each of `of_keys` [B, S, HK, D] with the first keys of each sequence.

    Pages are dealt out at random; where the cache has too few, sequences share them.
    """
    needed = [-(-length // problem.page_size) for length in lengths]
    order = np.resize(rng.permutation(problem.pages), sum(needed)).astype(np.int32)
    table = np.full((len(lengths), problem.max_pages), NOWHERE, np.int32)
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
    result = _of_all(problem, arrays, rounded=rounded)
    if problem.use_s_aux:  # a logit is what a sequence without keys has
        result["lse"] = np.where(np.isneginf(result["lse"]), arrays["s_aux"][:, None], result["lse"])
    return result


def _of_all(problem: Problem, arrays: Arrays, *, rounded: bool) -> Arrays:
    lengths = np.clip(arrays["cache_seqlens"], 0, problem.seq_k).tolist()
    if problem.use_cu_seqlens_q:
        return _packed(problem, arrays, lengths, rounded=rounded)
    return of_sequences(
        problem, lengths, lambda b, length: _one_sequence(problem, arrays, b, arrays["q"][b], length, rounded=rounded)
    )


def _packed(problem: Problem, arrays: Arrays, lengths: list[int], *, rounded: bool) -> Arrays:
    outputs = {
        "o": np.zeros((1, problem.seq_q, problem.heads, problem.head_dim)),
        "lse": np.full((1, problem.heads, problem.seq_q), -np.inf),
    }
    for b, (first, end) in enumerate(pairwise(arrays["cu_seqlens_q"].tolist())):
        if end > first and lengths[b]:
            one = _one_sequence(problem, arrays, b, arrays["q"][0, first:end], lengths[b], rounded=rounded)
            outputs["o"][:, first:end], outputs["lse"][:, :, first:end] = one["o"], one["lse"]
    return outputs


def _one_sequence(problem: Problem, arrays: Arrays, b: int, q: Array, length: int, *, rounded: bool) -> Arrays:
    """Of sequence b, whose queries are q [T, H, D]."""
    of_both = ("head_dim", "dtype", "heads", "kv_heads", "window", "sinks")
    sizes: dict[str, Any] = {name: getattr(problem, name) for name in of_both}
    one = Sequence(**sizes, batch=1, seq_q=len(q), seq_k=length)
    position = np.arange(length)
    at = arrays["block_table"][b, position // problem.page_size], position % problem.page_size
    keys = {name: _loaded(problem, arrays, name, b, at) for name in ("k", "v")}
    softcap = arrays["softcap"] if problem.use_softcap else 0.0
    given = arrays | keys | {"q": q[None]}
    logits = arrays["s_aux"] if problem.use_s_aux else None
    return dense.attention(one, given, attends(one), rounded=rounded, softcap=softcap, s_aux=logits)


def _loaded(problem: Problem, arrays: Arrays, name: str, b: int, at: tuple[Array, Array]) -> Array:
    """Keys or values of sequence b, which lie there, as [1, length, HK, D]; of 8 bits in float64."""
    held = arrays[f"{name}_cache"][at][None]
    if not problem.eight_bits:
        return np.nan_to_num(held)
    descale = arrays[f"{name}_descale"][b].astype(np.float64) if problem.descales else np.ones(problem.kv_heads)
    return np.nan_to_num(held.astype(np.float64)) * descale[:, None]


def tails(problem: Problem) -> tuple[Problem, ...]:
    """Pages smaller and larger than tiles, windows and sinks, more queries than positions: see the comments."""
    shapes = (
        (1, 1, 1, 1, 1, 1, 0, 0),  # one query, one key
        (3, 4, 1, 1, 16, 6, 0, 0),  # a step of decoding, one length full, one nothing
        (4, 2, 1, 2, 1, 150, 0, 0),  # a page a key
        (2, 2, 2, 5, 64, 3, 30, 5),  # pages wider than tiles, a window and sinks
        (1, 8, 1, 20, 8, 2, 0, 0),  # more queries than positions: some attend nothing; two tiles of rows
    )
    packed = (
        (1, 1, 1, 1, 1, 2, 0, 0, 1, 0),
        (1, 4, 2, 70, 16, 6, 0, 0, 5, 0),  # sequences of any numbers of queries, once none
        (1, 2, 1, 40, 8, 8, 20, 3, 3, 15),  # a window and sinks, and a longest one that is known
    )
    names = ("batch", "heads", "kv_heads", "seq_q", "page_size", "max_pages", "window", "sinks")
    if problem.use_cu_seqlens_q:
        cases = sized(problem, (*names, "sequences", "max_seqlen_q"), packed, pages=0)
    else:
        cases = sized(problem, names, shapes, pages=0, sequences=0)
    return tuple(replace(problem, descales=i % 2) for i, problem in enumerate(cases)) if problem.eight_bits else cases
