"""kda's backward pass chunk by chunk, rounded as the kernels round: README.md has the formulas."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from tuner.spec import Array, Arrays

from ..kda import recurrence
from .adjoint import Operands, adjoint, by_sequence, operands, outputs, to_dtypes
from .problem import Problem

CHUNK = 16
SPAN = 8  # chunks that share a stored state
SIGNIFICANT_BITS = {"bf16": 8, "tf32": 11}  # significant bits of an operand
FORGOTTEN = -40.0  # e^-40 is negligible, and e^(40 · CHUNK) still fits float64


Keep = Callable[[Array], Array]  # rounds operands


def rounded(problem: Problem, arrays: Arrays) -> Arrays:
    """The chunked form with operands rounded as for tensor cores. With fp32 operands the recurrence runs in that
    precision.
    """
    if problem.use_cu_seqlens:
        return by_sequence(rounded, problem, arrays)
    if problem.operands == "fp32":
        per_head = adjoint(operands(problem, arrays, np.float32))
    else:
        keep = partial(recurrence.keep, SIGNIFICANT_BITS[problem.operands])
        per_head = _by_chunks(operands(problem, arrays, np.float64), keep)
    return to_dtypes(problem, outputs(problem, arrays, per_head))


@dataclass(frozen=True, slots=True)
class _Chunk:
    """The quantities of a chunk that do not depend on the state: tensors [B, HV, C, ·]."""

    q: Array  # e^G q, rounded, as are the next two
    k: Array  # e^G k
    k_up: Array  # e^-G k
    k_out: Array  # e^(G_last - G) k, rounded when used as an operand
    W: Array  # Tᵀ k_out
    A: Array  # P T
    E: Array  # the inverse that gives errors
    gate: Array  # G: sums of log decays
    d_o: Array
    beta: Array  # [B, HV, C, 1]

    @property
    def decay(self) -> Array:
        """e^G_last [B, HV, K, 1]."""
        decay: Array = np.exp(_t(self.gate[:, :, -1:]))
        return decay


def _by_chunks(x: Operands, keep: Keep) -> Arrays:
    spans = [slice(start, start + CHUNK) for start in range(0, x.q.shape[2], CHUNK)]
    chunks = [_prepared(x, span, keep) for span in spans]
    states, errors = [], []
    state, d_state = x.state, x.d_state
    for span, c in zip(spans, chunks, strict=True):
        states.append(keep(state))
        r = x.v[:, :, span] - c.k @ states[-1]
        errors.append(keep(c.E @ keep(r)))
        state = c.decay * state + _t(c.W) @ keep(c.beta * r)
    recomputed = state
    for i, c in enumerate(chunks):
        recomputed = states[i] if i % SPAN == 0 else recomputed
        states[i] = keep(recomputed)
        recomputed = c.decay * recomputed + _t(keep(c.beta * c.k_out)) @ errors[i]
    gradients_by_name: dict[str, list[Array]] = {name: [] for name in ("dq", "dk", "dv", "dg", "dbeta")}
    for i in reversed(range(len(chunks))):
        c, span, after = chunks[i], spans[i], keep(d_state)
        recomputed = after if i % SPAN == SPAN - 1 or i == len(chunks) - 1 else recomputed
        y = _t(c.A) @ c.d_o + c.W @ after
        d_state = c.decay * d_state + _t(c.q) @ c.d_o - _t(c.k) @ keep(c.beta * y)
        gradients = _gradients(x, span, c, (states[i], keep(recomputed), errors[i], keep(y)), keep)
        recomputed = c.decay * recomputed + _t(c.q) @ c.d_o - _t(keep(c.beta * c.k)) @ keep(y)
        for name, value in {**gradients, "dv": c.beta * y}.items():
            gradients_by_name[name].append(value)
    return {**{name: np.concatenate(parts[::-1], axis=2) for name, parts in gradients_by_name.items()}, "dh0": d_state}


def _prepared(x: Operands, span: slice, keep: Keep) -> _Chunk:
    q, k, beta = x.q[:, :, span], x.k[:, :, span], x.beta[:, :, span, None]
    gate = np.cumsum(np.maximum(x.g[:, :, span], FORGOTTEN), axis=2)
    q_in, k_in, k_up = keep(q * np.exp(gate)), keep(k * np.exp(gate)), keep(k * np.exp(-gate))
    k_out = k * np.exp(gate[:, :, -1:] - gate)
    L, P = np.tril(k_in @ _t(k_up), -1), keep(np.tril(q_in @ _t(k_up)))
    identity = np.eye(L.shape[-1])
    T, E = keep(np.linalg.inv(identity + beta * L)), keep(np.linalg.inv(identity + L * _t(beta)))
    updates, d_o = keep(_t(T) @ keep(k_out)), keep(x.d_o[:, :, span])
    return _Chunk(q_in, k_in, k_up, k_out, updates, keep(P @ T), E, gate, d_o, beta)


def _gradients(x: Operands, span: slice, c: _Chunk, scanned: tuple[Array, Array, Array, Array], keep: Keep) -> Arrays:
    """dq, dk, dg and dbeta of one chunk. `left`, from the scans: the state before it, the gradient of the state after
    it, errors and y."""
    state, d_state, e, y = scanned
    q, k, beta, up, down = x.q[:, :, span], x.k[:, :, span], c.beta, np.exp(c.gate), np.exp(-c.gate)
    ye = y @ _t(e)
    within = c.d_o @ _t(e) * _t(beta)
    dP, Z = keep(np.tril(within, -1)), keep(np.tril(ye, -1) * beta * _t(beta))
    diagonal = np.diagonal(within, axis1=-2, axis2=-1)[..., None]  # exact, and not part of dg
    dq = up * (c.d_o @ _t(state) + dP @ c.k_up)
    dk_in = -up * (beta * (y @ _t(state)) + Z @ c.k_up)
    dk_up = down * (_t(dP) @ c.q - _t(Z) @ c.k)
    dk_out = np.exp(c.gate[:, :, -1:] - c.gate) * beta * (e @ _t(d_state))
    d_gate = q * dq + k * (dk_in - dk_up - dk_out)
    last = np.sum(k * dk_out, axis=2) + c.decay[..., 0] * np.sum(state * d_state, axis=-1)
    return {
        "dq": x.scale * (dq + diagonal * k),
        "dk": dk_in + dk_up + dk_out + diagonal * q,
        "dg": np.cumsum(d_gate[:, :, ::-1], axis=2)[:, :, ::-1] + last[:, :, None],
        "dbeta": np.diagonal(ye, axis1=-2, axis2=-1),
    }


def _t(x: Array) -> Array:
    return np.swapaxes(x, -1, -2)
