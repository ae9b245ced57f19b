"""The gradients of linear_attention in float64: the adjoint of each token's step, from the last token to the first."""

import numpy as np

from tuner.spec import Array, Arrays

from ..linear_attention.recurrence import betas, sigmoid, spans
from .problem import Problem

_GRADIENTS = ("dq", "dk", "dv")


def reference(problem: Problem, arrays: Arrays) -> Arrays:
    """dq, dk, dv [B, T, H, D], dbeta [H, 1] or [H, D] or empty, and dh0 [N, 2, H, D] or empty, in float64.

    README.md derives the formulas.
    """
    forward = problem.forward()
    q, k, v, d_o = (arrays[name].astype(np.float64) for name in ("q", "k", "v", "d_o"))
    weight, beta = sigmoid(np.maximum(k, -problem.key_floor)), betas(forward, arrays)
    slope = weight * sigmoid(-k) * (k >= -problem.key_floor)
    gradients = {name: np.zeros(q.shape) for name in _GRADIENTS}
    shape = (problem.sequences, 2, problem.heads, problem.head_dim)
    d_beta, d_first = np.zeros(shape[2:]), np.zeros(shape)
    initial = arrays["initial_state"].astype(np.float64) if problem.use_initial_state else np.zeros(shape)
    d_last = arrays["dht"].astype(np.float64) if problem.use_final_gradient else np.zeros(shape)
    for index, row, begin, end in spans(forward, arrays):
        rows = slice(begin, end)
        n, m = _states(beta, weight[row, rows], v[row, rows], initial[index])
        d_s, d_n = d_last[index, 0], d_last[index, 1] + d_last[index, 0] * m[-1]
        for t in reversed(range(end - begin)):
            token = (row, begin + t)
            gain = weight[token] / n[t + 1]
            error = v[token] - m[t]
            d_s = d_s + q[token] * d_o[token] / n[t + 1]
            gradients["dq"][token] = d_o[token] * m[t + 1]
            gradients["dv"][token] = weight[token] * d_s
            gradients["dk"][token] = slope[token] * (d_s * error * beta * n[t] / n[t + 1] + d_n)
            d_n = d_n - gain * error * d_s
            d_beta += n[t] * d_n
            d_s, d_n = beta * d_s, beta * d_n
        d_first[index] = d_s, d_n - d_s * m[0]
    return {**gradients, "dbeta": _by_head(problem, d_beta), "dh0": d_first[: problem.initial_states]}


def rounded(problem: Problem, arrays: Arrays) -> Arrays:
    """The reference with dq, dk and dv rounded to their dtype: the only rounding of the kernels."""
    exact = reference(problem, arrays)
    return exact | {name: exact[name].astype(problem.dtype.numpy).astype(np.float64) for name in _GRADIENTS}


def _states(beta: Array, weight: Array, v: Array, initial: Array) -> tuple[list[Array], list[Array]]:
    """n, and the mean m = s / n, before the first token and after each; the mean is 0 if n is 0."""
    n, m = [initial[1]], [np.divide(initial[0], initial[1], out=np.zeros_like(initial[0]), where=initial[1] != 0)]
    for x, value in zip(weight, v, strict=True):
        n.append(beta * n[-1] + x)
        m.append(m[-1] + x / n[-1] * (value - m[-1]))
    return n, m


def _by_head(problem: Problem, d_beta: Array) -> Array:
    """The gradient of β in the shape of β: a sum over the channels that share it."""
    summed = d_beta if problem.decay == "channel" else np.sum(d_beta, axis=1, keepdims=True)
    return summed[: problem.beta_heads]
