"""Test cases of paged_attention: inputs, edge-case extents, and the reference in float64."""

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
NOWHERE = 2**31 - 1  # table entry of a page that no query needs


def inputs(problem: Problem, rng: np.random.Generator, kind: str) -> Arrays:
    """The inputs of flash_attention, with sequence lengths up to the maximum, in pages at random positions of the
    cache.

    Rows of the cache without keys are NaN, and table entries without pages are invalid.
    """
    lengths = _lengths(problem, rng)
    batch_inputs = dense.inputs(problem, rng, kind)  # type: ignore[arg-type]  # only sizes are read
    batch = replace(problem, use_cu_seqlens_q=False, batch=problem.sequences, seq_q=1, max_seqlen_q=0)
    key_inputs = dense.inputs(batch, rng, kind) if problem.use_cu_seqlens_q else batch_inputs  # type: ignore[arg-type]
    keys_and_values, descales = _stored(problem, rng, key_inputs["k"], key_inputs["v"])
    table, caches = paged(problem, rng, lengths, keys_and_values)
    shared = {name: batch_inputs[name] for name in ("q", "softmax_scale")}
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


def _stored(problem: Problem, rng: np.random.Generator, *keys_and_values: Array) -> tuple[tuple[Array, ...], Arrays]:
    """Keys and values [N, S, HK, D] in the dtype of the cache, and by name the scales [N, HK] of both."""
    shape = problem.descales, problem.kv_heads
    descales = {name: rng.uniform(0.02, 2, shape).astype(np.float32) for name in SCALES}
    if not problem.eight_bits:
        return keys_and_values, descales
    scales = (value[:, None, :, None] if problem.descales else np.ones(1) for value in descales.values())
    dtype, largest = problem.kv_cache_dtype.numpy, problem.kv_cache_dtype.largest
    stored = (
        (x / scale).clip(-largest, largest).astype(dtype) for x, scale in zip(keys_and_values, scales, strict=True)
    )
    return tuple(stored), descales


def _lengths(problem: Problem, rng: np.random.Generator) -> list[int]:
    lengths = rng.integers(0, problem.seq_k, problem.sequences, endpoint=True).tolist()
    return [problem.seq_k, *lengths[1:-1], 0] if problem.sequences > 1 else [problem.seq_k]


def _bounds(problem: Problem, rng: np.random.Generator) -> Array:
    """Offsets of the queries of each sequence: random numbers up to the longest; with three or more sequences, one has
    none."""
    N, rows = problem.sequences, problem.seq_q
    if not problem.use_cu_seqlens_q:
        return np.zeros(0, np.int32)
    if N * problem.longest < rows:
        raise UsageError(
            f"max_seqlen_q {problem.longest}: {N} sequences of at most that many queries hold fewer than {rows}"
        )
    inner = np.sort(rng.integers(0, rows, N - 1, endpoint=True))
    inner[:2] = inner[:1]
    boundaries = np.concatenate([[0], inner, [rows]])
    if np.max(np.diff(boundaries)) > problem.longest:
        boundaries = np.linspace(0, rows, N + 1).astype(int)
    return boundaries.astype(np.int32)


def paged(
    problem: Problem, rng: np.random.Generator, lengths: list[int], of_keys: tuple[Array, ...]
) -> tuple[Array, list[Array]]:
    """A table, and a cache for each array in `of_keys` [B, S, HK, D] with the first keys of each sequence.

    Pages are assigned at random; if the cache has too few, sequences share them.
    """
    needed = [-(-length // problem.page_size) for length in lengths]
    order = np.resize(rng.permutation(problem.pages), sum(needed)).astype(np.int32)
    table = np.full((len(lengths), problem.max_pages), NOWHERE, np.int32)
    table[:, 1::2] = -1
    caches = [np.full((problem.pages, problem.page_size, *keys.shape[2:]), np.nan, keys.dtype) for keys in of_keys]
    for b, (length, sequence_pages) in enumerate(zip(lengths, np.split(order, np.cumsum(needed)[:-1]), strict=True)):
        table[b, : len(sequence_pages)] = sequence_pages
        page, row = sequence_pages[np.arange(length) // problem.page_size], np.arange(length) % problem.page_size
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
    result = _attention_of_all(problem, arrays, rounded=rounded)
    if problem.use_s_aux:  # the lse of a sequence without keys is its logit
        result["lse"] = np.where(np.isneginf(result["lse"]), arrays["s_aux"][:, None], result["lse"])
    return result


def _attention_of_all(problem: Problem, arrays: Arrays, *, rounded: bool) -> Arrays:
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
            result = _one_sequence(problem, arrays, b, arrays["q"][0, first:end], lengths[b], rounded=rounded)
            outputs["o"][:, first:end], outputs["lse"][:, :, first:end] = result["o"], result["lse"]
    return outputs


def _one_sequence(problem: Problem, arrays: Arrays, b: int, q: Array, length: int, *, rounded: bool) -> Arrays:
    """Attention of sequence b, whose queries are q [T, H, D]."""
    shared_fields = ("head_dim", "dtype", "heads", "kv_heads", "window", "sinks")
    sizes: dict[str, Any] = {name: getattr(problem, name) for name in shared_fields}
    sequence = Sequence(**sizes, batch=1, seq_q=len(q), seq_k=length)
    position = np.arange(length)
    location = arrays["block_table"][b, position // problem.page_size], position % problem.page_size
    keys = {name: _loaded(problem, arrays, name, b, location) for name in ("k", "v")}
    softcap = arrays["softcap"] if problem.use_softcap else 0.0
    sequence_arrays = arrays | keys | {"q": q[None]}
    logits = arrays["s_aux"] if problem.use_s_aux else None
    return dense.attention(sequence, sequence_arrays, attends(sequence), rounded=rounded, softcap=softcap, s_aux=logits)


def _loaded(problem: Problem, arrays: Arrays, name: str, b: int, at: tuple[Array, Array]) -> Array:
    """Keys or values of sequence b at the positions `at`, as [1, length, HK, D]; 8-bit values in float64."""
    stored = arrays[f"{name}_cache"][at][None]
    if not problem.eight_bits:
        return np.nan_to_num(stored)
    descale = arrays[f"{name}_descale"][b].astype(np.float64) if problem.descales else np.ones(problem.kv_heads)
    return np.nan_to_num(stored.astype(np.float64)) * descale[:, None]


def tails(problem: Problem) -> tuple[Problem, ...]:
    """Edge cases: pages smaller and larger than tiles, windows and sinks, more queries than positions; see the
    comments."""
    shapes = (
        (1, 1, 1, 1, 1, 1, 0, 0),  # one query, one key
        (3, 4, 1, 1, 16, 6, 0, 0),  # a decoding step, one sequence of full length, one empty
        (4, 2, 1, 2, 1, 150, 0, 0),  # one key per page
        (2, 2, 2, 5, 64, 3, 30, 5),  # pages wider than tiles, a window and sinks
        (1, 8, 1, 20, 8, 2, 0, 0),  # more queries than positions: some attend nothing; two row tiles
    )
    packed = (
        (1, 1, 1, 1, 1, 2, 0, 0, 1, 0),
        (1, 4, 2, 70, 16, 6, 0, 0, 5, 0),  # different numbers of queries per sequence, one without
        (1, 2, 1, 40, 8, 8, 20, 3, 3, 15),  # a window and sinks, and a given max_seqlen_q
    )
    names = ("batch", "heads", "kv_heads", "seq_q", "page_size", "max_pages", "window", "sinks")
    if problem.use_cu_seqlens_q:
        cases = sized(problem, (*names, "sequences", "max_seqlen_q"), packed, pages=0)
    else:
        cases = sized(problem, names, shapes, pages=0, sequences=0)
    return tuple(replace(problem, descales=i % 2) for i, problem in enumerate(cases)) if problem.eight_bits else cases
