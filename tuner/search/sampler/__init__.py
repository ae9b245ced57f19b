"""Ask and tell over the valid set of a space: which configs to try next, each at most once."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from tuner.errors import UsageError
from tuner.spec.space import Array, Space

LEARNABLE = 8  # results that work, from which a cost of all configs can be predicted

METHODS = ("gp", "tpe", "categorical", "genetic", "random", "exhaustive")


def predict(space: Space[Any], results: Mapping[int, float | None]) -> Array | None:
    """A prior for a Sampler from results on another device or problem: a cost of every config, only good to compare.

    `results` maps configs, by their index in `space`, to values (lower is better; None: it failed). None when fewer
    than eight of them work, or when the space is too large to be enumerated.
    """
    from tuner.search.sampler.improvement import predicted_scores
    from tuner.search.sampler.observations import Observations

    observations = Observations.of(results)
    if np.count_nonzero(observations.worked) < LEARNABLE or not space.enumerated:
        return None
    return predicted_scores(space, observations)


class Sampler:
    """Proposes configs of `space` by their index, and learns from their values.

    `method` is one of METHODS; the Gaussian process ("gp") hands over to "categorical" beyond a thousand results.
    `starts` are tried first. `prior` is an assumed cost of every valid config (lower is better, any unit), `measured`
    where it was learnt from times elsewhere: its best are starts as well, and its best fifth is searched first, unless
    the first results disagree with it. The same calls with the same `seed` give the same
    configs. Raises UsageError for an unknown method and for "exhaustive" where the space is not enumerated, ValueError
    for a prior of the wrong length.
    """

    def __init__(
        self,
        space: Space[Any],
        *,
        method: str = "gp",
        seed: int,
        starts: Sequence[int] = (),
        prior: Array | None = None,
        measured: bool = False,
    ) -> None:
        # Not at the top: Optuna and SciPy take a second to import, and the command line wants METHODS only.
        from tuner.search.sampler.methods import build
        from tuner.search.sampler.observations import Prior

        if method not in METHODS:
            raise UsageError(f"unknown sampler {method!r} (known: {', '.join(METHODS)})")
        if prior is not None and len(prior) != len(space):
            raise ValueError(f"the prior has {len(prior)} costs, the space {len(space)} configs")
        self._prior = None if prior is None else Prior(prior, measured)
        self._trials, self._strategy, self._starts = build(space, method, seed, starts, self._prior)
        self._left = len(space)
        self._values: dict[int, float | None] = {}
        self._asked: set[int] = set()
        self.expected_improvement: float | None = None

    def ask(self, n: int) -> list[int]:
        """Up to `n` configs to try next, none that was asked for or has a value; fewer when the space is exhausted.

        Sets `expected_improvement`: by what share the model expects the best value to fall in the next 32 tries;
        None while no model says. It is the model's own view: where it is wrong, more can be found.
        """
        asked, gains = [], []
        for _ in range(min(n, self._left)):
            asked.append(self._trials.ask())
            gains.append(self._strategy.expected_improvement if self._strategy is not None else None)
            self._left -= 1
        self._asked.update(asked)
        self.expected_improvement = max((gain for gain in gains if gain is not None), default=self.expected_improvement)
        return asked

    def tell(self, index: int, value: float | None) -> None:
        """The value of a config (lower is better), asked for or not; None or not finite when it does not work.

        Raises ValueError for a config that has a value.
        """
        if index in self._values:
            raise ValueError(f"config {index} has a value already: {self._values[index]}")
        value = value if value is not None and math.isfinite(value) else None
        self._trials.tell(index, value)
        self._left -= index not in self._asked
        self._values[index] = value

    @property
    def best(self) -> tuple[int, float] | None:
        """The best config with a value, and that value; None before any works."""
        worked = [(value, index) for index, value in self._values.items() if value is not None]
        if not worked:
            return None
        value, index = min(worked)
        return index, value

    @property
    def prior_correlation(self) -> float | None:
        """Spearman's correlation of the prior with the results of random tries; None without a prior, and before five.

        Below 0.2 the prior is wrong, and dropped.
        """
        if self._prior is None:
            return None
        return self._prior.correlation(self._trials.observations(), self._starts.random)

    @property
    def random(self) -> frozenset[int]:
        """The configs asked for that were drawn at random: neither a prior nor a model chose them."""
        return frozenset(self._starts.random)

    def mark_random(self, configs: Collection[int]) -> None:
        """Take note of configs that another sampler of the space drew at random."""
        self._starts.random |= set(configs)

    def importance(self) -> dict[str, float]:
        """How much each parameter decides whether a config is among the best tenth (PED-ANOVA), adding up to 1.

        Empty before there are two different values.
        """
        return self._trials.importance()
