"""Test cases of streaming_attention_backward: inputs, edge-case extents, and the gradients in float64."""

import numpy as np

from tuner.spec import Arrays

from ..flash_attention_backward.cases import INPUT_KINDS, gradients, with_upstream
from ..streaming_attention import cases as forward
from ..streaming_attention.problem import attended_keys, attends
from .problem import Problem

__all__ = ["INPUT_KINDS", "inputs", "reference", "rounded", "tails"]


def inputs(problem: Problem, rng: np.random.Generator, kind: str) -> Arrays:
    """The inputs of flash_attention_backward, with o and lse of streaming_attention."""
    forward_inputs = forward.inputs(problem.forward, rng, "one_hot" if kind == "one_hot" else "normal")
    arrays_of_call = {name: forward_inputs[name] for name in ("q", "k", "v", "softmax_scale")}
    return with_upstream(
        problem,
        arrays_of_call,
        rng,
        kind,
        lambda arrays: forward.rounded(problem.forward, arrays),
        lambda: attended_keys(problem.forward),
    )


def reference(problem: Problem, arrays: Arrays) -> Arrays:
    """dq, dk and dv in float64, from q, k, v and the gradients of o and lse only."""
    forward_outputs = forward.reference(problem.forward, arrays)
    return gradients(problem, arrays | forward_outputs, attends(problem.forward), rounded=False)


def rounded(problem: Problem, arrays: Arrays) -> Arrays:
    """The gradients for the o and lse in `arrays`, with P, dS and the results rounded to the dtype, as the kernels
    round them."""
    return gradients(problem, arrays, attends(problem.forward), rounded=True)


def tails(problem: Problem) -> tuple[Problem, ...]:
    """Edge cases with windows and sinks on every side of a tile; see the comments."""
    shapes = (
        (1, 1, 1, 1, 1, 1, 0),  # one query, one key
        (1, 4, 2, 3, 150, 40, 5),  # the last queries: most keys have no gradient
        (1, 1, 1, 100, 40, 30, 4),  # more queries than positions: some attend nothing
        (1, 1, 1, 90, 140, 17, 0),  # a window without sinks
        (1, 2, 1, 100, 100, 1000, 3),  # a window over everything
        (1, 1, 1, 60, 130, 20, 90),  # sinks that overlap the windows of some queries
        (2, 2, 1, 90, 200, 70, 20),  # unattended tiles between the sinks and the window
        (1, 1, 1, 70, 70, 1, 70),  # every key a sink
    )
    return forward.sized(problem, forward.EXTENTS, shapes)
