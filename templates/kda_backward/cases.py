"""Test cases of kda_backward: numerically difficult inputs, and small problems that cover the edge cases."""

from dataclasses import replace

import numpy as np

from tuner.spec import Arrays, normal

from ..kda import cases as forward
from .problem import Problem

INPUT_KINDS = ("strong_gate", "weak_gate", "zero_gate", "equal_keys", "beta_one", "gate_spikes")
_FORWARD = ("q", "k", "v", "g", "beta", "A_log", "dt_bias", "cu_seqlens", "initial_state")


def inputs(problem: Problem, rng: np.random.Generator, kind: str) -> Arrays:
    """kda's inputs of that kind, and random gradients of its outputs with the same distribution."""
    forward_inputs = forward.inputs(problem.forward(), rng, kind)
    output_shape = (problem.batch, problem.seq_len, problem.value_heads, problem.value_dim)
    d_o = normal(rng, output_shape, problem.dtype.numpy)
    dht = rng.standard_normal((problem.final_states, problem.value_heads, problem.state_rows, problem.state_columns))
    return {
        **{name: forward_inputs[name] for name in _FORWARD},
        "d_o": d_o,
        "dht": dht.astype(np.float32),
    }


def tails(problem: Problem) -> tuple[Problem, ...]:
    """One token; lengths below, at and above a chunk; 9 chunks; two sequences; value heads that share q and k."""
    if problem.use_cu_seqlens:
        packed = ((1, 1, 1, 2), (45, 1, 1, 3), (61, 1, 2, 5), (70, 2, 2, 7))
        return tuple(replace(problem, seq_len=T, heads=H, value_heads=HV, boundaries=N) for T, H, HV, N in packed)
    shapes = ((1, 1, 1, 1), (1, 45, 1, 1), (1, 16, 2, 2), (2, 33, 1, 2), (1, 141, 1, 1), (1, 40, 2, 4))
    return tuple(replace(problem, batch=B, seq_len=T, heads=H, value_heads=HV) for B, T, H, HV in shapes)
