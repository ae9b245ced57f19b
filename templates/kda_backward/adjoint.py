"""kda's backward pass by the recurrence: the adjoint of each token's step, from the last token to the first."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from tuner.spec import Array, Arrays, DType

from ..kda.recurrence import L2_EPSILON, LOWER_BOUND, gate, times
from .problem import Problem


def by_sequence(compute: Callable[[Problem, Arrays], Arrays], problem: Problem, arrays: Arrays) -> Arrays:
    """`compute` for each packed sequence separately, and the results packed as by the kernels."""
    results: list[Arrays] = []
    for n, (first, last) in enumerate(pairwise(arrays["cu_seqlens"].tolist())):
        if last == first:  # a sequence without tokens passes on the gradient of its state
            shape = (1, problem.value_heads, problem.state_rows, problem.state_columns)
            gradient = arrays["dht"][n : n + 1] if problem.use_final_gradient else np.zeros(shape)
            results.append({"dh0": gradient[: problem.use_initial_state].astype(np.float64)})
            continue
        sequence_problem = replace(problem, use_cu_seqlens=False, seq_len=last - first)
        tokens = {name: arrays[name][:, first:last] for name in _TOKENS}
        states = {name: arrays[name][n : n + 1] for name in ("initial_state", "dht")}
        results.append(compute(sequence_problem, {**arrays, **tokens, **states}))
    gradients = {
        name: [result[name] for result in results if name in result] for name in ("dq", "dk", "dv", "dg", "dbeta")
    }
    joined = {name: np.concatenate(parts, axis=1) for name, parts in gradients.items()}
    for name in ("dA_log", "ddt_bias"):
        joined[name] = np.sum([result[name] for result in results if name in result], axis=0)
    return {**joined, "dh0": np.concatenate([result["dh0"] for result in results])}


@dataclass(frozen=True, slots=True)
class Operands:
    """q (scaled), k, g [B, HV, T, K], v, do [B, HV, T, V], beta [B, HV, T]; the states before and their gradients after
    the sequence [B, HV, K, V]. All have the same precision, which is also that of the results."""

    q: Array
    k: Array
    v: Array
    g: Array
    beta: Array
    d_o: Array
    state: Array
    d_state: Array
    scale: float


_TOKENS = ("q", "k", "v", "g", "beta", "d_o")


def reference(problem: Problem, arrays: Arrays) -> Arrays:
    """All gradients in float64, one token after the other."""
    if problem.use_cu_seqlens:
        return by_sequence(reference, problem, arrays)
    return outputs(problem, arrays, adjoint(operands(problem, arrays, np.float64)))


def adjoint(x: Operands) -> Arrays:
    """Gradients per value head. With S' = diag(e^g) S, r = v - S'ᵀ k, u = beta r, S = S' + k uᵀ and o = Sᵀ q:

    dS += q doᵀ;  dq = S do;  dbeta = rᵀ dSᵀ k;  dv = beta dSᵀ k;  dk = dS u - S' dv;  dS' = dS - k dvᵀ; dg = the sums
    of S' dS' over values;  the dS of the previous token = diag(e^g) dS'.
    """
    decayed = _states(x)
    gradients = {name: np.zeros_like(like) for name, like in _shapes(x).items()}
    d_state = x.d_state
    for t in reversed(range(x.q.shape[2])):
        q, k, g, beta, d_o = x.q[:, :, t], x.k[:, :, t], x.g[:, :, t], x.beta[:, :, t, None], x.d_o[:, :, t]
        r = x.v[:, :, t] - times(k, decayed[t])
        u = beta * r
        d_state = d_state + _outer(q, d_o)
        d_u = times(k, d_state)
        d_v = beta * d_u
        gradients["dq"][:, :, t] = _times_values(decayed[t] + _outer(k, u), d_o) * x.scale
        gradients["dk"][:, :, t] = _times_values(d_state, u) - _times_values(decayed[t], d_v)
        gradients["dv"][:, :, t] = d_v
        gradients["dbeta"][:, :, t] = np.sum(r * d_u, axis=-1)
        d_state = d_state - _outer(k, d_v)
        gradients["dg"][:, :, t] = np.sum(decayed[t] * d_state, axis=-1)
        d_state = np.exp(g)[..., None] * d_state
    return {**gradients, "dh0": d_state}


def _shapes(x: Operands) -> Arrays:
    return {"dq": x.q, "dk": x.k, "dv": x.v, "dg": x.g, "dbeta": x.beta}


def _states(x: Operands) -> list[Array]:
    """S' of every token."""
    states, state = [], x.state
    for t in range(x.q.shape[2]):
        state = np.exp(x.g[:, :, t])[..., None] * state
        states.append(state)
        u = x.beta[:, :, t, None] * (x.v[:, :, t] - times(x.k[:, :, t], state))
        state = state + _outer(x.k[:, :, t], u)
    return states


def operands(problem: Problem, arrays: Arrays, precision: type) -> Operands:
    """The inputs per value head, in `precision`."""
    named = {name: np.moveaxis(arrays[name].astype(precision), 2, 1) for name in _TOKENS}
    if problem.use_qk_l2norm_in_kernel:
        named |= {name: named[name] / lengths(named[name]) for name in ("q", "k")}
    q, k = (np.repeat(named.pop(name), problem.group, axis=1) for name in ("q", "k"))
    if problem.use_beta_sigmoid_in_kernel:
        named["beta"] = sigmoid(problem, named["beta"])
    if problem.use_gate_in_kernel:
        named["g"] = gate(problem.forward(), named["g"].astype(np.float64), arrays).astype(precision)
    scale = float(arrays.get("scale", problem.key_dim**-0.5))
    zeros: Array = np.zeros((problem.batch, problem.value_heads, problem.key_dim, problem.value_dim), precision)
    state = _stored(problem, arrays["initial_state"].astype(precision)) if problem.use_initial_state else zeros
    d_state = _stored(problem, arrays["dht"].astype(precision)) if problem.use_final_gradient else zeros
    return Operands(q=q * precision(scale), k=k, **named, state=state, d_state=d_state, scale=scale)


def outputs(problem: Problem, arrays: Arrays, per_head: Arrays) -> Arrays:
    """Gradients per value head in the operator's layout: tokens first, dq and dk summed over each group, and propagated
    through the normalization of q and k, the sigmoid of beta and the gate of g, if they are in use."""
    result = {name: np.moveaxis(per_head[name], 1, 2).astype(np.float64) for name in ("dq", "dk", "dv", "dg", "dbeta")}
    for name in ("dq", "dk"):
        by_group = (problem.batch, problem.seq_len, problem.heads, problem.group, problem.key_dim)
        result[name] = result[name].reshape(by_group).sum(axis=3)
        if problem.use_qk_l2norm_in_kernel:
            result[name] = _before_normalising(arrays[name[1:]].astype(np.float64), result[name])
    if problem.use_beta_sigmoid_in_kernel:
        beta = sigmoid(problem, arrays["beta"].astype(np.float64))
        result["dbeta"] = result["dbeta"] * beta * (1 - beta / (1 + problem.allow_neg_eigval))
    states = _stored(problem, per_head["dh0"].astype(np.float64))
    return {**result, **_before_gate(problem, arrays, result["dg"]), "dh0": states[: problem.initial_states]}


def _before_gate(problem: Problem, arrays: Arrays, d_gate: Array) -> Arrays:
    """dg, dA_log and ddt_bias from the gradient [B, T, HV, K] of the logarithm of the decay."""
    shapes = {"dA_log": (problem.gate_heads,), "ddt_bias": (problem.bias_heads, problem.key_dim)}
    if not problem.use_gate_in_kernel:
        return {"dg": d_gate, **{name: np.zeros(shape) for name, shape in shapes.items()}}
    bias = arrays["dt_bias"].astype(np.float64) if problem.use_dt_bias else 0
    x, rate = arrays["g"].astype(np.float64) + bias, np.exp(arrays["A_log"].astype(np.float64))[:, None]
    if problem.use_lower_bound:
        inside = 1 / (1 + np.exp(-rate * x))
        slope = arrays.get("lower_bound", LOWER_BOUND) * inside * (1 - inside) * rate
        to_rate = slope * x
    else:
        slope, to_rate = -rate / (1 + np.exp(-x)), -rate * np.logaddexp(0, x)
    dg = d_gate * slope
    bias_sum = np.sum(dg, axis=(0, 1))[: problem.bias_heads]
    return {"dg": dg, "dA_log": np.sum(d_gate * to_rate, axis=(0, 1, 3)), "ddt_bias": bias_sum}


def _stored(problem: Problem, state: Array) -> Array:
    """Converts a state between [..., K, V] and its stored layout, in either direction."""
    return np.swapaxes(state, -1, -2) if problem.state_v_first else state


def sigmoid(problem: Problem, x: Array) -> Array:
    """beta, from its value before the sigmoid."""
    result: Array = (1 + problem.allow_neg_eigval) / (1 + np.exp(-x))
    return result


def lengths(x: Array) -> Array:
    """Norms of the rows of x, as kda divides by them."""
    result: Array = np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + L2_EPSILON)
    return result


def _before_normalising(x: Array, gradient: Array) -> Array:
    """The gradient of x, from that of n = x / length: (dn - n (n · dn)) / length."""
    length = lengths(x)
    n = x / length
    result: Array = (gradient - n * np.sum(n * gradient, axis=-1, keepdims=True)) / length
    return result


def to_dtypes(problem: Problem, gradients: Arrays) -> Arrays:
    """Outputs rounded to their dtypes."""
    dtypes = {"dg": problem.gate_dtype, "dbeta": problem.beta_dtype}
    dtypes |= dict.fromkeys(("dh0", "dA_log", "ddt_bias"), DType.FP32)
    return {name: x.astype(dtypes.get(name, problem.dtype).numpy).astype(np.float64) for name, x in gradients.items()}


def _times_values(state: Array, x: Array) -> Array:
    """state [B, HV, K, V] times x [B, HV, V]."""
    product: Array = (state @ x[..., None])[..., 0]
    return product


def _outer(x: Array, y: Array) -> Array:
    product: Array = x[..., :, None] * y[..., None, :]
    return product
