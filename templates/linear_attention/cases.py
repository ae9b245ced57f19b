"""Test cases of linear_attention: inputs of increasing numerical difficulty, and small problems that cover the edge
cases."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tuner.errors import UsageError
from tuner.spec import Array, Arrays, random_tensor

from .problem import Problem

INPUT_KINDS = ("normal", "extreme_keys", "never_forget", "forget_at_once")


def inputs(problem: Problem, rng: np.random.Generator, kind: str) -> Arrays:
    """q, k, v, β, and states and boundaries if the problem has them.

    normal: N(0, 1), β between 0.8 and 1 times its bound. extreme_keys: keys with a standard deviation of 100, so that a
    token may outweigh all previous ones by 10^26, or be negligible. never_forget: β is its bound. forget_at_once: β =
    0, so that o = q v.
    """
    if kind not in INPUT_KINDS:
        raise UsageError(f"inputs {kind!r}: linear_attention has {', '.join(INPUT_KINDS)}")
    shape = (problem.batch, problem.seq_len, problem.heads, problem.head_dim)
    sizes = {"q": 1, "k": 100 if kind == "extreme_keys" else 1, "v": 1}
    tensors = {name: _normal(problem, rng, shape, size) for name, size in sizes.items()}
    beta = _beta(problem, rng, kind)
    scalar = {"beta_scalar": float(beta.flat[0])} if beta.size and problem.decay == "scalar" else {}
    optional = {
        "beta": beta[: problem.beta_heads],
        "initial_state": _states(problem, rng),
        "cu_seqlens": _boundaries(problem, rng),
    }
    return tensors | scalar | optional


def _normal(problem: Problem, rng: np.random.Generator, shape: tuple[int, ...], size: int) -> Array:
    dtype = problem.dtype.numpy
    return random_tensor(rng, shape, dtype, lambda generator, part: size * generator.standard_normal(part, np.float32))


def _beta(problem: Problem, rng: np.random.Generator, kind: str) -> Array:
    """fp32 [H, 1] or [H, D], at most the bound."""
    relative = rng.uniform(0.8, 1, (problem.heads, problem.beta_channels))
    if kind == "never_forget":
        relative[:] = 1
    elif kind == "forget_at_once":
        relative[:] = 0
    return np.minimum(relative * problem.beta_bound, problem.beta_bound).astype(np.float32)


def _states(problem: Problem, rng: np.random.Generator) -> Array:
    """fp32 [N, 2, H, D], or empty; n is positive."""
    state = rng.standard_normal((problem.initial_states, problem.numbers, problem.heads, problem.head_dim), np.float32)
    state[:, 1] = np.abs(state[:, 1]) + np.float32(0.1)
    return state


def _boundaries(problem: Problem, rng: np.random.Generator) -> Array:
    """int32 [N + 1] from 0 to T; some sequences are empty."""
    if not problem.varlen:
        return np.zeros(0, np.int32)
    inner = np.sort(rng.integers(0, problem.seq_len + 1, problem.boundaries - 2))
    return np.array([0, *inner, problem.seq_len], np.int32)


def tails(problem: Problem) -> tuple[Problem, ...]:
    return tuple(
        replace(problem, batch=B, seq_len=T, heads=H, boundaries=boundaries)
        for B, T, H, boundaries in tail_extents(problem.varlen, 300)
    )


def tail_extents(varlen: bool, several: int) -> Iterator[tuple[int, int, int, int]]:
    """batch, seq_len, heads and boundaries for one token, less than a tile, `several` tokens (many short sequences if
    they are packed), and a length that is no multiple of a tile."""
    shapes = ((1, 1, 2, 2), (1, 63, 3, 3), (2, several, 1, 12), (3, 130, 2, 2))
    for batch, seq_len, heads, boundaries in shapes:
        yield (1, seq_len, heads, boundaries) if varlen else (batch, seq_len, heads, 0)
