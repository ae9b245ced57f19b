"""The Gaussian strategy: suggests the config with the largest expected improvement under a model of all results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri
from threadpoolctl import ThreadpoolController

from tuner.search.sampler.features import Coordinates, coordinates
from tuner.search.sampler.gaussian_process import (
    FREE_SPREAD,
    Hyperparameters,
    Posterior,
    fit,
    log_expected_improvement,
    spread_after,
)
from tuner.search.sampler.observations import Observations, ranks
from tuner.search.sampler.starts import Starts
from tuner.search.sampler.strategies import POOL, Categorical, candidates
from tuner.spec.space import Array, Space

_FAILED = 0.8  # a failure scores like this quantile of the valid results
_SURE_FAILURE = 0.9  # maximum predicted probability of failure
_HORIZON = 32  # tries whose total gain decides whether to continue; a single try promises little long before the end
_MOST_RESULTS = 1000  # with more results, the categorical strategy takes over
_MOST_ROWS = 400  # maximum number of results in a fitted model; representative ones are selected
_MOST_FITTED = 256  # maximum number of results for fitting hyperparameters, which compares all pairs
_MOST_LEARNT = 600  # maximum number of results for a one-time prediction of all configs
_REFIT_AFTER = 64  # maximum number of results before a refit
_FEW_ROWS = 128  # number of rows up to which a posterior on the whole pool is cheap
_PROMISING = 4_096  # number of promising candidates that a larger model keeps


@dataclass(eq=False)
class Model:
    """A fit with its posterior on a pool of candidates; rows are added until the next fit."""

    coordinates: Coordinates
    hyperparameters: Hyperparameters
    pool: Array  # indices of the candidates
    posterior: Posterior
    fitted: int  # number of results at the fit
    chosen: Array  # positions of the results that are rows
    rows: list[int]  # indices of the configs that the posterior is conditioned on
    reduced: bool = False  # whether the pool was reduced

    def covers(self, observations: Observations) -> bool:
        """Return whether the observations extend the rows, with too few new results for another fit."""
        n, known = len(observations.tried), self.known(observations)
        continues = self.rows == known[: len(self.rows)].tolist()
        return continues and n - self.fitted < min(max(2, n // 10), _REFIT_AFTER)

    def exhausted(self, observations: Observations) -> bool:
        """Return whether the pool was reduced and half of it has been tried."""
        return self.reduced and bool(2 * np.count_nonzero(np.isin(self.pool, observations.known)) > len(self.pool))

    def known(self, observations: Observations) -> Array:
        """Return the indices of all rows: the chosen results, those since the fit, and pending configs."""
        return np.concatenate([self.of_results(observations.tried), observations.pending])

    def of_results(self, values: Array) -> Array:
        """Return the values of the rows, from one value per result."""
        return np.concatenate([values[: self.fitted][self.chosen], values[self.fitted :]])

    def extend(self, known: Array) -> None:
        """Condition on the configs of `known` that are not rows yet."""
        fresh = known[len(self.rows) :]
        if len(fresh):
            self.posterior.append(self.coordinates.of(fresh))
            self.rows.extend(fresh.tolist())

    def keep(self, candidates: Array) -> None:
        """Restrict the pool to candidates, by position."""
        self.pool, self.reduced = self.pool[candidates], True
        self.posterior.keep(candidates)


class Gaussian:
    """Maximises expected improvement under a Gaussian process over the whole valid set.

    The model is fitted to scores: the mean of normal scores (ranks, which are robust to outliers) and of logarithms
    (which preserve the gaps among the best), with failures as bad as the worst fifth. The improvement is weighted by
    the probability of success, which the same kernel interpolates. Beyond a thousand results the categorical strategy
    takes over.
    """

    def __init__(self, space: Space[Any], rng: np.random.Generator, starts: Starts) -> None:
        self._space, self._rng, self._starts = space, rng, starts
        self._axes = coordinates(space)
        self._beyond = Categorical(space, rng, starts)
        self._model: Model | None = None
        # On such small matrices threads spend more time waiting than working, and the cores are needed by compilers.
        self._threads = ThreadpoolController()
        self.expected_improvement: float | None = None

    def propose(self, observations: Observations) -> int:
        start = self._starts.next(observations)
        if start is not None:
            return start
        if len(observations.tried) > _MOST_RESULTS:
            self.expected_improvement = None
            return self._beyond.propose(observations)
        with self._threads.limit(limits=1):
            return self._most_promising(observations)

    def _most_promising(self, observations: Observations) -> int:
        shown = self._starts.shown(observations)
        model, scores = self._model_of(shown), standard_scores(shown.values)
        gain = self._gain(model, scores, shown)
        if model.posterior.rows > _FEW_ROWS and len(model.pool) > 2 * _PROMISING:
            left = self._starts.left(model.pool, observations)
            promising = np.argsort(np.where(left, -gain, np.inf), kind="stable")[:_PROMISING]
            model.keep(np.sort(promising))
            gain = gain[np.sort(promising)]
        free = ~np.isin(model.pool, observations.known)
        gain[~free] = -np.inf
        promising = np.partition(gain, -min(_HORIZON, len(gain)))[-_HORIZON:]
        relative = relative_gain(float(np.exp(promising).sum()), scores, shown)
        self.expected_improvement = beyond(relative, shown, observations)
        left = free & self._starts.left(model.pool, observations)
        gain[~(left if left.any() else free)] = -np.inf
        chosen = int(np.argmax(gain + 1e-9 * self._rng.random(len(gain))))
        return int(model.pool[chosen])

    def _gain(self, model: Model, scores: Array, observations: Observations) -> Array:
        """Return the logarithm of the expected improvement of the score for each candidate [pool]."""
        posterior, rows = model.posterior, model.of_results(scores)
        best = float(scores[observations.worked].min())
        gain = log_expected_improvement(posterior.mean(rows), posterior.deviation(rows), best)
        failed = 1.0 - model.of_results(observations.worked)
        if failed.any():
            gain += np.log1p(-np.clip(posterior.mean(failed), 0, _SURE_FAILURE))
        return gain

    def _model_of(self, observations: Observations) -> Model:
        """Return the last model with additional rows, or a new fit."""
        if self._model is None or not self._model.covers(observations) or self._model.exhausted(observations):
            last = None if self._model is None else self._model.hyperparameters
            self._model = None  # frees its memory for the next one
            self._model = self._fit(observations, last)
        self._model.extend(self._model.known(observations))
        return self._model

    def _fit(self, observations: Observations, last: Hyperparameters | None) -> Model:
        axes, scores = self._axes, standard_scores(observations.values)
        learnt = representative(observations, _MOST_FITTED)
        points = axes.of(observations.tried[learnt])
        iterations = 30 if last is None else 12
        # Around the starts of a prior, long scales would trap the search, because close configs differ little there.
        guided = self._starts.led_by_times(observations)
        typical = axes.typical_scales / 2 if guided else axes.typical_scales
        spread = FREE_SPREAD if guided else spread_after(len(scores))
        fitted = fit(points, axes.axis_of_column, scores[learnt], typical, last, iterations, spread)
        pool, chosen = candidates(self._space, observations, self._rng), representative(observations, _MOST_ROWS)
        posterior = Posterior(
            fitted, axes.axis_of_column, axes.of(pool), len(chosen) + len(observations.pending) + _REFIT_AFTER
        )
        return Model(axes, fitted, pool, posterior, len(scores), chosen, [])


def predicted_scores(space: Space[Any], observations: Observations, most: int = _MOST_LEARNT) -> Array:
    """Return the model's mean for every config of the space, given observations; lower is better.

    For more than `most` results it uses representative ones.
    """
    observations = observations.where(representative(observations, most))
    axes, scores = coordinates(space), standard_scores(observations.values)
    with ThreadpoolController().limit(limits=1):
        points = axes.of(observations.tried)
        fitted = fit(points, axes.axis_of_column, scores, axes.typical_scales, None, 60, spread_after(len(points)))
        means = []
        for pool in np.array_split(np.arange(len(space)), max(1, len(space) // POOL)):
            posterior = Posterior(fitted, axes.axis_of_column, axes.of(pool), len(points))
            posterior.append(points)
            means.append(posterior.mean(scores))
    return np.concatenate(means)


def representative(observations: Observations, most: int) -> Array:
    """Return positions of at most `most` results: half of them the best, half at equal distances among the
    other ranks.
    """
    ranked = np.argsort(observations.values, kind="stable")
    if len(ranked) <= most:
        return np.arange(len(ranked))
    best, others = ranked[: most // 2], ranked[most // 2 :]
    spread = others[np.linspace(0, len(others) - 1, most - len(best)).astype(int)]
    return np.sort(np.concatenate([best, spread]))


def standard_scores(values: Array) -> Array:
    """Return scores for the model: mean 0, variance 1 [n]; inf is a failure."""
    worked = np.isfinite(values)
    valid = values[worked]
    normal = ndtri((ranks(valid) + 0.5) / len(valid))
    scores = np.empty(len(values))
    scores[worked] = (normal + _standard(_gaps(valid))) / 2
    scores[~worked] = np.quantile(scores[worked], _FAILED)
    return _standard(scores)


def relative_gain(improvement: float, scores: Array, observations: Observations) -> float:
    """Convert an improvement of the score to a fraction of the best value, by the slope between the best and the best
    third.
    """
    gaps, valid = _gaps(observations.values[observations.worked]), scores[observations.worked]
    order = np.argsort(valid)
    best, third = order[0], order[max(1, len(order) // 3)]
    slope = (gaps[third] - gaps[best]) / max(valid[third] - valid[best], 1e-9)
    return float(-np.expm1(-improvement * slope))


def beyond(gain: float, shown: Observations, observations: Observations) -> float:
    """Convert an expected gain over the best `shown` result to a gain over the best of all."""
    best, ours = shown.values.min(), observations.values.min()
    return gain if not 0 < ours < best else max(0.0, float(1 - (1 - gain) * best / ours))


def _gaps(values: Array) -> Array:
    """Return values on a logarithmic axis of relative differences if possible."""
    return np.log(values) if values.min() > 0 else values


def _standard(scores: Array) -> Array:
    standard: Array = (scores - scores.mean()) / (scores.std() + 1e-9)
    return standard
