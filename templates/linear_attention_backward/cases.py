"""Test cases of linear_attention_backward: inputs of increasing numerical difficulty, and small problems that cover the
edge cases."""

from dataclasses import replace

import numpy as np

from tuner.spec import Arrays, random_tensor

from ..linear_attention import cases as forward
from .problem import Problem

INPUT_KINDS = (*forward.INPUT_KINDS, "far_values")


def inputs(problem: Problem, rng: np.random.Generator, kind: str) -> Arrays:
    """The inputs of linear_attention of that kind, and gradients of its outputs from N(0, 1).

    far_values: v is N(16, 1); dk depends only on differences of v.
    """
    arrays = forward.inputs(problem.forward(), rng, "normal" if kind == "far_values" else kind)
    if kind == "far_values":
        arrays["v"] = (arrays["v"].astype(np.float32) + 16).astype(problem.dtype.numpy)
    shape, dtype = (problem.batch, problem.seq_len, problem.heads, problem.head_dim), problem.dtype.numpy
    d_o = random_tensor(rng, shape, dtype, lambda generator, part: generator.standard_normal(part, np.float32))
    dht = rng.standard_normal((problem.final_states, problem.numbers, problem.heads, problem.head_dim), np.float32)
    return {**arrays, "d_o": d_o, "dht": dht}


def tails(problem: Problem) -> tuple[Problem, ...]:
    return tuple(
        replace(problem, batch=B, seq_len=T, heads=H, boundaries=boundaries)
        for B, T, H, boundaries in forward.tail_extents(problem.varlen, 150)
    )
