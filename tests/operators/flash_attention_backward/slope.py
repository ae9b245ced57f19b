"""Gradients beside the slopes of a loss that has them: what references of backward passes of attention agree with."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tuner.spec.operator import Operator
from tuner.spec.problem import Arrays

_STEP = 1e-5


def gradients_and_slopes(
    operator: Operator[Any], problem: Any, arrays: Arrays, forward: Callable[[Arrays], Arrays]
) -> Iterator[tuple[float, float]]:
    """Along a random direction of q, of k and of v: what the reference says, and a central difference in float64.

    `forward` gives o and lse; dout and dlse are the loss's gradients by them.
    """
    given: Arrays = {name: np.asarray(x, np.float64) for name, x in arrays.items()}
    rng, result = np.random.default_rng(1), operator.reference(problem, given)
    for name in "qkv":
        direction = rng.standard_normal(given[name].shape)
        moved = ({name: given[name] + step * direction} for step in (_STEP, -_STEP))
        ahead, behind = (_loss(given, forward(given | array), problem.use_lse_gradient) for array in moved)
        yield float(np.sum(result[f"d{name}"] * direction)), (ahead - behind) / (2 * _STEP)


def gradient_and_slope(
    operator: Operator[Any], problem: Any, arrays: Arrays, forward: Callable[[Arrays], Arrays], along: str, step: float
) -> tuple[float, float]:
    """The same along a direction of one input, named `along`, of operators whose forward gives o and final_state.

    d_o and dht are the loss's gradients by them; d<along> or, of initial_state, dh0 is the reference's.
    """
    given: Arrays = {name: x if name == "cu_seqlens" else np.asarray(x, np.float64) for name, x in arrays.items()}
    direction = np.random.default_rng(1).standard_normal(given[along].shape)

    def loss(distance: float) -> float:
        results = forward({**given, along: given[along] + distance * direction})
        return float(np.sum(results["o"] * given["d_o"]) + np.sum(results["final_state"] * given["dht"]))

    gradient = operator.reference(problem, given)["dh0" if along == "initial_state" else f"d{along}"]
    return float(np.sum(gradient * direction)), (loss(step) - loss(-step)) / (2 * step)


def _loss(arrays: Arrays, results: Arrays, lse_used: bool) -> float:
    of_o = float(np.sum(arrays["dout"] * results["o"]))
    if not lse_used:
        return of_o
    return of_o + float(np.sum(np.where(np.isfinite(results["lse"]), arrays["dlse"] * results["lse"], 0)))
