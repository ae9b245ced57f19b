"""What only a device can confirm of flash_attention/wgmma, each asked alone: inputs whose answer is known exactly."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tuner import operators
from tuner.operators.flash_attention.operator import Problem
from tuner.operators.flash_attention.wgmma.config import Config
from tuner.spec.dtype import DType

KEYS = 64  # a power of two, and one tile: their mean is exact
CONFIG = Config(
    BN=KEYS,
    warpgroups=1,
    stages=2,
    overlap=1,
    ping_pong=False,
    value_columns=0,
    polynomial=0,
    lazy_rescale=False,
    heavy_first=False,
    packed_heads=1,
    cluster=1,
    blocks=0,
)


@dataclass(frozen=True)
class Question:
    """Are columns of a tile found where the descriptors say, for a head_dim and a kind of panels of V?

    In a cluster: also where two blocks load half of the rows of each panel for each other.
    """

    head_dim: int
    value_columns: int
    cluster: int = 1

    @property
    def name(self) -> str:
        return f"D{self.head_dim}-V{self.value_columns or 'mixed'}{'-pair' if self.cluster == 2 else ''}"

    @property
    def problem(self) -> Problem:
        rows = 64 if self.cluster == 1 else 64 * self.warpgroups * self.cluster
        return Problem(self.head_dim, DType.BF16, False, batch=1, heads=1, seq_q=rows, seq_k=KEYS)

    @property
    def warpgroups(self) -> int:
        """Two share what does not fit an SM twice, and what blocks load for each other."""
        return 2 if self.head_dim > 128 or self.cluster == 2 else 1

    @property
    def config(self) -> Config:
        return replace(CONFIG, value_columns=self.value_columns, warpgroups=self.warpgroups, cluster=self.cluster)


QUESTIONS = tuple(
    Question(D, columns)
    for D in (16, 24, 40, 64, 72, 80, 96, 112, 128, 192, 256)
    for columns in (0, 16, 32, 64)
    if columns < 2 * D and (columns or D % 64)
)
QUESTIONS += tuple(Question(D, columns, cluster=2) for D, columns in ((72, 0), (72, 16), (128, 64), (192, 64)))


def integers(problem: Problem, name: str, rng: np.random.Generator) -> np.ndarray:
    rows = problem.seq_q if name == "q" else problem.seq_k
    return rng.integers(-4, 5, (1, rows, 1, problem.head_dim)).astype(problem.dtype.numpy)


def equal_weights(problem: Problem) -> dict[str, Any]:
    """Q = 0: O is the mean of V, so that a wrong column of O is a wrong column of V's panels or of O's store."""
    arrays = _given(problem, 1)
    return arrays | {"q": np.zeros_like(arrays["q"])}


def one_column(problem: Problem, column: int) -> dict[str, Any]:
    """Q is one column of ones: lse depends on that column of K alone."""
    arrays = _given(problem, column)
    arrays["q"][:] = 0
    arrays["q"][..., column] = 1
    return arrays


def _given(problem: Problem, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    drawn = {name: integers(problem, name, rng) for name in "qkv"}
    return {**operators.load("flash_attention").inputs(problem, rng, "normal"), **drawn, "softmax_scale": 1.0}


def wrong_columns(arrays: Mapping[str, Any], o: np.ndarray) -> list[int]:
    """Of O, where the weights are equal."""
    mean = arrays["v"].astype(np.float64).mean(axis=1)[0, 0]
    step = 2.0**-8 * np.maximum(np.abs(mean), 2.0**-8)
    return [int(c) for c in np.flatnonzero((np.abs(o[0, :, 0].astype(np.float64) - mean) > step).any(axis=0))]


def wrong_lse(arrays: Mapping[str, Any], column: int, lse: np.ndarray) -> bool:
    """Whether the logarithms are not those of one column of K."""
    exact = np.log(np.exp(arrays["k"][0, :, 0, column].astype(np.float64)).sum())
    return bool(np.abs(lse - exact).max() > 1e-5 * max(1.0, abs(exact)))
