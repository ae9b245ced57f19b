"""kda in float64: the recurrence that defines it, and its chunked form rounded where the kernels round."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np

from tuner.dtype import DType
from tuner.operator import Array, Arrays

from .problem import Problem

L2_EPSILON = 1e-6
LOWER_BOUND = -5.0  # of the kernel's gate, unless given
CHUNK = 16
FORGOTTEN = -40.0  # e^-40 is nothing, and e^(40 · CHUNK) is still a float64


def reference(problem: Problem, arrays: Arrays) -> Arrays:
    """o [B, T, HV, V] and final_state [B or 0, HV, K, V] by the recurrence, one token after the other.

    S' = diag(e^g) S;  u = beta (v - S'ᵀ k);  S = S' + k uᵀ;  o = scale · Sᵀ q
    """
    if problem.use_cu_seqlens:
        return _by_sequence(reference, problem, arrays)
    q, k, v, g, beta, state = _operands(problem, arrays)
    o = np.zeros(v.shape)
    for t in range(problem.seq_len):
        state = np.exp(g[:, :, t, :, None]) * state
        u = beta[:, :, t, None] * (v[:, :, t] - _times(k[:, :, t], state))
        state = state + k[:, :, t, :, None] * u[:, :, None, :]
        o[:, :, t] = _times(q[:, :, t], state)
    return _outputs(problem, o, state)


def rounded(problem: Problem, arrays: Arrays) -> Arrays:
    """The chunked form with operands rounded as tensor cores take them: bf16 products for 16-bit tensors.

    fp32 tensors are computed in fp32: there the recurrence runs in that precision.
    """
    if problem.use_cu_seqlens:
        return _by_sequence(rounded, problem, arrays)
    if problem.dtype is DType.FP32:
        return _recurrence_fp32(problem, arrays)
    q, k, v, g, beta, state = _operands(problem, arrays)
    o = np.zeros(v.shape)
    for start in range(0, problem.seq_len, CHUNK):
        part = slice(start, start + CHUNK)
        tensors = [each[:, :, part] for each in (q, k, v, g, beta)]
        o[:, :, part], state = _chunk(state, *tensors)
    return _outputs(problem, _round(o, problem.dtype), state)


def _by_sequence(compute: Callable[[Problem, Arrays], Arrays], problem: Problem, arrays: Arrays) -> Arrays:
    """`compute` for each of the packed sequences alone, and the results as kernels pack them."""
    found = []
    for n, (first, last) in enumerate(pairwise(arrays["cu_seqlens"].tolist())):
        alone = replace(problem, use_cu_seqlens=False, seq_len=max(last - first, 1))
        tokens = {name: arrays[name][:, first:last] for name in ("q", "k", "v", "g", "beta")}
        state = arrays["initial_state"][n : n + 1]
        if last > first:
            found.append(compute(alone, {**arrays, **tokens, "initial_state": state}))
        else:  # a sequence without a token keeps its state
            kept = state if problem.use_initial_state else np.zeros((1, *_state_shape(problem)))
            found.append({"o": tokens["v"].astype(np.float64), "final_state": kept})
    states = np.concatenate([each["final_state"] for each in found])
    return {"o": np.concatenate([each["o"] for each in found], axis=1), "final_state": states[: problem.final_states]}


def _state_shape(problem: Problem) -> tuple[int, int, int]:
    return problem.value_heads, problem.key_dim, problem.value_dim


def _chunk(state: Array, q: Array, k: Array, v: Array, g: Array, beta: Array) -> tuple[Array, Array]:
    """One chunk in the folded form of README.md: tensors [B, HV, C, ·], state [B, HV, K, V]."""
    g = np.maximum(g, FORGOTTEN)
    gate, total = np.cumsum(g, axis=2), np.sum(g, axis=2, keepdims=True)
    q_in, k_in, k_out = _bf16(q * np.exp(gate)), _bf16(k * np.exp(gate)), _bf16(k * np.exp(total - gate))
    k_up = _bf16(k * np.exp(-gate))
    T = np.linalg.inv(np.eye(k.shape[2]) + beta[..., None] * np.tril(k_in @ _t(k_up), -1)) * beta[:, :, None, :]
    T = _bf16(T)
    P = _bf16(np.tril(q_in @ _t(k_up)))
    x = _bf16(v - k_in @ _bf16(state))
    o = q_in @ _bf16(state) + _bf16(P @ T) @ x
    return o, np.exp(_t(total)) * state + _t(_bf16(_t(T) @ k_out)) @ x


def _recurrence_fp32(problem: Problem, arrays: Arrays) -> Arrays:
    q, k, v, g, beta, state = (each.astype(np.float32) for each in _operands(problem, arrays))
    o = np.zeros(v.shape, np.float32)
    for t in range(problem.seq_len):
        state = np.exp(g[:, :, t, :, None]) * state
        u = beta[:, :, t, None] * (v[:, :, t] - _times(k[:, :, t], state))
        state = state + k[:, :, t, :, None] * u[:, :, None, :]
        o[:, :, t] = _times(q[:, :, t], state)
    return {name: each.astype(np.float64) for name, each in _outputs(problem, o, state).items()}


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
    state = np.zeros((problem.batch, *_state_shape(problem)))
    if problem.use_initial_state:
        state = arrays["initial_state"].astype(np.float64)
    return q * scale, k, v, g, beta, state


def gate(problem: Problem, g: Array, arrays: Arrays) -> Array:
    """The logarithm of the decay, of raw g [B, HV, T, K]."""
    rate = np.exp(arrays["A_log"].astype(np.float64))[:, None, None]
    if problem.use_dt_bias:
        g = g + arrays["dt_bias"].astype(np.float64)[:, None, :]
    if problem.use_lower_bound:
        bounded: Array = arrays.get("lower_bound", LOWER_BOUND) / (1 + np.exp(-rate * g))
        return bounded
    softplus: Array = -rate * np.logaddexp(0, g)
    return softplus


def _outputs(problem: Problem, o: Array, state: Array) -> Arrays:
    return {"o": np.moveaxis(o, 1, 2), "final_state": state[: problem.final_states]}


def _times(x: Array, state: Array) -> Array:
    """x [B, HV, K] times state [B, HV, K, V]."""
    product: Array = (x[:, :, None, :] @ state)[:, :, 0]
    return product


def _t(x: Array) -> Array:
    return np.swapaxes(x, -1, -2)


def _bf16(x: Array) -> Array:
    """x with the 8 significant bits of bf16, in the range of float64."""
    mantissa, exponent = np.frexp(x)
    result: Array = np.ldexp(np.rint(mantissa * 256), exponent - 8)
    return result


def _round(x: Array, dtype: DType) -> Array:
    result: Array = x.astype(dtype.numpy).astype(np.float64)
    return result
