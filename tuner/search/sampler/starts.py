"""Configs to try before a model is used: given configs, the best of a prior, and a balanced design."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tuner.search.sampler.observations import Observations, Prior
from tuner.spec.space import Array, Space

_FIRST = 6  # results before a model is used
_WORKING = 3  # minimum number of valid ones among them
_DRAWN = 30  # random candidates for each config of the design
_DRAWN_TO_JUDGE = 12  # maximum number of tries, some of which may fail
_OF_PRIOR = 4  # configs that a prior ranks best, among the starts; random ones alternate with them to judge the prior
_LEFT = 0.2  # fraction of configs that a prior admits at first …
_ALL_AFTER = 400  # … and number of tries until it admits all


class Starts:
    """The given configs in order, those that a prior ranks best, and configs with the least tried values.

    A contradicted prior is ignored.
    """

    def __init__(
        self, space: Space[Any], rng: np.random.Generator, given: Sequence[int], prior: Prior | None = None
    ) -> None:
        self._space, self._rng, self._given, self._prior = space, rng, given, prior
        self._best_of_prior = () if prior is None else prior.best(_OF_PRIOR, space.codes)
        self.random: set[int] = set()  # drawn at random

    def next(self, observations: Observations) -> int | None:
        """Return the next start; None once a model can be used."""
        given = first_free(self._given, observations)
        if given is not None:
            return given
        known = len(observations.known)
        next_best = first_free(self._best_of_prior, observations)
        if next_best is not None and self.guided(observations):
            return next_best if (known - len(self._given)) % 2 == 0 else self._least_tried(observations)
        if self._unjudged(observations) or known < _FIRST or np.count_nonzero(observations.worked) < _WORKING:
            return self._least_tried(observations)
        return None

    def _unjudged(self, observations: Observations) -> bool:
        """Return whether more random tries are needed to judge a prior, because too many failed."""
        if self._prior is None or len(self.random) >= _DRAWN_TO_JUDGE:
            return False
        return self._prior.correlation(observations, self.random) is None

    def guided(self, observations: Observations) -> bool:
        """Return whether there is a prior that no result contradicts."""
        return self._prior is not None and self._prior.holds(observations, self.random)

    def led_by_times(self, observations: Observations) -> bool:
        """Return whether there is a prior that was learnt from times and that no result contradicts."""
        return self._prior is not None and self._prior.measured and self.guided(observations)

    def shown(self, observations: Observations) -> Observations:
        """Return the results for fitting a model.

        The configs with the best predictions share the prediction's errors, so a model fitted to them would stay among
        them.
        """
        if self._prior is None or self._prior.measured or not self.guided(observations):
            return observations
        shown = observations.where(~np.isin(observations.tried, self._best_of_prior))
        return shown if np.count_nonzero(shown.worked) >= _WORKING else observations

    def left(self, pool: Array, observations: Observations) -> Array:
        """Return which configs of a pool are admitted, as booleans: the best of the prior, and more with each try."""
        if self._prior is None or not self.guided(observations):
            return np.ones(len(pool), bool)
        left: Array = self._prior.share_better[pool] <= max(_LEFT, len(observations.tried) / _ALL_AFTER)
        return left

    def _least_tried(self, observations: Observations) -> int:
        """Return the free config with the least tried values, weighted by the number of choices, from a sample."""
        drawn = self._free(observations)
        codes, known = self._space.codes_of(drawn), self._space.codes_of(observations.known)
        sizes = np.array([len(values) for values in self._space.choices.values()])
        seen = (codes[:, None, :] == known[None, :, :]).sum(axis=1) @ sizes
        chosen = int(drawn[np.argmin(seen)])
        self.random.add(chosen)
        return chosen

    def _free(self, observations: Observations) -> Array:
        """Return random free configs, limited to those with a prior cost if there is a prior to judge."""
        if self._prior is not None and np.isnan(self._prior.cost).any():
            known = np.setdiff1d(np.flatnonzero(~np.isnan(self._prior.cost)), observations.known)
            if len(known):
                return self._rng.permutation(known)[:_DRAWN]
        return free(self._space, observations.known, _DRAWN, self._rng)


def first_free(given: Sequence[int], observations: Observations) -> int | None:
    """Return the first of the given configs that was not tried; None if all were."""
    known = set(observations.known.tolist())
    return next((index for index in given if index not in known), None)


def free(space: Space[Any], known: Array, count: int, rng: np.random.Generator) -> Array:
    """Return up to `count` distinct indices of a space that are not `known`, in random order."""
    drawn = space.draw(count + len(known), rng)
    return drawn[~np.isin(drawn, known)][:count]
