"""kda in float64: the recurrence that defines it, and its chunked form rounded as the kernels round."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np

from tuner.spec import Array, Arrays, DType

from .problem import Problem

L2_EPSILON = 1e-6
LOWER_BOUND = -5.0  # default of the gate in the kernel
CHUNK = 16
_SIGNIFICANT_BITS = {"bf16": 8, "tf32": 11}  # significant bits of an operand
LARGEST_DECAY = -100 * np.log(2)  # decay of 16 tokens: beyond it, kernels compute scores level by level
FORGOTTEN = -40.0  # e^-40 is negligible, and e^(40 · CHUNK) still fits float64


def reference(problem: Problem, arrays: Arrays) -> Arrays:
    """o [B, T, HV, V], final_state [N or 0, HV, K, V] and state_pool [P, HV, K, V] after a call, in float64, by the
    recurrence, one token after the other. States have the stored layout: V-first ones are [..., V, K].

    S' = diag(e^g) S;  u = beta (v - S'ᵀ k);  S = S' + k uᵀ;  o = scale · Sᵀ q
    """
    return _with_pool(_recurrence, problem, arrays)


def rounded(problem: Problem, arrays: Arrays) -> Arrays:
    """The chunked form with operands rounded as for tensor cores: to bf16 or tf32.

    Operands in fp32 are not rounded: the recurrence then runs in that precision.
    """
    return _with_pool(_recurrence_fp32 if problem.operands == "fp32" else _chunked, problem, arrays)


Compute = Callable[[Problem, Arrays], Arrays]


def _with_pool(compute: Compute, problem: Problem, arrays: Arrays) -> Arrays:
    """`compute` with states from the pool, if there is one, written back to it. A sequence without an entry has no
    effect, and its o is zero."""
    if not problem.inplace_final_state:
        return {**_with_lengths(compute, problem, arrays), "state_pool": np.zeros((0, *_stored_shape(problem)))}
    pool = arrays["state_pool"].astype(np.float64)
    entries = arrays["ssm_state_indices"] if problem.use_state_indices else np.arange(problem.sequences)
    without_pool = replace(
        problem, inplace_final_state=False, use_state_indices=False, use_initial_state=True, output_final_state=True
    )
    # -1 reads any entry, and writes none
    results = _with_lengths(compute, without_pool, {**arrays, "initial_state": pool[entries]})
    pool[entries[entries >= 0]] = results["final_state"][entries >= 0]
    for n in np.flatnonzero(entries < 0).tolist():
        results["o"][_tokens(problem, arrays, n)] = 0
    return {"o": results["o"], "final_state": results["final_state"][:0], "state_pool": pool}


def _tokens(problem: Problem, arrays: Arrays, n: int) -> tuple[slice, slice]:
    """Slices of sequence n in tensors [B, T, ...]."""
    if not problem.use_cu_seqlens:
        return slice(n, n + 1), slice(None)
    return slice(None), slice(*arrays["cu_seqlens"][n : n + 2].tolist())


def _with_lengths(compute: Compute, problem: Problem, arrays: Arrays) -> Arrays:
    return _by_sequence(compute, problem, arrays) if problem.use_cu_seqlens else compute(problem, arrays)


def _recurrence(problem: Problem, arrays: Arrays) -> Arrays:
    q, k, v, g, beta, state = _operands(problem, arrays)
    o = np.zeros(v.shape)
    for t in range(problem.seq_len):
        state = np.exp(g[:, :, t, :, None]) * state
        u = beta[:, :, t, None] * (v[:, :, t] - times(k[:, :, t], state))
        state = state + k[:, :, t, :, None] * u[:, :, None, :]
        o[:, :, t] = times(q[:, :, t], state)
    return _outputs(problem, o, state)


def _chunked(problem: Problem, arrays: Arrays) -> Arrays:
    q, k, v, g, beta, state = _operands(problem, arrays)
    o = np.zeros(v.shape)
    for start in range(0, problem.seq_len, CHUNK):
        part = slice(start, start + CHUNK)
        tensors = [item[:, :, part] for item in (q, k, v, g, beta)]
        large = _large(problem, tensors[3])
        o[:, :, part], state = _chunk(_SIGNIFICANT_BITS[problem.operands], large, state, *tensors)
    return _outputs(problem, _round(o, problem.dtype), state)


def _by_sequence(compute: Compute, problem: Problem, arrays: Arrays) -> Arrays:
    """`compute` for each packed sequence separately, and the results packed as by the kernels."""
    results = []
    for n, (first, last) in enumerate(pairwise(arrays["cu_seqlens"].tolist())):
        sequence_problem = replace(problem, use_cu_seqlens=False, seq_len=max(last - first, 1))
        tokens = {name: arrays[name][:, first:last] for name in ("q", "k", "v", "g", "beta")}
        state = arrays["initial_state"][n : n + 1]
        if last > first:
            results.append(compute(sequence_problem, {**arrays, **tokens, "initial_state": state}))
        else:  # a sequence without tokens keeps its state
            final_state = state if problem.use_initial_state else np.zeros((1, *_stored_shape(problem)))
            results.append({"o": tokens["v"].astype(np.float64), "final_state": final_state})
    states = np.concatenate([result["final_state"] for result in results])
    return {
        "o": np.concatenate([result["o"] for result in results], axis=1),
        "final_state": states[: problem.final_states],
    }


def _stored_shape(problem: Problem) -> tuple[int, int, int]:
    return problem.value_heads, problem.state_rows, problem.state_columns


def _large(problem: Problem, g: Array) -> Array:
    """Whether a chunk's gates [B, HV, C, K] are too strong for a product of decayed operands: [B, HV, 1, 1]."""
    if problem.safe_gate:
        return np.zeros((*g.shape[:2], 1, 1), bool)
    is_large: Array = np.sum(g, axis=2, keepdims=True).min(axis=3, keepdims=True) < LARGEST_DECAY
    return is_large


def _chunk(
    bits: int, large: Array, state: Array, q: Array, k: Array, v: Array, g: Array, beta: Array
) -> tuple[Array, Array]:
    """One chunk in the folded form of README.md: tensors [B, HV, C, ·], state [B, HV, K, V]. `bits`: significant bits
    of operands. `large`: where gates are large."""
    g = np.where(large, np.maximum(g, FORGOTTEN), g)
    gate, total = np.cumsum(g, axis=2), np.sum(g, axis=2, keepdims=True)
    q_in, k_in, k_out = (keep(bits, x) for x in (q * np.exp(gate), k * np.exp(gate), k * np.exp(total - gate)))
    k_up = keep(bits, k * np.exp(-gate))
    kk, qk = (np.where(large, _levels(bits, x, k, g), x_in @ _t(k_up)) for x, x_in in ((k, k_in), (q, q_in)))
    T = keep(bits, np.linalg.inv(np.eye(k.shape[2]) + beta[..., None] * np.tril(kk, -1)) * beta[:, :, None, :])
    P = keep(bits, np.tril(qk))
    x = keep(bits, v - k_in @ keep(bits, state))
    o = q_in @ keep(bits, state) + keep(bits, P @ T) @ x
    return o, np.exp(_t(total)) * state + _t(keep(bits, _t(T) @ k_out)) @ x


def _levels(bits: int, x: Array, k: Array, g: Array) -> Array:
    """x_i · k_j of a chunk, decayed from j to i: [B, HV, C, C], zero for j > i. As in chunks/levels.cuh: i and j are in
    the two halves of a run of tokens, and decay from the start of one half, and to the end of the other. The diagonal
    is not rounded."""
    token = np.arange(g.shape[2])
    until = np.concatenate([np.zeros_like(g[:, :, :1]), np.cumsum(g, axis=2)], axis=2)  # sums before each token
    scores: Array = x @ _t(k) * np.eye(len(token))
    for half in (1, 2, 4, 8):
        later, start = token // half % 2 == 1, token // half * half
        end = np.minimum(start + half, len(token))
        rows = keep(bits, x * np.exp(until[:, :, token + 1] - until[:, :, start]))
        columns = keep(bits, k * np.exp(until[:, :, end] - until[:, :, token + 1]))
        in_level = (start[:, None] - half == start) & later[:, None] & ~later
        scores = np.where(in_level, rows @ _t(columns), scores)
    return scores


def _recurrence_fp32(problem: Problem, arrays: Arrays) -> Arrays:
    q, k, v, g, beta, state = (operand.astype(np.float32) for operand in _operands(problem, arrays))
    o = np.zeros(v.shape, np.float32)
    for t in range(problem.seq_len):
        state = np.exp(g[:, :, t, :, None]) * state
        u = beta[:, :, t, None] * (v[:, :, t] - times(k[:, :, t], state))
        state = state + k[:, :, t, :, None] * u[:, :, None, :]
        o[:, :, t] = times(q[:, :, t], state)
    return _outputs(problem, _round(o, problem.dtype), state.astype(np.float64))


def _operands(problem: Problem, arrays: Arrays) -> tuple[Array, Array, Array, Array, Array, Array]:
    """q (scaled), k, v, g, beta as float64 [B, HV, T, ·], and the first state."""
    q, k, v, g, beta = (np.moveaxis(arrays[n].astype(np.float64), 2, 1) for n in ("q", "k", "v", "g", "beta"))
    if problem.use_qk_l2norm_in_kernel:
        q, k = (x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + L2_EPSILON) for x in (q, k))
    if problem.use_beta_sigmoid_in_kernel:
        beta = (1 + problem.allow_neg_eigval) / (1 + np.exp(-beta))
    if problem.use_gate_in_kernel:
        g = gate(problem, g, arrays)
    group = problem.value_heads // problem.heads
    q, k = (np.repeat(x, group, axis=1) for x in (q, k))
    scale = arrays.get("scale", problem.key_dim**-0.5)
    state = np.zeros((problem.batch, *_stored_shape(problem)))
    if problem.use_initial_state:
        state = arrays["initial_state"].astype(np.float64)
    return q * scale, k, v, g, beta, _t(state) if problem.state_v_first else state


def gate(problem: Problem, g: Array, arrays: Arrays) -> Array:
    """The logarithm of the decay, from raw g [B, HV, T, K]."""
    rate = np.exp(arrays["A_log"].astype(np.float64))[:, None, None]
    if problem.use_dt_bias:
        g = g + arrays["dt_bias"].astype(np.float64)[:, None, :]
    if problem.use_lower_bound:
        bounded: Array = arrays.get("lower_bound", LOWER_BOUND) / (1 + np.exp(-rate * g))
        return bounded
    softplus: Array = -rate * np.logaddexp(0, g)
    return softplus


def _outputs(problem: Problem, o: Array, state: Array) -> Arrays:
    stored = _t(state) if problem.state_v_first else state
    return {"o": np.moveaxis(o, 1, 2), "final_state": stored[: problem.final_states]}


def times(x: Array, state: Array) -> Array:
    """x [B, HV, K] times state [B, HV, K, V]."""
    product: Array = (x[:, :, None, :] @ state)[:, :, 0]
    return product


def _t(x: Array) -> Array:
    return np.swapaxes(x, -1, -2)


def keep(bits: int, x: Array) -> Array:
    """x rounded to `bits` significant bits, within the range of float64."""
    mantissa, exponent = np.frexp(x)
    result: Array = np.ldexp(np.rint(np.ldexp(mantissa, bits)), exponent - bits)
    return result


def _round(x: Array, dtype: DType) -> Array:
    result: Array = x.astype(dtype.numpy).astype(np.float64)
    return result
