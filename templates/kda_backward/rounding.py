"""kda's backward chunk by chunk, rounded where the kernels round: README.md has the formulas."""

from dataclasses import dataclass

import numpy as np

from tuner.dtype import DType
from tuner.operator import Array, Arrays

from .adjoint import Operands, adjoint, by_sequence, operands, outputs, to_dtypes
from .problem import Problem

CHUNK = 16
FORGOTTEN = -40.0  # e^-40 is nothing, and e^(40 · CHUNK) is still a float64


def rounded(problem: Problem, arrays: Arrays) -> Arrays:
    """The chunked form with operands rounded as tensor cores take them: bf16 products for 16-bit tensors.

    fp32 tensors are computed in fp32: there the recurrence runs in that precision.
    """
    if problem.use_cu_seqlens:
        return by_sequence(rounded, problem, arrays)
    if problem.dtype is DType.FP32:
        found = adjoint(operands(problem, arrays, np.float32))
    else:
        found = _by_chunks(operands(problem, arrays, np.float64))
    return to_dtypes(problem, outputs(problem, arrays, found))


@dataclass(frozen=True, slots=True)
class _Chunk:
    """What a chunk needs no state for: tensors [B, HV, C, ·]."""

    q: Array  # e^G q, in bf16 as the next three
    k: Array  # e^G k
    k_up: Array  # e^-G k
    W: Array  # Tᵀ e^(G_last - G) k
    A: Array  # P T
    E: Array  # the inverse that gives errors
    gate: Array  # G
    d_o: Array
    beta: Array  # [B, HV, C, 1]

    @property
    def decay(self) -> Array:
        """e^G_last [B, HV, K, 1]."""
        decay: Array = np.exp(_t(self.gate[:, :, -1:]))
        return decay


def _by_chunks(x: Operands) -> Arrays:
    spans = [slice(start, start + CHUNK) for start in range(0, x.q.shape[2], CHUNK)]
    chunks = [_prepared(x, span) for span in spans]
    states, errors = [], []
    state, d_state = x.state, x.d_state
    for span, c in zip(spans, chunks, strict=True):
        states.append(_bf16(state))
        r = x.v[:, :, span] - c.k @ states[-1]
        errors.append(_bf16(r))
        state = c.decay * state + _t(c.W) @ _bf16(c.beta * r)
    for i in range(1, len(chunks), 2):
        states[i] = _made_state(chunks[i - 1], states[i - 1], errors[i - 1])
    found: dict[str, list[Array]] = {name: [] for name in ("dq", "dk", "dv", "dg", "dbeta")}
    made = state  # for an even chunk that is not the last
    for i in reversed(range(len(chunks))):
        c, span, after = chunks[i], spans[i], _bf16(d_state)
        y = _t(c.A) @ c.d_o + c.W @ after
        d_state = c.decay * d_state + _t(c.q) @ c.d_o - _t(c.k) @ _bf16(c.beta * y)
        known = after if i % 2 or i == len(chunks) - 1 else made
        gradients = _gradients(x, span, c, states[i], known, errors[i], _bf16(y))
        made = _made_gradient(c, after, _bf16(y))
        for name, value in {**gradients, "dv": c.beta * y}.items():
            found[name].append(value)
    return {**{name: np.concatenate(parts[::-1], axis=2) for name, parts in found.items()}, "dh0": d_state}


def _prepared(x: Operands, span: slice) -> _Chunk:
    q, k, beta = x.q[:, :, span], x.k[:, :, span], x.beta[:, :, span, None]
    gate = np.cumsum(np.maximum(x.g[:, :, span], FORGOTTEN), axis=2)
    q_in, k_in, k_up = _bf16(q * np.exp(gate)), _bf16(k * np.exp(gate)), _bf16(k * np.exp(-gate))
    k_out = _bf16(k * np.exp(gate[:, :, -1:] - gate))
    L, P = np.tril(k_in @ _t(k_up), -1), _bf16(np.tril(q_in @ _t(k_up)))
    one = np.eye(L.shape[-1])
    T, E = _bf16(np.linalg.inv(one + beta * L)), _bf16(np.linalg.inv(one + L * _t(beta)))
    return _Chunk(q_in, k_in, k_up, _bf16(_t(T) @ k_out), _bf16(P @ T), E, gate, _bf16(x.d_o[:, :, span]), beta)


def _made_state(c: _Chunk, state: Array, r: Array) -> Array:
    """The state after a chunk, as the next one's gradients make it where every other state is stored."""
    return _bf16(c.decay * state + _t(_bf16(c.beta * c.W)) @ r)


def _made_gradient(c: _Chunk, d_state: Array, y: Array) -> Array:
    """The gradient of the state before a chunk, as those of the chunk before it make it."""
    return _bf16(c.decay * d_state + _t(c.q) @ c.d_o - _t(_bf16(c.beta * c.k)) @ y)


def _gradients(x: Operands, span: slice, c: _Chunk, state: Array, d_state: Array, r: Array, y: Array) -> Arrays:
    """dq, dk, dg and dbeta of one chunk, from the state before it and the gradient of the one after it."""
    q, k, beta, up, down = x.q[:, :, span], x.k[:, :, span], c.beta, np.exp(c.gate), np.exp(-c.gate)
    e = _bf16(c.E @ r)
    ye = y @ _t(e)
    within = c.d_o @ _t(e) * _t(beta)
    dP, Z = _bf16(np.tril(within, -1)), _bf16(np.tril(ye, -1) * beta * _t(beta))
    diagonal = np.diagonal(within, axis1=-2, axis2=-1)[..., None]  # exact, and no part of dg
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


def _bf16(x: Array) -> Array:
    """x with the 8 significant bits of bf16, in the range of float64."""
    mantissa, exponent = np.frexp(x)
    result: Array = np.ldexp(np.rint(mantissa * 256), exponent - 8)
    return result
