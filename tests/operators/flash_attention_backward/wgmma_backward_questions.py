"""What a device is asked of flash_attention_backward/wgmma beyond the forward pass: inputs whose gradients are exact.

Tiles that are read along and across their rows from one place, in panels of one width with zeros behind the last
column; rounded P and dS as operands in registers; sums over tiles and heads; stores that cut a wide panel off.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner import operators
from tuner.operators.flash_attention_backward.problem import Problem
from tuner.operators.flash_attention_backward.wgmma.config import Config
from tuner.spec.dtype import DType

OPERATOR = operators.load("flash_attention_backward")
KEYS = 128  # a power of two: P = 1 / KEYS is exact where all scores are 0
HEADS = 2  # that share one of keys and values: their gradients are sums over both


@dataclass(frozen=True)
class Question:
    """Are rows and columns found in panels of so many columns and tiles of so many rows?

    Two warpgroups own 64 rows each; where they split dK and dV, they own the same.
    """

    head_dim: int
    columns: int
    tile: int = 32

    @property
    def name(self) -> str:
        return f"D{self.head_dim}-P{self.columns}-N{self.tile}"

    @property
    def problem(self) -> Problem:
        return Problem(self.head_dim, DType.BF16, False, batch=1, heads=HEADS, kv_heads=1, seq_q=KEYS, seq_k=KEYS)

    @property
    def config(self) -> Config:
        split = self.head_dim > 128
        return Config(
            BM_kv=self.tile,
            kv_warpgroups=2,
            kv_stages=2,
            kv_split=split,
            kv_chained=not split,
            BN_q=self.tile,
            q_warpgroups=2,
            q_stages=2,
            columns=self.columns,
        )


QUESTIONS = (
    *(Question(D, columns) for D in (16, 40, 72, 128) for columns in (16, 32, 64) if columns < 2 * D),
    *(Question(D, columns, 16) for D, columns in ((16, 16), (72, 64))),
    *(Question(D, 64) for D in (192, 256)),
)


def uniform(problem: Problem) -> dict[str, Any]:
    """All scores and values are 0, so P = 1 / S: dV is the sum of dO over it, in each of its rows."""
    return _given(problem)


def keys(problem: Problem, column: int) -> dict[str, Any]:
    """K = 0 and one column of V, whose sum is 0: dK is that column times sums of dO's column and Q."""
    drawn = _integers(problem, "q", column)
    return _given(problem, q=drawn, v=_one_column(problem, column))


def queries(problem: Problem, column: int) -> dict[str, Any]:
    """Q = 0 and one column of V, whose sum is 0: dQ is dO's column times sums of that of V and K."""
    drawn = _integers(problem, "k", column)
    return _given(problem, k=drawn, v=_one_column(problem, column))


def scores(problem: Problem, column: int) -> dict[str, Any]:
    """Q is one column of ones, and V = 0: P, and with it dV, depends on that column of K alone."""
    q = np.zeros_like(_integers(problem, "q", column))
    q[..., column] = 1
    return _given(problem, q=q, k=_integers(problem, "k", column))


ASKED = (keys, queries, scores)


def wrong_columns(problem: Problem, arrays: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, list[int]]:
    """Columns of dq, dk and dv that are further from the exact gradients than P and the result are rounded."""
    wrong = {}
    exact_rows = OPERATOR.reference(problem, arrays)
    for name in ("dq", "dk", "dv"):
        exact = exact_rows[name]
        limit = 2.0**-7 * np.maximum(np.abs(exact), 2.0**-8)
        off = ~(np.abs(found[name].astype(np.float64) - exact) <= limit)
        wrong[name] = [int(column) for column in np.flatnonzero(off.any(axis=(0, 1, 2)))]
    return {name: columns for name, columns in wrong.items() if columns}


def _given(problem: Problem, **drawn: np.ndarray) -> dict[str, Any]:
    """What the backward pass is given, zeros where nothing is `drawn`. In none of these has O other values than 0."""
    zeros = {name: np.zeros_like(_integers(problem, name, 0)) for name in ("q", "k", "v", "o")}
    arrays = {"dout": _integers(problem, "dout", 1), **zeros, **drawn}
    logits = np.einsum("bthd,bshd->bhts", *(arrays[name].astype(np.float64) for name in "qk"))
    lse = np.log(np.exp(logits).sum(axis=3)).astype(np.float32, order="C")
    absent = OPERATOR.inputs(problem, np.random.default_rng(0), "normal")  # optional arguments
    return {**absent, **arrays, "lse": lse, "softmax_scale": 1.0}


def _integers(problem: Problem, name: str, seed: int) -> np.ndarray:
    heads = problem.kv_heads if name in ("k", "v") else problem.heads
    drawn = np.random.default_rng(seed).integers(-4, 5, (1, KEYS, heads, problem.head_dim))
    return drawn.astype(problem.dtype.numpy)


def _one_column(problem: Problem, column: int) -> np.ndarray:
    values = np.zeros_like(_integers(problem, "v", 0))
    drawn = np.arange(KEYS) // 2 % 4 + 1
    values[0, :, 0, column] = np.where(np.arange(KEYS) % 2, drawn, -drawn)
    return values
