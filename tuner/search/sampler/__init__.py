"""Ask-and-tell sampling from the valid set of a space; each config is suggested at most once."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from tuner.errors import UsageError
from tuner.spec.space import Array, Space

LEARNABLE = 8  # successful results needed to predict a cost for all configs

OPTUNA = ("cmaes", "nsgaii", "optuna-gp")  # samplers of Optuna, used unmodified
METHODS = ("gp", "tpe", "categorical", "genetic", "random", "exhaustive", *OPTUNA)


def is_method(name: str) -> bool:
    """Return whether `name` is one of METHODS or names a class, as `module:Class`; imports nothing."""
    module, colon, attribute = name.partition(":")
    return name in METHODS or (bool(colon) and bool(module) and attribute.isidentifier())


def check_method(name: str) -> None:
    """Raise UsageError if no sampler of this name can be created: unknown name, unknown class or missing package."""
    if not is_method(name):
        raise UsageError(unknown_method(name))
    if name in OPTUNA or ":" in name:
        from tuner.search.sampler.optuna_samplers import create

        create(name, 0)


def unknown_method(name: str) -> str:
    """Return the message for an unknown name."""
    return f"unknown sampler {name!r} (known: {', '.join(METHODS)}, or module:Class){_near(name)}"


def _near(name: str) -> str:
    from difflib import get_close_matches  # needed only for a message

    near = get_close_matches(name.lower(), METHODS, 2)
    return f": did you mean {' or '.join(near)}?" if near else ""


def predict(space: Space[Any], results: Mapping[int, float | None]) -> Array | None:
    """Return a cost of every config from results on another device or problem, for use as a prior.

    `results` maps configs, by their index in `space`, to values (lower is better; None: it failed). Returns None if
    fewer than eight of them succeeded, or if the space is too large to be enumerated.
    """
    from tuner.search.sampler.expected_improvement import predicted_scores
    from tuner.search.sampler.observations import Observations

    observations = Observations.of(results)
    if np.count_nonzero(observations.worked) < LEARNABLE or not space.enumerated:
        return None
    return predicted_scores(space, observations)


def importance(space: Space[Any], results: Mapping[int, float | None]) -> dict[str, float]:
    """Return how much each parameter affects whether a config is among the best tenth (PED-ANOVA), normalised to 1.

    `results` are as for `predict`. Empty before there are two different values.
    """
    from tuner.search.sampler.optuna_trials import importance_of

    return importance_of(space, results)


class Sampler:
    """Suggests configs of `space` by their index, and learns from their values.

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
        # imported here because Optuna and SciPy take a second, and the command line needs only METHODS
        from tuner.search.sampler.methods import build
        from tuner.search.sampler.observations import Prior

        if not is_method(method):
            raise UsageError(unknown_method(method))
        if prior is not None and len(prior) != len(space):
            raise ValueError(f"the prior has {len(prior)} costs, the space {len(space)} configs")
        self._prior = None if prior is None else Prior(prior, measured)
        self._trials, self._strategy, self._starts = build(space, method, seed, starts, self._prior)
        self._left = len(space)
        self._values: dict[int, float | None] = {}
        self._asked: set[int] = set()
        self.expected_improvement: float | None = None

    def ask(self, n: int) -> list[int]:
        """Return up to `n` new configs to try; fewer if the space is exhausted.

        Sets `expected_improvement`: the fraction by which the model expects the best value to fall in the next 32
        tries; None without a model. The estimate is only as good as the model.
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
        """Record the value of a config (lower is better), suggested or not; None or a non-finite value if it failed.

        Raises ValueError for a config that already has a value.
        """
        if index in self._values:
            raise ValueError(f"config {index} has a value already: {self._values[index]}")
        value = value if value is not None and math.isfinite(value) else None
        self._trials.tell(index, value)
        self._left -= index not in self._asked
        self._values[index] = value

    @property
    def best(self) -> tuple[int, float] | None:
        """Return the best config and its value; None before any success."""
        worked = [(value, index) for index, value in self._values.items() if value is not None]
        if not worked:
            return None
        value, index = min(worked)
        return index, value

    @property
    def prior_correlation(self) -> float | None:
        """Return Spearman's correlation of the prior with random tries; None without a prior or with fewer than five
        tries.

        A prior below 0.2 is dropped.
        """
        if self._prior is None:
            return None
        return self._prior.correlation(self._trials.observations(), self._starts.random)

    @property
    def random(self) -> frozenset[int]:
        """Return the suggested configs that were drawn at random, not chosen by a prior or a model."""
        return frozenset(self._starts.random)

    def mark_random(self, configs: Collection[int]) -> None:
        """Mark configs as random that another sampler of the space drew at random."""
        self._starts.random |= set(configs)

    def importance(self) -> dict[str, float]:
        """Return how much each parameter decides whether a config is in the best tenth (PED-ANOVA), normalised to 1.

        Empty before there are two different values.
        """
        return self._trials.importance()
