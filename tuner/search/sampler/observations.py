"""What a strategy knows when it proposes: results so far, configs being tried, and a prior order of all of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tuner.spec.space import Array

_JUDGED_FROM, _JUDGED_TO = 5, 16  # valid results of random tries that judge a prior
_WRONG = 0.2  # rank correlation below which a prior is dropped


@dataclass(frozen=True, eq=False)
class Observations:
    """Results in the order in which they came, and configs asked for without a result yet."""

    tried: Array  # indices of the configs [n]
    values: Array  # [n], lower is better; inf: it failed
    pending: Array  # indices [m]

    @classmethod
    def of(cls, results: Mapping[int, float | None]) -> Observations:
        """Results by index of the config; None and values that are not finite: it failed."""
        values = np.array([np.inf if value is None else value for value in results.values()], dtype=float)
        values[np.isnan(values)] = np.inf
        return cls(np.array([*results], int), values, np.zeros(0, int))

    @cached_property
    def known(self) -> Array:
        """Indices that must not be proposed again [n + m]."""
        return np.concatenate([self.tried, self.pending])

    @cached_property
    def worked(self) -> Array:
        """Which results are values: booleans [n]."""
        return np.isfinite(self.values)

    def where(self, kept: Array) -> Observations:
        """The results that are `kept`, booleans or positions, and what is being tried."""
        return Observations(self.tried[kept], self.values[kept], self.pending)

    def best(self, count: int) -> Array:
        """Indices of the best results, best first; failures last."""
        return self.tried[np.argsort(self.values, kind="stable")[:count]]


@dataclass(frozen=True, eq=False)
class Prior:
    """An order of all configs from before a search, kept until the first results contradict it."""

    cost: Array  # [configs], lower is better, any unit; inf where nothing good is expected, NaN where it is unknown
    measured: bool = False  # learnt from times of another device or problem; else a prediction
    source: str = ""  # "prediction", "history of H100"

    @cached_property
    def share_better(self) -> Array:
        """The share of the configs that it ranks higher [configs]; 0 where nothing is known."""
        return np.where(np.isnan(self.cost), 0.0, ranks(self.cost) / len(self.cost))

    def best(self, count: int, codes: Array) -> list[int]:
        """Indices of configs that it ranks best, each different from the others in over one parameter."""
        chosen: list[int] = []
        for index in np.argsort(self.cost, kind="stable"):
            if np.all(np.count_nonzero(codes[chosen] != codes[index], axis=1) > 1):
                chosen.append(int(index))
            if len(chosen) == count:
                break
        return chosen

    def correlation(self, observations: Observations, random: Collection[int]) -> float | None:
        """Spearman's rank correlation with the first valid results of `random` tries.

        None before there are five: those that a prior chose itself, or a model, are all good and rank by chance.
        """
        ranked = ~np.isnan(self.cost[observations.tried]) & np.isin(observations.tried, list(random))
        first = np.flatnonzero(observations.worked & ranked)[:_JUDGED_TO]
        predicted, observed = self.cost[observations.tried[first]], observations.values[first]
        if len(first) < _JUDGED_FROM or min(len(np.unique(predicted)), len(np.unique(observed))) < 2:
            return None
        return float(np.corrcoef(ranks(predicted), ranks(observed))[0, 1])

    def holds(self, observations: Observations, random: Collection[int]) -> bool:
        """Whether the results do not contradict the prior."""
        correlation = self.correlation(observations, random)
        return correlation is None or correlation >= _WRONG


def combine_priors(priors: Sequence[Prior]) -> Array | None:
    """One cost of every config [configs]: the mean of the priors' ranks on a logarithmic axis; None without any.

    The axis gives the first hundredth of the configs half of the room: the order of the best matters, that of the
    worst does not.
    """
    if len(priors) < 2:
        return priors[0].cost if priors else None
    cost: Array = np.mean([np.log1p(ranks(prior.cost)) for prior in priors], axis=0)
    return cost


def ranks(values: Array) -> Array:
    """Ranks from 0; equal values share the mean of theirs."""
    _, group, count = np.unique(np.nan_to_num(values, nan=np.inf), return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    mean_ranks: Array = (last - (count + 1) / 2)[group]
    return mean_ranks
