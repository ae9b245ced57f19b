"""The definition of linear_attention in float64: one token after the other."""

import numpy as np

from tuner.spec import Array, Arrays

from .problem import Problem


def reference(problem: Problem, arrays: Arrays) -> Arrays:
    """o [B, T, H, D], and the last s and n of each sequence [N, 2, H, D], or empty, in float64."""
    q, k, v = (arrays[name].astype(np.float64) for name in ("q", "k", "v"))
    weight = sigmoid(np.maximum(k, -problem.key_floor))
    beta = betas(problem, arrays)
    o = np.zeros(q.shape)
    final = np.zeros((problem.sequences, 2, problem.heads, problem.head_dim))
    initial = arrays["initial_state"].astype(np.float64) if problem.use_initial_state else np.zeros(final.shape)
    for index, row, begin, end in spans(problem, arrays):
        s, n = initial[index]
        for t in range(begin, end):
            n = beta * n + weight[row, t]
            s = beta * s + weight[row, t] * v[row, t]
            o[row, t] = q[row, t] * s / n
        final[index] = s, n
    return {"o": o, "final_state": final[: problem.final_states]}


def rounded(problem: Problem, arrays: Arrays) -> Arrays:
    """The reference with o rounded to its dtype: the only rounding of the kernels."""
    exact = reference(problem, arrays)
    return exact | {"o": exact["o"].astype(problem.dtype.numpy).astype(np.float64)}


def betas(problem: Problem, arrays: Arrays) -> Array:
    """β broadcast to [H, D], in float64; rounded to fp32 first, as kernels receive it."""
    beta = np.float32(arrays["beta_scalar"]) if problem.decay == "scalar" else arrays["beta"]
    return np.broadcast_to(np.asarray(beta, np.float64), (problem.heads, problem.head_dim))


def spans(problem: Problem, arrays: Arrays) -> list[tuple[int, int, int, int]]:
    """(sequence, row of the batch, first token, end) of every sequence."""
    if not problem.varlen:
        return [(b, b, 0, problem.seq_len) for b in range(problem.batch)]
    bounds = arrays["cu_seqlens"].tolist()
    return [(index, 0, bounds[index], bounds[index + 1]) for index in range(problem.sequences)]


def sigmoid(x: Array) -> Array:
    """The logistic function, without overflow at either end."""
    small = np.exp(-np.abs(x))
    sigmoid: Array = np.where(x >= 0, 1, small) / (1 + small)
    return sigmoid
