"""The information of a strategy: results so far, configs being tried, and a prior order of all configs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tuner.spec.space import Array

_JUDGED_FROM, _JUDGED_TO = 5, 16  # valid random results that judge a prior
_WRONG = 0.2  # rank correlation below which a prior is dropped


@dataclass(frozen=True, eq=False)
class Observations:
    """Results in order of completion, and suggested configs without a result."""

    tried: Array  # indices of the configs [n]
    values: Array  # [n], lower is better; inf if it failed
    pending: Array  # indices [m]

    @classmethod
    def of(cls, results: Mapping[int, float | None]) -> Observations:
        """Build observations from results by index of the config; None and non-finite values are failures."""
        values = np.array([np.inf if value is None else value for value in results.values()], dtype=float)
        values[np.isnan(values)] = np.inf
        return cls(np.array([*results], int), values, np.zeros(0, int))

    @cached_property
    def known(self) -> Array:
        """Indices that must not be suggested again [n + m]."""
        return np.concatenate([self.tried, self.pending])

    @cached_property
    def worked(self) -> Array:
        """Which results succeeded: booleans [n]."""
        return np.isfinite(self.values)

    def where(self, kept: Array) -> Observations:
        """Return the results selected by `kept` (booleans or positions), with the pending configs."""
        return Observations(self.tried[kept], self.values[kept], self.pending)

    def best(self, count: int) -> Array:
        """Return the indices of the best results, best first; failures last."""
        return self.tried[np.argsort(self.values, kind="stable")[:count]]


@dataclass(frozen=True, eq=False)
class Prior:
    """An order of all configs before a search, used until results contradict it."""

    cost: Array  # [configs], lower is better, any unit; inf: not promising, NaN: unknown
    measured: bool = False  # learnt from times on another device or problem instead of predicted
    source: str = ""  # "prediction", "history of H100"

    @cached_property
    def share_better(self) -> Array:
        """Return the fraction of configs that it ranks higher [configs]; 0 if unknown."""
        return np.where(np.isnan(self.cost), 0.0, ranks(self.cost) / len(self.cost))

    def best(self, count: int, codes: Array) -> list[int]:
        """Return the indices of its best configs, each of which differs from the others in more than one parameter."""
        chosen: list[int] = []
        for index in np.argsort(self.cost, kind="stable"):
            if np.all(np.count_nonzero(codes[chosen] != codes[index], axis=1) > 1):
                chosen.append(int(index))
            if len(chosen) == count:
                break
        return chosen

    def correlation(self, observations: Observations, random: Collection[int]) -> float | None:
        """Return Spearman's rank correlation with the first valid results of `random` tries.

        Returns None for fewer than five tries. Configs chosen by a prior or a model are excluded, because all of them
        are good and their order is random.
        """
        ranked = ~np.isnan(self.cost[observations.tried]) & np.isin(observations.tried, list(random))
        first = np.flatnonzero(observations.worked & ranked)[:_JUDGED_TO]
        predicted, observed = self.cost[observations.tried[first]], observations.values[first]
        if len(first) < _JUDGED_FROM or min(len(np.unique(predicted)), len(np.unique(observed))) < 2:
            return None
        return float(np.corrcoef(ranks(predicted), ranks(observed))[0, 1])

    def holds(self, observations: Observations, random: Collection[int]) -> bool:
        """Return whether the results are consistent with the prior."""
        correlation = self.correlation(observations, random)
        return correlation is None or correlation >= _WRONG


def combine_priors(priors: Sequence[Prior]) -> Array | None:
    """Return one cost of every config [configs]: the mean of the priors' ranks on a logarithmic axis; None without
    priors.

    The best hundredth of the configs covers half of the axis, because the order of the best configs matters most.
    """
    if len(priors) < 2:
        return priors[0].cost if priors else None
    cost: Array = np.mean([np.log1p(ranks(prior.cost)) for prior in priors], axis=0)
    return cost


def ranks(values: Array) -> Array:
    """Return ranks from 0; equal values share their mean rank."""
    _, group, count = np.unique(np.nan_to_num(values, nan=np.inf), return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    mean_ranks: Array = (last - (count + 1) / 2)[group]
    return mean_ranks
