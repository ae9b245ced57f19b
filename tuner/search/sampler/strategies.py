"""Strategies without a model of correlations: exhaustive, random, categorical and genetic proposals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from tuner.errors import UsageError
from tuner.search.sampler.observations import Observations, Prior
from tuner.search.sampler.starts import Starts, first_free, free
from tuner.spec.space import Array, Space

POOL = 20_000  # candidates scored at once; in a larger space a sample and the neighbours of the best are scored
_SMALL_POOL = 2_000  # … for a strategy that must take less than a millisecond
_ELITE = 5  # number of best results whose neighbours are always candidates


class Strategy(Protocol):
    """Suggests one config that is not among the observations; called only while there is one."""

    expected_improvement: float | None  # fraction by which the best value is expected to fall; None without a model

    def propose(self, observations: Observations) -> int: ...


class Exhaustive:
    """Every config: the starts, then all others in the order of the prior, or else of the space.

    A race or a time limit may end it early.
    """

    expected_improvement: float | None = None

    def __init__(self, space: Space[Any], given: Sequence[int], prior: Prior | None) -> None:
        if not space.enumerated:
            raise UsageError(
                f"about {len(space):,} configs are too many for an exhaustive search: choose another sampler"
            )
        others = np.arange(len(space)) if prior is None else np.argsort(prior.cost, kind="stable")
        self._order: tuple[int, ...] = tuple(dict.fromkeys((*given, *others.tolist())))
        self._next = 0

    def propose(self, observations: Observations) -> int:
        known = set(observations.known.tolist())
        self._next = next(
            position for position in range(self._next, len(self._order)) if self._order[position] not in known
        )
        return self._order[self._next]


class Random:
    """The starts, then configs drawn uniformly."""

    expected_improvement: float | None = None

    def __init__(self, space: Space[Any], rng: np.random.Generator, starts: Starts, given: Sequence[int]) -> None:
        self._space, self._rng, self._starts, self._given = space, rng, starts, given

    def propose(self, observations: Observations) -> int:
        if (given := first_free(self._given, observations)) is not None:
            return given
        chosen = int(free(self._space, observations.known, 1, self._rng)[0])
        self._starts.random.add(chosen)
        return chosen


class Categorical:
    """Good against bad values, separately for each parameter (naive Bayes); far below a millisecond per suggestion."""

    expected_improvement: float | None = None

    def __init__(self, space: Space[Any], rng: np.random.Generator, starts: Starts) -> None:
        self._space, self._rng, self._starts = space, rng, starts
        self._sizes = [len(values) for values in space.choices.values()]

    def propose(self, observations: Observations) -> int:
        start = self._starts.next(observations)
        if start is not None:
            return start
        pool = candidates(self._space, observations, self._rng, _SMALL_POOL)
        count = min(25, -(-len(observations.tried) // 10))
        ranked, codes = self._space.codes_of(observations.best(len(observations.tried))), self._space.codes_of(pool)
        good, bad = ranked[:count], ranked[count:]
        score = np.zeros(len(pool))
        for j, size in enumerate(self._sizes):
            score += (_log_shares(good[:, j], size) - _log_shares(bad[:, j], size))[codes[:, j]]
        return int(pool[np.argmax(score + 1e-9 * self._rng.random(len(pool)))])


class Genetic:
    """A steady-state population: half of the children are neighbours of a parent, half are crossovers of two
    parents.
    """

    expected_improvement: float | None = None
    _POPULATION = 12

    def __init__(self, space: Space[Any], rng: np.random.Generator, starts: Starts) -> None:
        self._space, self._rng, self._starts = space, rng, starts

    def propose(self, observations: Observations) -> int:
        start = self._starts.next(observations)
        if start is not None:
            return start
        population = observations.best(self._POPULATION)
        mother, father = (int(population[self._rank(len(population))]) for _ in range(2))
        if self._rng.random() < 0.5:
            free = np.setdiff1d(self._space.neighbours(mother), observations.known)
            if len(free):
                return int(self._rng.choice(free))
        return self._cross(mother, father, observations)

    def _rank(self, count: int) -> int:
        """Return a rank in the population; better ranks are more likely."""
        return min(int(self._rng.exponential(count / 3)), count - 1)

    def _cross(self, mother: int, father: int, observations: Observations) -> int:
        """Return the free config closest to a uniform crossover."""
        codes = self._space.codes_of(np.array([mother, father]))
        child = np.where(self._rng.random(codes.shape[1]) < 0.5, codes[0], codes[1])
        return nearest(self._space, child, observations, self._rng)


def candidates(space: Space[Any], observations: Observations, rng: np.random.Generator, sample: int = POOL) -> Array:
    """Return free configs to score: all of them, or `sample` of more than POOL and the neighbours of the best
    results.
    """
    if space.enumerated and len(space) <= max(POOL, 2 * len(observations.known)):
        mask = np.ones(len(space), dtype=bool)
        mask[observations.known] = False
        return np.flatnonzero(mask)
    near = [space.neighbours(int(index)) for index in observations.best(_ELITE)]
    pool = np.concatenate([space.draw(sample, rng), *near])
    return pool[~np.isin(pool, observations.known)]


def nearest(space: Space[Any], codes: Array, observations: Observations, rng: np.random.Generator) -> int:
    """Return the free config that differs from `codes` [parameters] in the fewest values; ties are drawn at random."""
    pool = candidates(space, observations, rng)
    distance = np.count_nonzero(space.codes_of(pool) != codes, axis=1)
    return int(pool[np.argmin(distance + 0.5 * rng.random(len(pool)))])


def _log_shares(codes: Array, size: int) -> Array:
    """Return the logarithm of each value's share among `codes`, with a uniform prior worth one result: [size]."""
    shares: Array = np.log((np.bincount(codes, minlength=size) + 1 / size) / (len(codes) + 1))
    return shares
