"""Test cases of attention gradients: inputs, and the gradients in float64 for any mask."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tuner.errors import UsageError
from tuner.spec import Array, Arrays, DType, normal

INPUT_KINDS = ("normal", "peaked", "two_keys", "one_hot")
_COMPUTED = 1 << 26  # query-key pairs over all heads for which o and lse take one second


def with_upstream(
    problem: Any,
    arrays: Arrays,
    rng: np.random.Generator,
    kind: str,
    forward: Callable[[Arrays], Arrays],
    attended: Callable[[], Array],
) -> Arrays:
    """q, k, v and the scale of a forward call, converted to the input kind, with its o and lse, and dout and dlse from
    N(0, 1).

    `attended` counts the keys of each query, [T]. For large problems with q and k from N(0, 1), which are only timed
    and not compared with float64, o and lse only approximate the results of `forward`: see `_expected`.

    peaked: scores have a standard deviation of 4, so that few keys get most of the weight; if one key got it all, dq
    and dk would be zero. two_keys: keys alternate between two values, so that the gradients reveal a mask that is off
    by one; with all keys equal, dq would be zero. Raises UsageError for an unknown kind.
    """
    if kind not in INPUT_KINDS:
        raise UsageError(f"inputs {kind!r}: attention gradients support {', '.join(INPUT_KINDS)}")
    if kind == "peaked":
        arrays["q"] *= 4
    elif kind == "two_keys":
        arrays["k"][:] = arrays["k"][:, np.arange(problem.seq_k) % 2]
    pairs = problem.batch * problem.heads * problem.seq_q * problem.seq_k
    large = kind == "normal" and pairs > _COMPUTED
    results = _expected(problem, arrays, rng, attended()) if large else forward(arrays)
    dtype = problem.dtype.numpy
    dout = normal(rng, results["o"].shape, dtype)
    lse = results["lse"].astype(np.float32)
    forward_outputs = {"dout": dout, "o": results["o"].astype(dtype), "lse": lse}
    return arrays | forward_outputs | {"dlse": _lse_gradient(problem, lse, rng)}


def _expected(problem: Any, arrays: Arrays, rng: np.random.Generator, attended: Array) -> Arrays:
    """The expected o and lse of n keys and values from N(0, 1).

    The scores of a row are N(0, s²), s = scale · |q|. The sum of n such exponentials is about n exp(s² / 2), and the
    sum of the squared probabilities is about exp(s²) / n, which is the variance of o.
    """
    q = arrays["q"].astype(np.float32)
    variance = arrays.get("softmax_scale", problem.head_dim**-0.5) ** 2 * np.einsum("bthd,bthd->bth", q, q)
    keys = np.maximum(attended, 1)[:, None]
    spread = np.where(attended[:, None], np.minimum(np.exp(variance) / keys, 1), 0) ** 0.5
    lse = np.where(attended[:, None], np.log(keys) + variance / 2, -np.inf)
    o = normal(rng, (*q.shape[:3], problem.head_dim_v), np.float32) * spread[..., None].astype(np.float32)
    return {"o": o, "lse": lse.swapaxes(1, 2)}


def _lse_gradient(problem: Any, lse: Array, rng: np.random.Generator) -> Array:
    """NaN for queries that attend no key, as in the gradient of a loss that merges two such parts."""
    gradient = rng.standard_normal((problem.lse_gradients, *lse.shape[1:])).astype(np.float32)
    gradient[~np.isfinite(lse[: problem.lse_gradients])] = np.nan
    return gradient


def gradients(problem: Any, arrays: Arrays, visible: Array, *, rounded: bool, softcap: float = 0.0) -> Arrays:
    """Gradients if query i attends the keys j with visible[i, j], boolean [T, S]; `arrays` includes o and lse.

    `rounded`: P, dS and the results are rounded to the dtype, and sums over DV are kept in fp32; those of 16-bit
    products are added as tensor cores add them.

    With P = softmax(scale · Q Kᵀ) and D the row sums of dO ∘ O (Dao et al., FlashAttention, 2022, appendix B):

    dV = Pᵀ dO      dS = P ∘ (dO Vᵀ − D + dlse)      dQ = scale · dS K      dK = scale · dSᵀ Q

    P is the derivative of lse with respect to the scaled scores. With a softcap c, a score x becomes c · t with t =
    tanh(x / c), and dS is multiplied by 1 − t².
    """
    q, k, v, dout, o, lse = (arrays[name].astype(np.float64) for name in ("q", "k", "v", "dout", "o", "lse"))
    sums = np.float32 if rounded else np.float64  # if one key dominates, dS is the rounding error of these sums
    tensor_cores = rounded and problem.dtype is not DType.FP32
    row_sums = (dout * o).astype(sums).sum(axis=3)
    delta, scale = _delta(problem, arrays, row_sums, lse), arrays.get("softmax_scale", problem.head_dim**-0.5)
    gradients = {"dq": np.zeros(q.shape), "dk": np.zeros(k.shape), "dv": np.zeros(v.shape)}
    for b, h in np.ndindex(problem.batch, problem.heads):
        shared = h // (problem.heads // problem.kv_heads)
        keys, values, upstream = k[b, :, shared], v[b, :, shared], dout[b, :, h]
        scores, slope = _capped(scale * q[b, :, h] @ keys.T, softcap)
        p = _probabilities(scores, lse[b, h], visible)
        product = _summed(upstream, values) if tensor_cores else upstream.astype(sums) @ values.astype(sums).T
        ds = p * (product - delta[b, h][:, None]) * slope
        if rounded:
            p, ds = _round(p, problem.dtype), _round(ds, problem.dtype)
        gradients["dv"][b, :, shared] += p.T @ upstream
        gradients["dq"][b, :, h] = scale * ds @ keys
        gradients["dk"][b, :, shared] += scale * ds.T @ q[b, :, h]
    return {name: _round(array, problem.dtype) if rounded else array for name, array in gradients.items()}


def logit_gradients(problem: Any, arrays: Arrays, *, rounded: bool) -> Array:
    """The gradient of s_aux, float64 [H], or empty without s_aux: −P (D − dlse) summed over all queries of a sequence,
    where P = exp(s_aux − lse) is the softmax weight of the logit, whose value is 0. `rounded`: D is summed in fp32."""
    if not problem.use_s_aux:
        return np.zeros(0)
    sums = np.float32 if rounded else np.float64
    row_sums = (arrays["dout"].astype(sums) * arrays["o"].astype(sums)).sum(axis=3).astype(np.float64)
    lse = arrays["lse"].astype(np.float64)
    slopes = -np.exp(arrays["s_aux"].astype(np.float64)[:, None] - lse) * _delta(problem, arrays, row_sums, lse)
    if problem.use_cu_seqlens:  # rows between sequences are undefined
        row, bounds = np.arange(problem.seq_q), arrays["cu_seqlens_q"]
        slopes = np.where((row >= bounds[0]) & (row < bounds[-1]), slopes, 0)
    logit_gradient: Array = slopes.sum(axis=(0, 2))
    return logit_gradient


def _delta(problem: Any, arrays: Arrays, row_sums: Array, lse: Array) -> Array:
    """The amount subtracted from dO Vᵀ, [B, H, T]. 0 where no key is attended: P is 0 there, and dlse may be NaN."""
    sums = row_sums.swapaxes(1, 2)
    return np.where(np.isfinite(lse), sums - arrays["dlse"], 0) if problem.use_lse_gradient else sums


def _summed(a: Array, b: Array) -> Array:
    """a bᵀ of a [T, DV] and b [S, DV], accumulated as tensor cores do: see "what it proves" in templates/primitives."""
    total: Array = np.zeros((len(a), len(b)))
    for d in range(0, a.shape[1], 8):
        terms = np.stack([total, *(np.outer(a[:, e], b[:, e]) for e in range(d, d + 8))])
        aligned = _truncated(terms, np.abs(terms).max(axis=0), 24).sum(axis=0)
        total = _truncated(aligned, np.abs(aligned), 23)
    return total


def _truncated(x: Array, largest: Array, bits: int) -> Array:
    """x truncated to `bits` binary digits below the leading digit of `largest`."""
    unit = np.exp2(np.frexp(np.maximum(largest, 2.0**-126))[1] - 1.0 - bits)
    return np.trunc(x / unit) * unit


def _capped(scores: Array, softcap: float) -> tuple[Array, Array]:
    """Scores after the softcap, if it is not 0, and their derivative with respect to the scores before."""
    if not softcap:
        return scores, np.ones(())
    tanh = np.tanh(scores / softcap)
    return softcap * tanh, 1 - tanh**2


def _probabilities(scores: Array, lse: Array, visible: Array) -> Array:
    """P [T, S]; 0 in a row that attends no key, whose lse is -inf."""
    exponents = np.where(visible, scores - np.where(np.isfinite(lse), lse, 0)[:, None], -np.inf)
    probabilities: Array = np.exp(exponents)
    return probabilities


def _round(x: Array, dtype: DType) -> Array:
    return x.astype(dtype.numpy).astype(np.float64)
