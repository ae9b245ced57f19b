"""A Gaussian process over configs: length scales fitted to the results, and the posterior on a pool of candidates."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.linalg import lapack, solve_triangular
from scipy.optimize import minimize
from scipy.special import log_ndtr

from tuner.spec.space import Array

# Prior spread of length scales around their typical values, in natural logarithms: large for many results and small for
# few, because a dozen results suggest spurious patterns.
FREE_SPREAD = 0.9
_FIRST_SPREAD = 0.3
_FEW = 25  # number of results
_TYPICAL_NOISE = 2e-3  # variance of a repeated measurement, relative to that of the configs
_LOG_NOISE_SPREAD = 1.5
_JITTER = 1e-6
_BOUNDS_SCALE = (np.log(0.05), np.log(30.0))
_BOUNDS_NOISE = (np.log(1e-6), np.log(0.5))
_PSEUDO_RESULTS = 2.0  # weight of the prior that scores have variance 1
_BLOCK = 32  # number of results per block


@dataclass(frozen=True, eq=False)
class Hyperparameters:
    """Learnt parameters of the kernel: a length scale for each axis, and the noise."""

    log_scales: Array  # [axes]
    log_noise: float  # logarithm of the noise variance


def spread_after(results: int) -> float:
    """Return the prior spread of length scales after `results` results distributed over the space."""
    return min(FREE_SPREAD, _FIRST_SPREAD * math.sqrt(max(1.0, results / _FEW)))


def fit(
    points: Array,
    axis_of_column: Array,
    scores: Array,
    typical_scales: Array,
    start: Hyperparameters | None,
    iterations: int,
    spread: float,
) -> Hyperparameters:
    """Fit by maximum a posteriori with L-BFGS, from `start` or the typical values; `spread` is the prior's, in
    logarithms.

    `points` [n, width] are coordinates, `scores` [n] have mean 0 and variance 1. The kernel is Matérn-5/2 of the
    distance scaled along each axis; its variance is integrated out.
    """
    typical = np.append(np.log(typical_scales), np.log(_TYPICAL_NOISE))
    first = typical if start is None else np.append(start.log_scales, start.log_noise)
    rows, columns = np.triu_indices(len(points), 1)
    along = [points[:, axis_of_column == axis].astype(float) for axis in range(len(typical_scales))]
    squares = np.stack([((coordinates[rows] - coordinates[columns]) ** 2).sum(axis=1) for coordinates in along])
    optimum = minimize(
        _loss,
        first,
        args=(typical, squares, rows, columns, scores, spread),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": iterations},
        bounds=[_BOUNDS_SCALE] * len(typical_scales) + [_BOUNDS_NOISE],
    )
    return Hyperparameters(optimum.x[:-1], float(optimum.x[-1]))


def _loss(
    theta: Array, typical: Array, squares: Array, rows: Array, columns: Array, scores: Array, spread: float
) -> tuple[float, Array]:
    """Return the negative log posterior of the hyperparameters and its gradient; `squares` is [axes, pairs]."""
    weights, noise, n = np.exp(-2 * theta[:-1]), np.exp(theta[-1]), len(scores)
    kernel, slope = _matern(weights @ squares)
    covariance = np.eye(n) * (1 + noise + _JITTER)
    covariance[rows, columns] = covariance[columns, rows] = kernel
    factor, failed = lapack.dpotrf(covariance, lower=1, clean=1)
    if failed:
        return 1e10, np.zeros_like(theta)
    inverse = lapack.dpotri(factor, lower=1)[0]
    inverse = np.tril(inverse) + np.tril(inverse, -1).T
    weighted = inverse @ scores
    variance = (scores @ weighted + _PSEUDO_RESULTS) / (n + _PSEUDO_RESULTS)
    sensitivity = inverse - np.outer(weighted, weighted) / variance  # twice d loss / d covariance
    gradient = np.append(
        weights * (squares @ (sensitivity[rows, columns] * slope)),
        0.5 * np.trace(sensitivity) * noise,
    )
    spreads = np.append(np.full(len(weights), spread), _LOG_NOISE_SPREAD)
    strayed = (theta - typical) / spreads
    likelihood = 0.5 * (n + _PSEUDO_RESULTS) * np.log(variance) + np.log(np.diag(factor)).sum()
    return float(likelihood + 0.5 * strayed @ strayed), gradient + strayed / spreads


def _matern(squared: Array) -> tuple[Array, Array]:
    """Return Matérn-5/2 of squared distances, and −d kernel / d log scale divided by the scaled square of its axis."""
    distance = np.sqrt(5 * squared + 1e-12)
    decay = np.exp(-distance)
    return (1 + distance + distance**2 / 3) * decay, (5 / 3) * (1 + distance) * decay


class Posterior:
    """Mean and deviation on a pool of candidates; appending a result costs one row.

    Rows are results in order of completion. A row without a score is a config that is being tried: it takes its
    predicted mean (kriging believer), which lowers the deviation around it without changing the mean.
    """

    def __init__(self, hyperparameters: Hyperparameters, axis_of_column: Array, pool: Array, capacity: int) -> None:
        self._inverse_scale = np.exp(-hyperparameters.log_scales)[axis_of_column].astype(np.float32)
        self._noise = np.exp(hyperparameters.log_noise) + _JITTER
        self._pool = pool * self._inverse_scale  # [candidates, width]
        self._pool_norms = _norms(self._pool)
        self._variance = np.ones(len(pool), dtype=np.float32)
        self._points = np.zeros((capacity, pool.shape[1]), dtype=np.float32)
        self._factor = np.zeros((capacity, capacity))  # lower Cholesky factor of the results' covariance
        self._solved = np.zeros((capacity, len(pool)), dtype=np.float32)  # factor⁻¹ · cov(results, pool)
        self.rows = 0

    def append(self, points: Array) -> None:
        """Condition on results at `points` [m, width], in blocks, because kernels with the whole pool are large."""
        for start in range(0, len(points), _BLOCK):
            self._append(points[start : start + _BLOCK] * self._inverse_scale)

    def _append(self, points: Array) -> None:
        old, new = self.rows, self.rows + len(points)
        self._reserve(new)
        known, factor = self._points[:old], self._factor
        cross = _kernel(points.astype(float), known.astype(float), _norms(known.astype(float)))
        factor[old:new, :old] = solve_triangular(factor[:old, :old], cross.T, lower=True).T if old else cross
        itself = _kernel(points.astype(float), points.astype(float), _norms(points.astype(float)))
        itself += self._noise * np.eye(len(points)) - factor[old:new, :old] @ factor[old:new, :old].T
        factor[old:new, old:new] = np.linalg.cholesky(itself)
        rest = _kernel(points, self._pool, self._pool_norms)
        rest -= factor[old:new, :old].astype(np.float32) @ self._solved[:old]
        inverse = solve_triangular(factor[old:new, old:new], np.eye(len(points)), lower=True)
        self._solved[old:new] = inverse.astype(np.float32) @ rest
        self._variance -= np.einsum("ij,ij->j", self._solved[old:new], self._solved[old:new])
        self._points[old:new] = points
        self.rows = new

    def _reserve(self, rows: int) -> None:
        """Reserve memory for `rows` results plus a quarter."""
        more = rows + rows // 4 - len(self._points)
        if rows > len(self._points):
            self._points = np.pad(self._points, ((0, more), (0, 0)))
            self._factor = np.pad(self._factor, (0, more))
            self._solved = np.pad(self._solved, ((0, more), (0, 0)))

    def keep(self, candidates: Array) -> None:
        """Restrict the pool to candidates, by position."""
        self._pool, self._pool_norms = self._pool[candidates], self._pool_norms[candidates]
        self._variance, self._solved = self._variance[candidates], self._solved[:, candidates]

    def mean(self, scores: Array) -> Array:
        """Return the mean [candidates], given the scores of the first rows (the others are being tried)."""
        mean: Array = self._whiten(scores).astype(np.float32) @ self._solved[: len(scores)]
        return mean

    def deviation(self, scores: Array) -> Array:
        """Return the standard deviation [candidates]; the scores determine the overall variance."""
        whitened = self._whiten(scores)
        variance = (whitened @ whitened + _PSEUDO_RESULTS) / (len(scores) + _PSEUDO_RESULTS)
        deviation: Array = np.sqrt(np.maximum(self._variance, 1e-9) * variance)
        return deviation

    def _whiten(self, scores: Array) -> Array:
        whitened: Array = solve_triangular(self._factor[: len(scores), : len(scores)], scores, lower=True)
        return whitened


def _norms(points: Array) -> Array:
    norms: Array = np.einsum("ij,ij->i", points, points)
    return norms


def _kernel(points: Array, others: Array, norms_of_others: Array) -> Array:
    """Return Matérn-5/2 between scaled points [n, width] and [m, width]: [n, m]."""
    squared = points @ others.T
    squared *= -2
    squared += _norms(points)[:, None]
    squared += norms_of_others
    squared *= 5
    distance = np.sqrt(np.maximum(squared, 0, out=squared), out=squared)
    kernel: Array = (1 + distance + distance * distance / 3) * np.exp(-distance)
    return kernel


def log_expected_improvement(mean: Array, deviation: Array, best: float) -> Array:
    """Return the logarithm of E[max(best − value, 0)] for normal values, accurate in the far tail where EI
    underflows.
    """
    gap = ((best - mean) / deviation).astype(float)
    density = np.exp(-0.5 * gap * gap) / np.sqrt(2 * np.pi)
    improvement = gap * np.exp(log_ndtr(gap)) + density
    tail = -0.5 * gap * gap - 0.5 * np.log(2 * np.pi) - 2 * np.log(np.abs(gap) + 1)  # h(z) ≈ φ(z) / z² for z → −∞
    with np.errstate(divide="ignore"):
        result: Array = np.log(deviation) + np.where(gap > -8, np.log(np.maximum(improvement, 1e-300)), tail)
    return result
