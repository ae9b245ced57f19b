"""What is tried before a model is asked: given configs, the best of a prior, a balanced design."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tuner.search.sampler.observations import Observations, Prior
from tuner.spec.space import Array, Space

_FIRST = 6  # results before a model is asked
_WORKING = 3  # valid ones among them, at least
_DRAWN = 30  # configs that compete for a place in the design
_DRAWN_TO_JUDGE = 12  # tries at most, some of which may fail
_OF_PRIOR = 4  # configs that a prior ranks best, among the starts; others are drawn in turns with them, to judge it
_LEFT = 0.2  # of the configs, which a prior leaves at first, and …
_ALL_AFTER = 400  # … tries that it takes until it leaves all


class Starts:
    """The given configs in order, those that a prior ranks best, and configs whose values were tried least.

    A prior that the results contradict has no further say.
    """

    def __init__(
        self, space: Space[Any], rng: np.random.Generator, given: Sequence[int], prior: Prior | None = None
    ) -> None:
        self._space, self._rng, self._given, self._prior = space, rng, given, prior
        self._best_of_prior = () if prior is None else prior.best(_OF_PRIOR, space.codes)
        self.random: set[int] = set()  # at random

    def next(self, observations: Observations) -> int | None:
        """The next start; None once a model can be asked."""
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
        """Whether more random tries would tell if a prior holds: of those so far too many failed."""
        if self._prior is None or len(self.random) >= _DRAWN_TO_JUDGE:
            return False
        return self._prior.correlation(observations, self.random) is None

    def guided(self, observations: Observations) -> bool:
        """Whether a prior that no result contradicts says where good configs are."""
        return self._prior is not None and self._prior.holds(observations, self.random)

    def led_by_times(self, observations: Observations) -> bool:
        """Whether a prior that no result contradicts was learnt from times."""
        return self._prior is not None and self._prior.measured and self.guided(observations)

    def shown(self, observations: Observations) -> Observations:
        """The results that a model should learn from.

        The best of a prediction are alike in what it misjudges: a model that sees them stays among them.
        """
        if self._prior is None or self._prior.measured or not self.guided(observations):
            return observations
        shown = observations.where(~np.isin(observations.tried, self._best_of_prior))
        return shown if np.count_nonzero(shown.worked) >= _WORKING else observations

    def left(self, pool: Array, observations: Observations) -> Array:
        """Which configs of a pool a model should choose from, booleans: the best of the prior, and more as tries go."""
        if self._prior is None or not self.guided(observations):
            return np.ones(len(pool), bool)
        left: Array = self._prior.share_better[pool] <= max(_LEFT, len(observations.tried) / _ALL_AFTER)
        return left

    def _least_tried(self, observations: Observations) -> int:
        """Of some free configs, the one whose values are the least tried, weighed by how many choices there are."""
        drawn = self._free(observations)
        codes, known = self._space.codes_of(drawn), self._space.codes_of(observations.known)
        sizes = np.array([len(values) for values in self._space.choices.values()])
        seen = (codes[:, None, :] == known[None, :, :]).sum(axis=1) @ sizes
        chosen = int(drawn[np.argmin(seen)])
        self.random.add(chosen)
        return chosen

    def _free(self, observations: Observations) -> Array:
        """Some free configs in random order: of those that a prior has a cost for, where there is one to judge."""
        if self._prior is not None and np.isnan(self._prior.cost).any():
            known = np.setdiff1d(np.flatnonzero(~np.isnan(self._prior.cost)), observations.known)
            if len(known):
                return self._rng.permutation(known)[:_DRAWN]
        return free(self._space, observations.known, _DRAWN, self._rng)


def first_free(given: Sequence[int], observations: Observations) -> int | None:
    """The first of the given configs that is not known; None when all are."""
    known = set(observations.known.tolist())
    return next((index for index in given if index not in known), None)


def free(space: Space[Any], known: Array, count: int, rng: np.random.Generator) -> Array:
    """Up to `count` distinct indices of a space that are not `known`, in random order."""
    drawn = space.draw(count + len(known), rng)
    return drawn[~np.isin(drawn, known)][:count]
