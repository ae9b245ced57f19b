"""Test cases of streaming_attention: inputs, edge-case extents, and the reference in float64."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from tuner.spec import Array, Arrays

from ..flash_attention import operator as dense
from .problem import Problem, attends, slots

INPUT_KINDS = dense.INPUT_KINDS
EXTENTS = ("batch", "heads", "kv_heads", "seq_q", "seq_k", "window", "sinks")


def inputs(problem: Problem, rng: np.random.Generator, kind: str) -> Arrays:
    """The inputs of flash_attention for the same number of keys, stored in the slots of the cache in the order of
    positions.

    The lengths of a ragged batch are random up to the maximum, or up to three times the slots of a rolling cache. Slots
    without a position are NaN.
    """
    lengths = _lengths(problem, rng)
    longest = replace(problem, rolling=False, ragged=False, slots=0, seq_k=max(problem.seq_k, *lengths))
    dense_inputs = dense.inputs(longest, rng, kind)  # type: ignore[arg-type]  # only sizes are read
    cached = {name: _cached(problem, dense_inputs[name], lengths) for name in ("k", "v")}
    return dense_inputs | cached | {"cache_seqlens": np.array(lengths if problem.ragged else [], np.int32)}


def _lengths(problem: Problem, rng: np.random.Generator) -> list[int]:
    if not problem.ragged:
        return [problem.seq_k] * problem.batch
    max_length = problem.slots * (3 if problem.rolling else 1)
    lengths = rng.integers(0, max_length, problem.batch, endpoint=True).tolist()
    return [max_length, *lengths[1:-1], 0] if problem.batch > 1 else lengths


def _cached(problem: Problem, keys: Array, lengths: list[int]) -> Array:
    """The slots [B, slots, HK, D] after the first keys [B, S, HK, D] of each sequence were written in order."""
    cache = np.full((problem.batch, problem.slots, *keys.shape[2:]), np.nan, keys.dtype)
    for b, length in enumerate(lengths):
        kept = np.full(problem.slots, -1)
        if length:
            np.maximum.at(kept, slots(_sequence(problem, length)), np.arange(length))
        cache[b, kept >= 0] = keys[b, kept[kept >= 0]]
    return cache


def _sequence(problem: Problem, length: int) -> Problem:
    """The problem of one sequence of the batch."""
    kept = problem.slots if problem.rolling else length
    return replace(problem, ragged=False, batch=1, seq_k=length, slots=kept)


def reference(problem: Problem, arrays: Arrays) -> Arrays:
    """o [B, T, H, D] and lse [B, H, T] in float64, over all pairs of queries and keys."""
    return _attention(problem, arrays, rounded=False)


def rounded(problem: Problem, arrays: Arrays) -> Arrays:
    """The reference with the probabilities and o rounded to the dtype, as the kernels round them."""
    return _attention(problem, arrays, rounded=True)


def _attention(problem: Problem, arrays: Arrays, *, rounded: bool) -> Arrays:
    lengths = arrays["cache_seqlens"].tolist() if problem.ragged else [problem.seq_k] * problem.batch
    return of_sequences(problem, lengths, lambda b, length: _one_sequence(problem, arrays, b, length, rounded=rounded))


def of_sequences(problem: Any, lengths: Iterable[int], attention: Callable[[int, int], Arrays]) -> Arrays:
    """o and lse of a batch; attention(b, length) computes those of sequence b, which is not empty."""
    o = np.zeros((1, problem.seq_q, problem.heads, problem.head_dim))
    empty = {"o": o, "lse": np.full((1, problem.heads, problem.seq_q), -np.inf)}
    outputs = [attention(b, length) if length else empty for b, length in enumerate(lengths)]
    return {name: np.concatenate([output[name] for output in outputs]) for name in empty}


def _one_sequence(problem: Problem, arrays: Arrays, b: int, length: int, *, rounded: bool) -> Arrays:
    sequence = _sequence(problem, length)
    by_position = {name: np.nan_to_num(arrays[name][b : b + 1, slots(sequence)]) for name in ("k", "v")}
    sequence_arrays = arrays | by_position | {"q": arrays["q"][b : b + 1]}
    return dense.attention(sequence, sequence_arrays, attends(sequence), rounded=rounded)


def tails(problem: Problem) -> tuple[Problem, ...]:
    """Edge cases with windows and sinks on every side of a tile; see the comments."""
    shapes = (
        (1, 1, 1, 1, 1, 1, 0),  # one query, one key
        (1, 4, 2, 3, 300, 40, 5),  # a decoding step
        (1, 1, 1, 200, 63, 30, 4),  # more queries than positions: some attend nothing
        (1, 1, 1, 150, 200, 17, 0),  # a window without sinks
        (1, 2, 1, 130, 130, 1000, 3),  # a window over everything
        (1, 1, 1, 100, 190, 20, 150),  # sinks that overlap the windows of some queries
        (2, 2, 1, 90, 280, 70, 20),  # unattended tiles between the sinks and the window
        (1, 1, 1, 70, 70, 1, 70),  # every key a sink
        *(((4, 2, 1, 2, 100, 30, 5),) if problem.ragged else ()),  # decoding steps of sequences of different lengths
    )
    return sized(problem, EXTENTS, shapes, slots=0)


def sized(problem: Any, names: tuple[str, ...], shapes: Iterable[tuple[int, ...]], **derived: int) -> tuple[Any, ...]:
    """The problem in each of these shapes, with extents in the order of `names`; `derived` extents are set in all."""
    return tuple(replace(problem, **dict(zip(names, shape, strict=True)), **derived) for shape in shapes)
