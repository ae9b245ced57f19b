"""Inputs of kda that kernels find hard, and the small problems that hit every edge."""

from dataclasses import replace

import numpy as np

from tuner.errors import UsageError
from tuner.spec import Array, Arrays, normal, random_tensor

from .problem import Problem
from .recurrence import LOWER_BOUND

INPUT_KINDS = ("strong_gate", "weak_gate", "zero_gate", "equal_keys", "beta_one", "gate_spikes", "near_keys")
_CORRELATION = {"equal_keys": 0.9, "near_keys": 0.99875}  # of keys
SAFE_GATE = -5.0  # what safe_gate promises


def inputs(problem: Problem, rng: np.random.Generator, kind: str) -> Arrays:
    """Tensors of one kind; q and k have unit length unless the kernel normalises them.

    strong_gate: g in -5 … 0, a state that forgets within tokens. weak_gate: |g| ~ 1e-2, a state that remembers.
    zero_gate: no decay at all. equal_keys: weak gates, keys that correlate by 0.9. beta_one: weak gates, beta near 1.
    near_keys: weak gates, beta near 1, keys that nearly agree (one vector and a twentieth of noise).
    gate_spikes: now and then a token forgets all (g = -60, or -5 where the gate is safe), the others nothing.
    """
    if kind not in INPUT_KINDS:
        raise UsageError(f"inputs {kind!r}: kda has {', '.join(INPUT_KINDS)}")
    tokens = (problem.batch, problem.seq_len)
    q, k = (_vectors(problem, rng, correlation) for correlation in (0.0, _CORRELATION.get(kind, 0.0)))
    v = normal(rng, (*tokens, problem.value_heads, problem.value_dim), problem.dtype.numpy)
    beta = rng.standard_normal((*tokens, problem.value_heads)) + 6.0 * (kind == "beta_one")
    if kind == "near_keys":  # near 1 also where it is doubled: with 2, what is near is mirrored, and all errors stay
        beta = 0.1 * beta + 4.0 * (not problem.allow_neg_eigval)
    states = (problem.value_heads, problem.state_rows, problem.state_columns)
    state, pool = (rng.standard_normal((count, *states)) for count in (problem.initial_states, problem.pool_states))
    A_log, dt_bias = (
        rng.standard_normal(shape) for shape in ((problem.gate_heads,), (problem.bias_heads, problem.key_dim))
    )
    wide = np.float64 if problem.use_gate_in_kernel else problem.gate_dtype.numpy
    of_gate = (*tokens, problem.value_heads, problem.key_dim)
    g = random_tensor(rng, of_gate, wide, lambda generator, part: _gate(problem, generator, part, kind))
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
    """A sequence of one token, one without any where there are three or more, and others of random lengths."""
    if not problem.use_cu_seqlens:
        return np.zeros(0)
    inner = np.sort(rng.integers(1, problem.seq_len + 1, problem.boundaries - 2))
    inner[:2] = 1
    return np.concatenate([[0], inner, [problem.seq_len]])


def _entries(problem: Problem, rng: np.random.Generator) -> Array:
    """Entries of the pool in any order, some of them nobody's; of three and more sequences one has none."""
    entries = rng.permutation(problem.pool_states)[: problem.state_indices]
    if len(entries) > 2:
        entries[rng.integers(len(entries))] = -1
    return entries


def _vectors(problem: Problem, rng: np.random.Generator, correlation: float) -> Array:
    """q or k."""
    shape, dtype = (problem.batch, problem.seq_len, problem.heads, problem.key_dim), problem.dtype.numpy
    if not correlation:
        return random_tensor(
            rng, shape, dtype, lambda generator, part: _length(problem, generator.standard_normal(part))
        )
    x = rng.standard_normal(shape)
    return _length(problem, correlation * x[:, :1] + (1 - correlation**2) ** 0.5 * x).astype(dtype)


def _length(problem: Problem, x: Array) -> Array:
    """Unit vectors, unless the kernel is to make them: then of lengths that differ."""
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
    """The raw g [B, T, HV, K] that the kernel's gate makes nearly `g` of."""
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
    """One token; tokens short of, at and past a chunk; two sequences; value heads that share q and k; pools of states
    with entries that are nobody's. Where neither is packed or pooled, as many as there are kinds of inputs."""
    packed = ((1, 1, 1, 1), (2, 63, 1, 1), (4, 77, 1, 2), (6, 130, 2, 2))
    decoded = ((1, 1, 1, 1), (5, 1, 1, 2), (3, 2, 2, 2), (2, 19, 1, 1))
    others = ((1, 1, 1, 1), (1, 63, 1, 1), (1, 16, 2, 2), (2, 33, 1, 2), (1, 77, 1, 1), (1, 40, 2, 4), (1, 50, 1, 1))
    shapes = packed if problem.use_cu_seqlens else decoded if problem.inplace_final_state else others
    return tuple(_sized(problem, *shape) for shape in shapes)


def _sized(problem: Problem, N: int, T: int, H: int, HV: int) -> Problem:
    """N sequences: a batch of them, or packed into T tokens."""
    batch, boundaries = (1, N + 1) if problem.use_cu_seqlens else (N, 0)
    pool = N + 2 * problem.use_state_indices
    return replace(problem, batch=batch, seq_len=T, heads=H, value_heads=HV, boundaries=boundaries, pool_states=pool)
