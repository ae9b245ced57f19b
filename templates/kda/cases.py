"""Test cases of kda: numerically difficult inputs, and small problems that cover the edge cases."""

from dataclasses import replace

import numpy as np

from tuner.errors import UsageError
from tuner.spec import Array, Arrays, normal, random_tensor

from .problem import Problem
from .recurrence import LOWER_BOUND

INPUT_KINDS = ("strong_gate", "weak_gate", "zero_gate", "equal_keys", "beta_one", "gate_spikes", "near_keys")
_CORRELATION = {"equal_keys": 0.9, "near_keys": 0.99875}  # correlation of keys
SAFE_GATE = -5.0  # the lower bound of g with safe_gate


def inputs(problem: Problem, rng: np.random.Generator, kind: str) -> Arrays:
    """Tensors of one kind; q and k have unit length unless the kernel normalizes them.

    strong_gate: g in -5 … 0, a state that forgets within a few tokens. weak_gate: |g| ~ 1e-2, a state with a long
    memory. zero_gate: no decay. equal_keys: weak gates, keys with a correlation of 0.9. beta_one: weak gates, beta near
    1. near_keys: weak gates, beta near 1, nearly equal keys (one vector plus 5 % noise). gate_spikes: some tokens erase
    the state (g = -60, or -5 with a safe gate), the others keep it.
    """
    if kind not in INPUT_KINDS:
        raise UsageError(f"inputs {kind!r}: kda has {', '.join(INPUT_KINDS)}")
    tokens = (problem.batch, problem.seq_len)
    q, k = (_vectors(problem, rng, correlation) for correlation in (0.0, _CORRELATION.get(kind, 0.0)))
    v = normal(rng, (*tokens, problem.value_heads, problem.value_dim), problem.dtype.numpy)
    beta = rng.standard_normal((*tokens, problem.value_heads)) + 6.0 * (kind == "beta_one")
    # near 1 even if it is doubled: with 2, nearly equal keys are reflected, and all errors persist
    if kind == "near_keys":
        beta = 0.1 * beta + 4.0 * (not problem.allow_neg_eigval)
    states = (problem.value_heads, problem.state_rows, problem.state_columns)
    state, pool = (rng.standard_normal((count, *states)) for count in (problem.initial_states, problem.pool_states))
    A_log, dt_bias = (
        rng.standard_normal(shape) for shape in ((problem.gate_heads,), (problem.bias_heads, problem.key_dim))
    )
    wide = np.float64 if problem.use_gate_in_kernel else problem.gate_dtype.numpy
    gate_shape = (*tokens, problem.value_heads, problem.key_dim)
    g = random_tensor(rng, gate_shape, wide, lambda generator, part: _gate(problem, generator, part, kind))
    if problem.use_gate_in_kernel:
        g = _before_gate(problem, g, A_log, dt_bias)
    return {
        "q": q,
        "k": k,
        "v": v,
        "g": g.astype(problem.gate_dtype.numpy, copy=False),
        "beta": _beta(problem, beta).astype(problem.beta_dtype.numpy),
        "cu_seqlens": _boundaries(problem, rng).astype(problem.index_dtype.numpy),
        "initial_state": state.astype(np.float32),
        "state_pool": pool.astype(np.float32),
        "ssm_state_indices": _entries(problem, rng).astype(np.int32),
        "A_log": A_log.astype(np.float32),
        "dt_bias": dt_bias.astype(np.float32),
    }


def _boundaries(problem: Problem, rng: np.random.Generator) -> Array:
    """One sequence has one token; with three or more, one has none; the others have random lengths."""
    if not problem.use_cu_seqlens:
        return np.zeros(0)
    inner = np.sort(rng.integers(1, problem.seq_len + 1, problem.boundaries - 2))
    inner[:2] = 1
    return np.concatenate([[0], inner, [problem.seq_len]])


def _entries(problem: Problem, rng: np.random.Generator) -> Array:
    """Entries of the pool in random order, some of them unused; with three or more sequences, one has no entry."""
    entries = rng.permutation(problem.pool_states)[: problem.state_indices]
    if len(entries) > 2:
        entries[rng.integers(len(entries))] = -1
    return entries


def _vectors(problem: Problem, rng: np.random.Generator, correlation: float) -> Array:
    """A tensor for q or for k, whose rows are correlated as asked."""
    shape, dtype = (problem.batch, problem.seq_len, problem.heads, problem.key_dim), problem.dtype.numpy
    if not correlation:
        return random_tensor(
            rng, shape, dtype, lambda generator, part: _length(problem, generator.standard_normal(part))
        )
    x = rng.standard_normal(shape)
    return _length(problem, correlation * x[:, :1] + (1 - correlation**2) ** 0.5 * x).astype(dtype)


def _length(problem: Problem, x: Array) -> Array:
    """Unit vectors, or vectors of different lengths if the kernel normalizes them."""
    if problem.use_qk_l2norm_in_kernel:
        return x
    unit: Array = x / np.linalg.norm(x, axis=-1, keepdims=True)
    return unit


def _beta(problem: Problem, logits: Array) -> Array:
    return logits if problem.use_beta_sigmoid_in_kernel else 1 / (1 + np.exp(-logits))


def _gate(problem: Problem, rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> Array:
    open_share: Array = rng.random(shape)
    bounded = problem.safe_gate or problem.use_lower_bound
    if kind == "strong_gate":
        return SAFE_GATE * open_share
    if kind == "zero_gate":
        return np.zeros(shape)
    if kind == "gate_spikes":
        return np.where(open_share < 0.1, SAFE_GATE if bounded else -60.0, 0.0)
    return -0.02 * open_share


def _before_gate(problem: Problem, g: Array, A_log: Array, dt_bias: Array) -> Array:
    """The raw g [B, T, HV, K] from which the gate in the kernel approximately computes `g`."""
    rate = np.exp(A_log)[:, None]
    if problem.use_lower_bound:
        share = np.clip(g / LOWER_BOUND, 1e-4, 1 - 1e-4)
        raw = np.log(share / (1 - share)) / rate
    else:
        softplus = np.maximum(-g / rate, 1e-6)
        raw = softplus + np.log(-np.expm1(-softplus))
    shifted: Array = raw - (dt_bias if problem.use_dt_bias else 0)
    return shifted


def tails(problem: Problem) -> tuple[Problem, ...]:
    """One token; lengths below, at and above a chunk; two sequences; value heads that share q and k; pools of states
    with unused entries. Without packing and pools, there is one case per kind of inputs."""
    packed = ((1, 1, 1, 1), (2, 63, 1, 1), (4, 77, 1, 2), (6, 130, 2, 2))
    decoded = ((1, 1, 1, 1), (5, 1, 1, 2), (3, 2, 2, 2), (2, 19, 1, 1))
    others = ((1, 1, 1, 1), (1, 63, 1, 1), (1, 16, 2, 2), (2, 33, 1, 2), (1, 77, 1, 1), (1, 40, 2, 4), (1, 50, 1, 1))
    shapes = packed if problem.use_cu_seqlens else decoded if problem.inplace_final_state else others
    return tuple(_with_sizes(problem, *shape) for shape in shapes)


def _with_sizes(problem: Problem, N: int, T: int, H: int, HV: int) -> Problem:
    """N sequences: a batch of them, or packed into T tokens."""
    batch, boundaries = (1, N + 1) if problem.use_cu_seqlens else (N, 0)
    pool = N + 2 * problem.use_state_indices
    return replace(problem, batch=batch, seq_len=T, heads=H, value_heads=HV, boundaries=boundaries, pool_states=pool)
