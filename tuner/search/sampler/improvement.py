"""The Gaussian strategy: the config with the largest expected improvement under the model of all results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri
from threadpoolctl import ThreadpoolController

from tuner.search.sampler.features import Coordinates, coordinates
from tuner.search.sampler.gaussian import (
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
_SURE_FAILURE = 0.9  # highest predicted probability that a config fails
_HORIZON = 32  # tries whose gain decides whether searching on pays: a single one promises little long before the end
_MOST_RESULTS = 1000  # beyond these the categorical strategy takes over
_MOST_ROWS = 400  # results that a model is conditioned on at a fit; of more, representative ones
_MOST_FITTED = 256  # results that the hyperparameters are fitted to: a fit compares each pair of them
_MOST_LEARNT = 600  # results that a prediction for all configs learns from; it is made once
_REFIT_AFTER = 64  # results at most
_FEW_ROWS = 128  # up to which a posterior on the whole pool is cheap
_PROMISING = 4_096  # candidates that a larger model keeps, the most promising


@dataclass(eq=False)
class Model:
    """A fit, and its posterior on a pool of candidates; grows row by row until the next fit is due."""

    coordinates: Coordinates
    hyperparameters: Hyperparameters
    pool: Array  # indices of the candidates
    posterior: Posterior
    fitted: int  # results at the fit
    chosen: Array  # positions, among these results, of those that are rows
    rows: list[int]  # indices of the configs that the posterior is conditioned on
    reduced: bool = False  # to a part of the pool

    def covers(self, observations: Observations) -> bool:
        """Whether the observations continue the rows, and bring too few results for another fit."""
        n, known = len(observations.tried), self.known(observations)
        continues = self.rows == known[: len(self.rows)].tolist()
        return continues and n - self.fitted < min(max(2, n // 10), _REFIT_AFTER)

    def exhausted(self, observations: Observations) -> bool:
        """Whether it has kept a part of the pool, of which half is known by now."""
        return self.reduced and bool(2 * np.count_nonzero(np.isin(self.pool, observations.known)) > len(self.pool))

    def known(self, observations: Observations) -> Array:
        """Indices of the configs that are to be rows: the chosen results, those since the fit, and pending ones."""
        return np.concatenate([self.of_results(observations.tried), observations.pending])

    def of_results(self, values: Array) -> Array:
        """Of one value a result, those of the rows."""
        return np.concatenate([values[: self.fitted][self.chosen], values[self.fitted :]])

    def extend(self, known: Array) -> None:
        """Condition on the configs of `known` that are not rows yet."""
        fresh = known[len(self.rows) :]
        if len(fresh):
            self.posterior.append(self.coordinates.of(fresh))
            self.rows.extend(fresh.tolist())

    def keep(self, candidates: Array) -> None:
        """Go on with some candidates of the pool, by position."""
        self.pool, self.reduced = self.pool[candidates], True
        self.posterior.keep(candidates)


class Gaussian:
    """The largest expected improvement under a Gaussian process over the whole valid set.

    The model sees scores, not values: the mean of normal scores (ranks, deaf to outliers) and of logarithms
    (which keep the gaps among the good), with failures as bad as the worst fifth. The improvement is weighed by the
    probability that a config works, which the same kernel interpolates. Beyond a thousand results the categorical
    strategy goes on.
    """

    def __init__(self, space: Space[Any], rng: np.random.Generator, starts: Starts) -> None:
        self._space, self._rng, self._starts = space, rng, starts
        self._axes = coordinates(space)
        self._beyond = Categorical(space, rng, starts)
        self._model: Model | None = None
        # Threads wait for each other longer than they work on so small matrices, and the cores have kernels to compile.
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
        """The logarithm of the improvement of the score that is expected of each candidate [pool]."""
        posterior, rows = model.posterior, model.of_results(scores)
        best = float(scores[observations.worked].min())
        gain = log_expected_improvement(posterior.mean(rows), posterior.deviation(rows), best)
        failed = 1.0 - model.of_results(observations.worked)
        if failed.any():
            gain += np.log1p(-np.clip(posterior.mean(failed), 0, _SURE_FAILURE))
        return gain

    def _model_of(self, observations: Observations) -> Model:
        """The last model with a few more rows, or a new fit."""
        if self._model is None or not self._model.covers(observations) or self._model.exhausted(observations):
            last = None if self._model is None else self._model.hyperparameters
            self._model = None  # its memory is needed for the next one
            self._model = self._fit(observations, last)
        self._model.extend(self._model.known(observations))
        return self._model

    def _fit(self, observations: Observations, last: Hyperparameters | None) -> Model:
        axes, scores = self._axes, standard_scores(observations.values)
        learnt = representative(observations, _MOST_FITTED)
        points = axes.of(observations.tried[learnt])
        iterations = 30 if last is None else 12
        # Around the starts of a prior long scales would hold the search: what is near differs by little there.
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
    """The model's mean for every config of the space, given observations; lower is better.

    Of more than `most` results it learns from representative ones.
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
    """Positions of at most `most` results: half of them the best, half spread evenly over the ranks of the others."""
    ranked = np.argsort(observations.values, kind="stable")
    if len(ranked) <= most:
        return np.arange(len(ranked))
    best, others = ranked[: most // 2], ranked[most // 2 :]
    spread = others[np.linspace(0, len(others) - 1, most - len(best)).astype(int)]
    return np.sort(np.concatenate([best, spread]))


def standard_scores(values: Array) -> Array:
    """Values as the model sees them: mean 0, variance 1 [n]; inf is a failure."""
    worked = np.isfinite(values)
    valid = values[worked]
    normal = ndtri((ranks(valid) + 0.5) / len(valid))
    scores = np.empty(len(values))
    scores[worked] = (normal + _standard(_gaps(valid))) / 2
    scores[~worked] = np.quantile(scores[worked], _FAILED)
    return _standard(scores)


def relative_gain(improvement: float, scores: Array, observations: Observations) -> float:
    """An improvement of the score as a share of the best value, by the slope between the best and the best third."""
    gaps, valid = _gaps(observations.values[observations.worked]), scores[observations.worked]
    order = np.argsort(valid)
    best, third = order[0], order[max(1, len(order) // 3)]
    slope = (gaps[third] - gaps[best]) / max(valid[third] - valid[best], 1e-9)
    return float(-np.expm1(-improvement * slope))


def beyond(gain: float, shown: Observations, observations: Observations) -> float:
    """What an expected gain over the best result that is `shown` comes to over the best of all."""
    best, ours = shown.values.min(), observations.values.min()
    return gain if not 0 < ours < best else max(0.0, float(1 - (1 - gain) * best / ours))


def _gaps(values: Array) -> Array:
    """Values on an axis of relative differences, where there is one."""
    return np.log(values) if values.min() > 0 else values


def _standard(scores: Array) -> Array:
    standard: Array = (scores - scores.mean()) / (scores.std() + 1e-9)
    return standard
